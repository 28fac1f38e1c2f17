"""Inputs of a revision that can change under it."""

from __future__ import annotations

import re

from specdecode.api import SpecDecodeDeploymentSpec

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def mutable_inputs(spec: SpecDecodeDeploymentSpec) -> list[str]:
    """Each input that may change while a revision stays the same, in a sentence that says what would pin it.

    Pods restarted apart would then run different weights or code, which vLLM's handshake doesn't see.
    """
    found = []
    images = {"spec.engine.image": spec.engine.image, "spec.topology.router.image": spec.topology.router.image}
    for path, image in images.items():
        if image and not _DIGEST.search(image):
            found.append(f"{path} {image} is no digest: append @sha256:...")
    volume = spec.model.source.volume
    if volume is not None:
        found.append(
            f"spec.model.source.volume.claimName {volume.claim_name} can be rewritten: write each model into a folder "
            "of its own and never change it"
        )
    elif not _COMMIT.fullmatch(spec.model.revision):
        shown = spec.model.revision or "(the hub's default branch)"
        found.append(f"spec.model.revision {shown} is no commit: write the commit's 40 hexadecimal digits")
    return found
