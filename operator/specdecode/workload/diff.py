"""Whether an object in the cluster already is what we would apply, so that equal objects are never written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from specdecode.api.names import FIELD_MANAGER

_QUANTITIES: Final = ("limits", "requests", "sizeLimit")
_ATOMIC: Final = ("matchLabels", "namespaceSelector", "nodeSelector", "podSelector", "selector")
"""Maps that have one owner: another entry is no neighbour but another meaning."""
_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Lists that server-side apply merges by key, in which others may have entries of their own."""
_SUFFIXES: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_QUANTITY: Final = re.compile(r"([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]))?")


def changed(desired: Mapping[str, Any], live: Mapping[str, Any] | None) -> bool:
    """Whether applying ``desired`` would change ``live`` (as the API server gave it; None: it doesn't exist).

    Fields that the server or somebody else filled in don't count. A field that we applied once and no longer ask for
    does, where ``live`` still has its ``managedFields``.
    """
    if live is None:
        return True
    if any(_differs(key, value, live.get(key)) for key, value in desired.items() if key not in ("apiVersion", "kind")):
        return True
    return any(_owns_more(fields, desired) for fields in _applied_fields(live))


def handover(desired: Mapping[str, Any], live: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What to apply under another field manager before ``desired``, when ``desired`` gives up ``spec.replicas``.

    A field whose only owner stops applying it is removed, and the server would put its default of one replica in its
    place before the autoscaler says a word. None: nothing is given up.
    """
    if live is None or "replicas" in desired.get("spec", {}):
        return None
    if not any("f:replicas" in fields.get("f:spec", {}) for fields in _applied_fields(live)):
        return None
    meta = desired["metadata"]
    return {
        "apiVersion": desired["apiVersion"],
        "kind": desired["kind"],
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        "spec": {"replicas": live["spec"]["replicas"]},
    }


def quantity(value: int | float | str) -> Decimal:
    """The number that a Kubernetes quantity such as ``500m`` or ``2Gi`` stands for.

    Raises:
        ValueError: the text is no quantity.
    """
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        raise ValueError(f"{value!r} is no quantity; write one such as 2, 500m or 2Gi")
    number, exponent, suffix = found.groups()
    if exponent:
        return Decimal(number + exponent)
    if suffix in _BINARY:
        return Decimal(number) * Decimal(1024 ** _BINARY[suffix])
    return Decimal(f"{number}e{_SUFFIXES[suffix or '']}")


def _differs(key: str, desired: Any, live: Any) -> bool:
    if live is None:
        # The server drops empty values, and a defaulted field is never empty.
        return not (desired is None or desired == "" or desired == 0 or desired == [] or _hollow(desired))
    if isinstance(desired, Mapping):
        if not isinstance(live, Mapping):
            return True
        if key in _QUANTITIES:
            return any(name not in live or not _same_quantity(value, live[name]) for name, value in desired.items())
        if key in _ATOMIC and any(name not in desired for name in live):
            return True
        return any(_differs(name, value, live.get(name)) for name, value in desired.items())
    if isinstance(desired, list):
        if not isinstance(live, list):
            return True
        return _list_differs(key, desired, live)
    if key in _QUANTITIES:
        return not _same_quantity(desired, live)
    return bool(desired != live) or isinstance(desired, bool) != isinstance(live, bool)


def _hollow(value: Any) -> bool:
    return isinstance(value, Mapping) and not value


def _list_differs(key: str, desired: Sequence[Any], live: Sequence[Any]) -> bool:
    keys = _KEYS.get(key)
    if keys is None or not all(isinstance(item, Mapping) for item in (*desired, *live)):
        return len(desired) != len(live) or any(_differs("", d, v) for d, v in zip(desired, live, strict=True))
    by_key = {tuple(item.get(k) for k in keys): item for item in live}
    return any(_differs("", item, by_key.get(tuple(item.get(k) for k in keys), ())) for item in desired)


def _same_quantity(desired: Any, live: Any) -> bool:
    try:
        return quantity(desired) == quantity(live)
    except (ValueError, ArithmeticError):
        return bool(desired == live)


def _applied_fields(live: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Field sets that the server has down as applied by us, in the FieldsV1 format."""
    return [
        entry["fieldsV1"]
        for entry in live.get("metadata", {}).get("managedFields", [])
        if entry.get("manager") == FIELD_MANAGER
        and entry.get("operation") == "Apply"
        and not entry.get("subresource")
        and "fieldsV1" in entry
    ]


def _owns_more(fields: Mapping[str, Any], desired: Any) -> bool:
    """Whether a field set (FieldsV1: ``f:`` a field, ``k:`` a list entry by keys, ``v:`` a value, ``i:`` an index)
    names something that ``desired`` no longer has."""
    for name, below in fields.items():
        kind, _, rest = name.partition(":")
        if kind == "f":
            if not isinstance(desired, Mapping) or rest not in desired:
                return True
            if below and _owns_more(below, desired[rest]):
                return True
        elif kind == "k":
            keys = json.loads(rest)
            if not isinstance(desired, list):
                return True
            entry = next((item for item in desired if _has_keys(item, keys)), None)
            if entry is None or _owns_more(below, entry):
                return True
        elif kind == "v" and (not isinstance(desired, list) or json.loads(rest) not in desired):
            return True
    return False


def _has_keys(item: Any, keys: Mapping[str, Any]) -> bool:
    # A key that we leave to its default (protocol: TCP) is in the server's set and not in ours.
    return isinstance(item, Mapping) and all(item.get(k, v) == v for k, v in keys.items())
