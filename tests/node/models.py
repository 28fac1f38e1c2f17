"""Checkpoints of the tiny MTP model on the node's disk, and the claim through which Pods mount them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bed.processes import wait_for
from tests.node.node import Node
from tests.node.settings import run_folder
from tests.vllm import tiny_mtp
from tests.vllm.tiny_mtp import TinyModel

PATH: Final = "tiny"
"""Of the model on each volume: what it is doesn't show in its path."""
GOOD: Final = "good"
"""Claim of a volume on which most drafts are accepted."""
BAD: Final = "bad"
"""The same model with other MTP weights: hardly a draft is accepted, and every answer is the same."""
STRANGE: Final = "strange"
"""The same model with its KV cut into twice as many heads: it can't be exchanged with the good one's."""
CLAIMS: Final = (GOOD, BAD, STRANGE)


@dataclass(frozen=True)
class Models:
    """What lies on the node's disk.

    Attributes:
        folder: with a folder for each volume.
        good: the model; every other one gives the same answers.
    """

    folder: Path
    good: TinyModel


def make() -> Models:
    """Write the checkpoints, or find them written."""
    folder = run_folder() / "models"
    good = tiny_mtp.build(folder / GOOD / PATH, accept=0.9)
    bad = tiny_mtp.build(folder / BAD / PATH, accept=0.02)
    assert good.cycle == bad.cycle, "one seed gives one cycle, whatever the acceptance"
    tiny_mtp.build(folder / STRANGE / PATH, accept=0.9)
    config = folder / STRANGE / PATH / "config.json"
    heads: dict[str, Any] = json.loads(config.read_text())
    heads |= {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": tiny_mtp.HIDDEN // 4}
    config.write_text(json.dumps(heads))
    return Models(folder, good)


def claim_all(node: Node, namespace: str, models: Models) -> None:
    """The claims of all volumes in a namespace."""
    for name in CLAIMS:
        claim(node, namespace, models.folder / name, name)


def claim(node: Node, namespace: str, folder: Path, name: str) -> None:
    """A PersistentVolumeClaim for a folder of the node, bound: Pods under restricted Pod security mount no hostPath."""
    capacity = {"storage": "1Gi"}
    modes = ["ReadOnlyMany"]
    made = node.api.request(
        "POST",
        "/api/v1/persistentvolumes",
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"generateName": f"{namespace}-{name}-"},
            "spec": {
                "capacity": capacity,
                "accessModes": modes,
                "hostPath": {"path": str(folder), "type": "Directory"},
                "storageClassName": "",
                "claimRef": {"namespace": namespace, "name": name},
            },
        },
    )
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    node.api.request(
        "POST",
        path,
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "accessModes": modes,
                "resources": {"requests": capacity},
                "storageClassName": "",
                "volumeName": made["metadata"]["name"],
            },
        },
    )
    bound = lambda: node.api.request("GET", f"{path}/{name}")["status"].get("phase") == "Bound"  # noqa: E731
    wait_for(f"claim {namespace}/{name} to be bound", bound, 60)
