"""Fields of the spec that no Pod template and no configuration depends on.

A change of one of them is carried out on the running revision; a change of any other field makes a new one. Each
path is camelCase with dots, under ``spec``, and stands for everything below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_Tree = dict[str, "_Tree"]

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


def frozen(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a spec (as JSON, by its camelCase names) that makes a revision, live fields left out."""
    return _without(spec, _LIVE)


def _tree(paths: Iterable[str]) -> _Tree:
    root: _Tree = {}
    for path in paths:
        node = root
        for name in path.split("."):
            node = node.setdefault(name, {})
    return root


def _without(spec: Mapping[str, Any], live: _Tree) -> dict[str, Any]:
    kept = {}
    for key, value in spec.items():
        below = live.get(key)
        if below and isinstance(value, Mapping):
            kept[key] = _without(value, below)
        elif below != {}:
            kept[key] = value
    return kept


_LIVE: Final = _tree(LIVE_PATHS)
