"""Fields of the spec that no Pod template and no configuration depends on.

A change of one of them is carried out on the running revision; a change of any other field makes a new one. Each
path is camelCase with dots, under ``spec``, and stands for everything below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LIVE_PATHS: Final[tuple[str, ...]] = (
    "guard",
    "rollout",
    "topology.decode.maxReplicas",
    "topology.decode.replicas",
    "topology.prefill.maxReplicas",
    "topology.prefill.replicas",
    "topology.router.replicas",
    "traffic",
)


def live(path: str) -> bool:
    """Whether the field at ``path``, such as ``rollout.steps``, makes no new revision."""
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in LIVE_PATHS)


def frozen(spec: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The part of a spec (as JSON, by its camelCase names) that makes a revision, live fields left out."""
    kept: dict[str, Any] = {}
    for key, value in spec.items():
        here = f"{path}.{key}" if path else key
        if not live(here):
            kept[key] = frozen(value, here) if isinstance(value, Mapping) else value
    return kept
