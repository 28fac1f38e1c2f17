"""How a person's ``podTemplate`` is laid over the operator's Pod template.

1. Mappings are merged key by key; the person's value stands where both have one, and null removes a key.
2. Containers, init containers, environment variables, volumes, volume mounts, ports and pull secrets are lists of
   named things: one with a known name is merged into its namesake, the others are appended. A variable, a volume, a
   mount and a port are replaced whole, because parts of two of them make no sense together.
3. ``args`` of a container of the operator's are appended to its own; its ``command`` is what they are given to, and is
   replaced (a wrapper such as ``[numactl, --membind=0, vllm, serve]`` works).
4. Every other list is replaced.
5. Labels that select Pods, and the fields that bind a Pod to its workload, are put in afterwards and always win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

_MERGED: Final = {"containers": "name", "initContainers": "name", "imagePullSecrets": "name"}
_REPLACED_WHOLE: Final = {"env": "name", "volumes": "name", "volumeMounts": "mountPath", "ports": "containerPort"}


def merge(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """``theirs`` laid over ``ours`` by the rules above. Neither is changed."""
    merged: dict[str, Any] = dict(deepcopy(ours))
    for key, value in theirs.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        elif isinstance(value, list) and isinstance(merged.get(key), list):
            merged[key] = _merge_list(key, merged[key], value)
        else:
            merged[key] = deepcopy(value)
    return merged


def _merge_list(key: str, ours: list[Any], theirs: list[Any]) -> list[Any]:
    if key == "args":
        return [*ours, *theirs]
    identity = _MERGED.get(key) or _REPLACED_WHOLE.get(key)
    if identity is None:
        return deepcopy(theirs)
    merged = list(ours)
    for item in theirs:
        at = _find(merged, identity, item)
        if at is None:
            merged.append(deepcopy(item))
        else:
            merged[at] = merge(merged[at], item) if key in _MERGED else deepcopy(item)
    return merged


def _find(items: Sequence[Any], identity: str, item: Any) -> int | None:
    if not isinstance(item, Mapping) or identity not in item:
        return None
    for at, other in enumerate(items):
        if isinstance(other, Mapping) and other.get(identity) == item[identity]:
            return at
    return None
