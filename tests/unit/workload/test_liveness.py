"""Every leaf of the spec makes a new revision or doesn't, and `api.liveness` says which.

The leaves come from the models, so a new field fails here until somebody has decided.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Literal

import pydantic
import pytest

from specdecode.api import SpecDecodeDeployment, SpecDecodeDeploymentSpec
from specdecode.api.liveness import LIVE_PATHS, frozen
from specdecode.workload import render
from tests.unit.engine.specs import manifest

Path = tuple[str, ...]
EACH = "[]"
"""Step of a path into the entries of a list."""

ONE_VALUE: frozenset[str] = frozenset({"speculation.method"})
"""Leaves that have one value only, so far."""

_SECRET = {"name": "secret", "key": "key"}
_RICH: dict[str, Any] = {
    "model": {"name": "org/model", "revision": "main", "servedName": "served"},
    "speculation.depthByBatch": [{"upTo": 8, "depth": 3}],
    "engine.args": {"seed": "1"},
    "engine.env": [{"name": "E", "value": "1"}],
    "engine.cudagraphCaptureSizes": [4],
    "engine.apiKeySecretRef": _SECRET,
    "engine.imagePullSecrets": ["pull"],
    "topology.prefill.env": [{"name": "P", "value": "1"}],
    "topology.decode.env": [{"name": "D", "value": "1"}],
    "topology.prefill.maxReplicas": 8,
    "topology.decode.maxReplicas": 8,
    "rollout.steps": [{"weight": 10, "pause": {"duration": "1m"}}, {"weight": 100}],
    "traffic.gateway": {
        "parentRefs": [{"name": "g", "namespace": "n", "sectionName": "s", "port": 80}],
        "hostnames": ["h.example"],
    },
}
BASES: tuple[dict[str, Any], ...] = (
    {**_RICH, "model.source": {"huggingFace": {"tokenSecretRef": _SECRET}}},
    {**_RICH, "model.source": {"volume": {"claimName": "weights", "path": "glm"}}},
)
TEXTS = ("changed", "7m", "7%", "0.32.0", "v:0.33.1-specdecode")
OBJECTS: tuple[dict[str, Any], ...] = (
    {"x": "1"},
    {"metadata": {"annotations": {"x": "1"}}},
    {"fieldRef": {"fieldPath": "status.hostIP"}},
)


def _unwrap(annotation: Any) -> Any:
    """The type behind Annotated and Optional."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _unwrap(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [a for a in typing.get_args(annotation) if a is not type(None)]
        return _unwrap(inner[0]) if len(inner) == 1 else annotation
    return annotation


def _leaves(annotation: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    kind = _unwrap(annotation)
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        for name, field in kind.model_fields.items():
            yield from _leaves(field.annotation, (*path, field.alias or name))
    elif typing.get_origin(kind) is list:
        yield from _leaves(typing.get_args(kind)[0], (*path, EACH))
    else:
        yield path, kind


LEAVES: dict[str, Any] = {
    ".".join(path).replace(f".{EACH}", EACH): kind for path, kind in _leaves(SpecDecodeDeploymentSpec, ())
}


def _candidates(kind: Any, old: Any) -> Iterator[Any]:
    origin = typing.get_origin(kind)
    if origin is Literal:
        yield from (value for value in typing.get_args(kind) if value != old)
    elif origin in (typing.Union, types.UnionType):
        yield from (value for value in (7, "7%") if value != old)
    elif kind is bool:
        yield not old
    elif kind is int:
        yield from (old + 1, old * 2, old - 1)
    elif kind is str:
        yield from (text for text in TEXTS if text != old)
    else:
        assert origin is dict, f"no mutation is known for {kind}"
        yield from OBJECTS


def _put(spec: dict[str, Any], leaf: str, kind: Any) -> Iterator[dict[str, Any]]:
    """The spec with the leaf changed, in each way that its model admits; nothing where the base has no such leaf."""
    path: list[str | int] = []
    for part in leaf.split("."):
        path += [part.removesuffix(EACH), 0] if part.endswith(EACH) else [part]
    node: Any = spec
    for step in path[:-1]:
        if isinstance(step, int) and not node:
            return
        if isinstance(step, str) and step not in node:
            return
        node = node[step]
    last = path[-1]
    if isinstance(last, int) and not node:
        return
    old = node[last] if isinstance(last, int) else node.get(last, {})
    for value in _candidates(kind, old):
        changed = deepcopy(spec)
        node = changed
        for step in path[:-1]:
            node = node[step]
        node[last] = value
        yield changed


def _mutations(leaf: str) -> Iterator[tuple[SpecDecodeDeployment, SpecDecodeDeployment]]:
    for changes in BASES:
        base = SpecDecodeDeployment.parse(manifest(changes))
        full = base.spec.model_dump(by_alias=True, exclude_none=True, mode="json")
        for changed in _put(full, leaf, LEAVES[leaf]):
            try:
                spec = SpecDecodeDeploymentSpec.model_validate(changed)
            except pydantic.ValidationError:
                continue
            yield base, base.model_copy(update={"spec": spec})


def _dump(resource: SpecDecodeDeployment) -> dict[str, Any]:
    return resource.spec.model_dump(by_alias=True, exclude_none=True, mode="json")


def live(path: str) -> bool:
    """Whether a live path is this field or stands above it."""
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in LIVE_PATHS)


def _bare(leaf: str) -> str:
    return leaf.replace(EACH, "")


@pytest.mark.parametrize("leaf", sorted(LEAVES))
def test_leaf(leaf: str) -> None:
    found = [
        (
            frozen(_dump(before)) != frozen(_dump(after)),
            render(before, router_image="r:1") != render(after, router_image="r:1"),
        )
        for before, after in _mutations(leaf)
    ]
    if leaf in ONE_VALUE:
        assert found == []
        return
    assert found, f"no base has {leaf}: add it to one of BASES"
    if live(_bare(leaf)):
        assert not any(identity or rendering for identity, rendering in found)
    else:
        assert all(identity for identity, _ in found)
        assert any(rendering for _, rendering in found)


def test_live_paths_are_exactly_these() -> None:
    tops = {"guard", "rollout", "traffic"}
    named = {leaf for leaf in LEAVES if live(leaf) and leaf.partition(".")[0] not in tops}
    assert named == {
        "topology.decode.maxReplicas",
        "topology.decode.replicas",
        "topology.prefill.maxReplicas",
        "topology.prefill.replicas",
        "topology.router.replicas",
    }
    assert tops <= set(LIVE_PATHS)


def test_frozen_leaves_only_live_fields_out() -> None:
    spec = {
        "guard": {"enabled": True},
        "topology": {"decode": {"replicas": 1, "drain": "1s"}, "router": {"replicas": 2}},
    }
    assert frozen(spec) == {"topology": {"decode": {"drain": "1s"}, "router": {}}}
    # What only stands above live fields is kept, whatever it is.
    assert frozen({"topology": None}) == {"topology": None}
    assert not live("rollouts")
