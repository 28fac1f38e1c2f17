"""Strict validation of a resource that a person wrote, without a cluster.

It says what ``kubectl apply`` would say, and more kindly: the structural schema of the CRD is walked, so unknown
fields, wrong types and bounds are found wherever they are, and then the rules of `checks` are put to every part that
has the right shape.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from . import checks
from .base import COUNT_OR_PERCENT_PATTERN, DURATION_PATTERN, PERCENT_PATTERN
from .crd import schema
from .faults import Fault
from .names import API_VERSION, KIND

Schema = dict[str, Any]

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_SPOKEN: Final = {
    "object": "a map of fields",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_PATTERN_HINTS: Final = {
    DURATION_PATTERN: "write a duration such as 30s, 5m or 1h30m",
    PERCENT_PATTERN: "write a percentage such as 5% or 99.5%",
    COUNT_OR_PERCENT_PATTERN: "write a count such as 1, or a percentage such as 25%",
}
_METADATA: Final = (
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    # Written by the API server, and so part of what `kubectl get -o yaml` prints.
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generateName",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)
# Looked at by `_identity`, and status is the operator's to write.
_ELSEWHERE: Final = ("apiVersion", "kind", "metadata", "status")
_LONGEST_SHOWN: Final = 60
ABSENT: Final = "absent"
"""Stands where a fault has no value to show."""


def faults(resource: Any) -> list[Fault]:
    """Everything that is wrong with a parsed document, in the order in which it stands there; empty: nothing.

    A resource without faults is one that `SpecDecodeDeployment.parse` takes. Never raises, whatever the document is.
    """
    if not isinstance(resource, dict):
        return [
            Fault("document", shown(resource), f"is no resource: write a map with apiVersion, kind {KIND} and spec")
        ]
    found = list(_identity(resource))
    if resource.get("kind", KIND) == KIND:
        found += _walk(schema(), resource, "")
    return found or list(_rules(schema(), defaulted(schema(), resource), ""))


def defaulted(schema: Schema, value: Any) -> Any:
    """``value`` as the API server would store it: defaults filled in, nulls where a default stands dropped."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        full = {k: v for k, v in value.items() if v is not None or "default" not in properties.get(k, {})}
        full = {k: field["default"] for k, field in properties.items() if "default" in field} | full
        return {k: defaulted(properties.get(k, {}), v) for k, v in full.items()}
    if isinstance(value, list):
        return [defaulted(schema.get("items", {}), item) for item in value]
    return value


def shown(value: Any) -> str:
    """A value as a person would write it on one line, cut where it is long."""
    plain = isinstance(value, str) and value != "" and value.isprintable()
    text = value if plain else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def _identity(resource: dict[str, Any]) -> Iterator[Fault]:
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if field not in resource:
            yield Fault(field, ABSENT, f"is missing: write {field}: {wanted}")
        elif resource[field] != wanted:
            yield Fault(field, shown(resource[field]), f"isn't known to this version: write {wanted}")
    metadata = resource.get("metadata")
    if not isinstance(metadata, dict):
        yield Fault("metadata", ABSENT, "is missing: write metadata: {name: NAME}")
        return
    if not isinstance(metadata.get("name"), str):
        yield Fault("metadata.name", shown(metadata.get("name", ABSENT)), "is no name: give the resource one")
    for field in metadata:
        if field not in _METADATA:
            yield _unknown(f"metadata.{field}", str(field), metadata[field], _METADATA)
    for field in ("labels", "annotations"):
        for key, value in (metadata.get(field) or {}).items():
            if not isinstance(value, str):
                yield _wrong_type("string", value, f"metadata.{field}.{key}")


