"""Equal objects are recognised through what an API server makes of them, and real differences are not missed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from decimal import Decimal
from typing import Any

import pytest

from specdecode.workload import changed, handover, preview
from specdecode.workload.diff import quantity
from tests.unit.engine.specs import resource

from .test_golden import CASES

OBJECTS = {
    f"{case}/{o['kind']}/{o['metadata']['name']}": o
    for case, changes in CASES.items()
    for o in preview(resource(changes), router_image="r:1")
}


def _served(value: Any, key: str = "") -> Any:
    """Roughly what an API server gives back: defaults filled in, empty values dropped, quantities in another form."""
    if isinstance(value, Mapping):
        if key in ("limits", "requests"):
            return {k: f"{quantity(v) * 1000:f}m" for k, v in value.items()}
        kept = {k: _served(v, k) for k, v in value.items() if v not in ("", None, [], 0) or v is False}
        whole = (
            "matchLabels",
            "labels",
            "annotations",
            "data",
            "selector",
            "podSelector",
            "namespaceSelector",
            "nodeSelector",
        )
        return kept if key in whole else kept | {"aDefault": "x"}
    if isinstance(value, list):
        return [_served(v) for v in value]
    return value


@pytest.mark.parametrize("name", OBJECTS)
def test_what_the_server_adds_is_no_difference(name: str) -> None:
    body = OBJECTS[name]
    live = _served(body) | {"status": {"ready": 1}}
    live["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 2}
    assert not changed(body, live)
    del live["apiVersion"], live["kind"]
    assert not changed(body, live)


def _edits(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each leaf with another value in its place."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _edits(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _edits(inner, (*path, i))
    elif isinstance(value, bool):
        yield path, not value
    elif isinstance(value, int):
        yield path, value + 1
    else:
        yield path, f"{value}0"


@pytest.mark.parametrize("name", [n for n in OBJECTS if n.startswith("rdma/") and "ControllerRevision" not in n])
def test_every_edited_leaf_is_a_difference(name: str) -> None:
    body = OBJECTS[name]
    for path, value in _edits(body):
        if path[0] in ("apiVersion", "kind"):
            continue
        live = deepcopy(body)
        node = live
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = value
        assert changed(body, live), path


def test_what_does_not_exist_is_a_difference() -> None:
    assert changed({"metadata": {}}, None)


@pytest.mark.parametrize(
    ("desired", "live", "differs"),
    [
        ({"replicas": 0}, {"replicas": 1}, True),
        ({"replicas": 0}, {}, False),
        ({"emptyDir": {}}, {}, False),
        ({"emptyDir": {}}, {"emptyDir": {"x": 1}}, False),
        ({"args": ["a"]}, {"args": ["a", "b"]}, True),
        ({"args": ["a", "b"]}, {"args": ["b", "a"]}, True),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "X"}, {"name": "A", "y": 1}]}, False),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "2"}]}, True),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "B"}]}, True),
        ({"env": [{"name": "A"}]}, {}, True),
        ({"limits": {"gpu": 8}}, {"limits": {"gpu": "8"}}, False),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1073741824"}}, False),
        ({"limits": {"cpu": "500m"}}, {"limits": {"cpu": "0.5"}}, False),
        ({"limits": {"cpu": "500m"}}, {"limits": {"cpu": "501m"}}, True),
        ({"limits": {"cpu": "1"}}, {"limits": {"memory": "1"}}, True),
        ({"sizeLimit": "1Gi"}, {"sizeLimit": "1024Mi"}, False),
        ({"port": 80}, {"port": "80"}, True),
        ({"immutable": True}, {"immutable": 1}, True),
        ({"a": {"b": 1}}, {"a": "x"}, True),
        ({"a": [1]}, {"a": "x"}, True),
        ({"a": "x"}, {}, True),
        ({"selector": {"a": "b"}}, {"selector": {"a": "b"}}, False),
        ({"selector": {"a": "b"}}, {"selector": {"a": "b", "c": "d"}}, True),
        ({"podSelector": {}}, {"podSelector": {"matchLabels": {"c": "d"}}}, True),
        ({"podSelector": {"matchLabels": {"a": "b"}}}, {"podSelector": {"matchLabels": {"a": "b", "c": "d"}}}, True),
    ],
)
def test_values(desired: dict[str, Any], live: dict[str, Any], differs: bool) -> None:
    assert changed({"spec": desired}, {"spec": live}) is differs


def _managed(fields: dict[str, Any], **entry: str) -> dict[str, Any]:
    found = {"manager": "specdecode-operator", "operation": "Apply", "fieldsV1": fields}
    return {"metadata": {"managedFields": [found | entry]}}


@pytest.mark.parametrize(
    ("fields", "differs"),
    [
        ({"f:spec": {"f:a": {}}}, False),
        ({"f:spec": {"f:a": {}, "f:gone": {}}}, True),
        ({"f:spec": {"f:ports": {".": {}, 'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}}}}}, False),
        ({"f:spec": {"f:ports": {'k:{"port":81,"protocol":"TCP"}': {".": {}}}}}, True),
        ({"f:spec": {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {"f:gone": {}}}}}, True),
        ({"f:metadata": {"f:labels": {"f:x/y": {}}}}, False),
        ({"f:metadata": {"f:labels": {"f:gone": {}}}}, True),
        ({"f:spec": {"f:set": {"v:1": {}}}}, False),
        ({"f:spec": {"f:set": {"v:2": {}}}}, True),
    ],
)
def test_what_we_own_and_no_longer_ask_for_is_a_difference(fields: dict[str, Any], differs: bool) -> None:
    body: dict[str, Any] = {"metadata": {"labels": {"x/y": "1"}}}
    body["spec"] = {"a": 1, "ports": [{"port": 80}], "set": [1]}
    live = deepcopy(body) | {"spec": body["spec"] | {"gone": 1}}
    live["metadata"] = {"labels": {"x/y": "1"}} | _managed(fields)["metadata"]
    assert changed(body, live) is differs
    for other in ({"manager": "kubectl"}, {"operation": "Update"}, {"subresource": "status"}):
        live["metadata"]["managedFields"] = _managed(fields, **other)["metadata"]["managedFields"]
        assert not changed(body, live)


def test_replicas_are_handed_over_once() -> None:
    body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "n", "namespace": "s"}, "spec": {}}
    live = _managed({"f:spec": {"f:replicas": {}}}) | {"spec": {"replicas": 4}}
    assert handover(body, live) == body | {"spec": {"replicas": 4}}
    assert handover(body | {"spec": {"replicas": 4}}, live) is None
    assert handover(body, None) is None
    assert handover(body, _managed({"f:spec": {}}) | {"spec": {"replicas": 4}}) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (2, "2"),
        ("2", "2"),
        ("0.5", "0.5"),
        ("500m", "0.5"),
        ("2Gi", "2147483648"),
        ("2G", "2000000000"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("5n", "0.000000005"),
        ("-1Ki", "-1024"),
    ],
)
def test_quantity(text: int | str, value: str) -> None:
    assert quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "x", "1Xi", "1 Gi"])
def test_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        quantity(text)