def _walk(schema: Schema, value: Any, path: str) -> Iterator[Fault]:
    """Faults of shape: types, bounds, unknown and missing fields."""
    if value is None and "default" in schema:
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield Fault(path, shown(value), "must be a whole number or a string: write a count or a percentage")
            return
    elif not isinstance(value, _TYPES[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        yield _wrong_type(schema["type"], value, path)
        return
    match value:
        case dict():
            yield from _walk_object(schema, value, path)
        case list():
            yield from _walk_list(schema, value, path)
        case str():
            yield from _walk_string(schema, value, path)
        case int() | float():
            if value < schema.get("minimum", value):
                yield Fault(path, shown(value), f"is too small: write {schema['minimum']} or more")
            if value > schema.get("maximum", value):
                yield Fault(path, shown(value), f"is too large: write {schema['maximum']} or less")


def _walk_object(schema: Schema, value: dict[Any, Any], path: str) -> Iterator[Fault]:
    dot = f"{path}." if path else ""
    properties: dict[str, Schema] = schema.get("properties", {})
    values: Schema | None = schema.get("additionalProperties")
    for key, item in value.items():
        if not isinstance(key, str):
            yield Fault(f"{dot}{shown(key)}", shown(item), "is no name of a field: put it in quotes")
        elif path == "" and key in _ELSEWHERE:
            continue
        elif key in properties:
            yield from _walk(properties[key], item, f"{dot}{key}")
        elif values is not None:
            yield from _walk(values, item, f"{dot}{key}")
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield _unknown(f"{dot}{key}", key, item, tuple(properties))
    for key in schema.get("required", ()):
        if key not in value and not (path == "" and key in _ELSEWHERE):
            hint = properties[key].get("description", "").rstrip(".") if key in properties else ""
            yield Fault(f"{dot}{key}", ABSENT, f"is missing: set it ({hint})" if hint else "is missing: set it")
    if len(value) > schema.get("maxProperties", len(value)):
        yield Fault(path, f"{len(value)} entries", f"has too many: keep {schema['maxProperties']} at most")


def _walk_list(schema: Schema, value: list[Any], path: str) -> Iterator[Fault]:
    for i, item in enumerate(value):
        yield from _walk(schema["items"], item, f"{path}[{i}]")
    if len(value) < schema.get("minItems", 0):
        yield Fault(path, f"{len(value)} entries", f"has too few: write at least {schema['minItems']}")
    if len(value) > schema.get("maxItems", len(value)):
        yield Fault(path, f"{len(value)} entries", f"has too many: keep {schema['maxItems']} at most")
    kind = schema.get("x-kubernetes-list-type")
    if kind not in ("map", "set"):
        return
    keys = schema.get("x-kubernetes-list-map-keys", [])
    seen = []
    for i, item in enumerate(value):
        identity = [item.get(k) for k in keys] if kind == "map" and isinstance(item, dict) else item
        if identity in seen:
            yield Fault(f"{path}[{i}]", shown(item), "is there twice: remove one of the two")
        seen.append(identity)


def _walk_string(schema: Schema, value: str, path: str) -> Iterator[Fault]:
    if "enum" in schema:
        if value not in schema["enum"]:
            near = _nearest(value, schema["enum"])
            wanted = f"write {near}" if near else f"write one of {', '.join(schema['enum'])}"
            yield Fault(path, shown(value), f"isn't known here: {wanted}")
        return
    if len(value) < schema.get("minLength", 0):
        yield Fault(path, '""', "is empty: give a value")
    if len(value) > schema.get("maxLength", len(value)):
        yield Fault(path, shown(value), f"is too long: write at most {schema['maxLength']} characters")
    elif "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        hint = _PATTERN_HINTS.get(schema["pattern"], f"write something that matches {schema['pattern']}")
        yield Fault(path, shown(value), f"has the wrong form: {hint}")


def _rules(schema: Schema, value: Any, path: str) -> Iterator[Fault]:
    """Rules that a value of the right shape breaks."""
    for validation in schema.get("x-kubernetes-validations", ()):
        rule = checks.BY_CEL[validation["rule"]]
        if rule.holds(value):
            continue
        at = ".".join(part for part in (path, rule.field) if part)
        message = rule.explain(value) if rule.explain else rule.message
        yield Fault(at, shown(_at(value, rule.field)), message)
    if isinstance(value, dict):
        for key, item in value.items():
            below = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
            if below:
                yield from _rules(below, item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _rules(schema["items"], item, f"{path}[{i}]")


def _at(value: Any, field: str) -> Any:
    for part in field.split(".") if field else ():
        value = value[part]
    return value


def _wrong_type(wanted: str, value: Any, path: str) -> Fault:
    if value is None:
        remedy = {"object": "write {} or remove the field", "array": "write [] or remove the field"}
        return Fault(path, "null", f"has no value: {remedy.get(wanted, 'give it one, or remove the field')}")
    message = f"must be {_SPOKEN[wanted]}"
    if wanted == "string" and isinstance(value, bool | int | float):
        message += f': put it in quotes, "{shown(value)}"'
    elif wanted in ("integer", "number", "boolean") and isinstance(value, str):
        message += ": remove the quotes" if _reads_as(wanted, value) else ": replace it"
    else:
        message += ": rewrite it as such"
    return Fault(path, shown(value), message)


def _reads_as(wanted: str, text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, _TYPES[wanted]) and isinstance(value, bool) == (wanted == "boolean")


def _nearest(name: str, known: tuple[str, ...] | list[str]) -> str | None:
    by_folded = {k.replace("_", "").replace("-", "").lower(): k for k in known}
    folded = name.replace("_", "").replace("-", "").lower()
    near = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.7)
    return by_folded[near[0]] if near else None


def _unknown(path: str, name: str, value: Any, siblings: tuple[str, ...]) -> Fault:
    near = _nearest(name, siblings)
    if near:
        return Fault(path, shown(value), f"is no field of the resource: did you mean {near}?")
    elsewhere = _places().get(name, ())
    if elsewhere:
        return Fault(path, shown(value), f"is no field here: it belongs to {' or '.join(elsewhere)}")
    return Fault(path, shown(value), f"is no field of the resource: remove it, or use one of {', '.join(siblings)}")


@cache
def _places() -> dict[str, tuple[str, ...]]:
    """By name of a field: the parts of the spec that have it."""
    found: dict[str, tuple[str, ...]] = {}

    def visit(schema: Schema, path: str) -> None:
        for name, field in schema.get("properties", {}).items():
            found[name] = (*found.get(name, ()), path)
            visit(field, f"{path}.{name}")
        if "items" in schema:
            visit(schema["items"], f"{path}[]")

    visit(schema()["properties"]["spec"], "spec")
    return found
