"""The generated CRD: that the committed file is today's, and that it is structural."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel, Field, ValidationError

from specdecode.api import SpecDecodeDeploymentStatus, crd


def _nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, field in node.get("properties", {}).items():
        yield from _nodes(field, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if key in node:
            yield from _nodes(node[key], path + mark)


NODES = dict(_nodes(crd.schema()))


def test_the_committed_file_is_todays() -> None:
    assert crd.FILE.read_text(encoding="utf-8") == crd.text(), "run python -m specdecode.api.crd --write"


def test_the_file_holds_what_build_gives() -> None:
    assert yaml.safe_load(crd.text()) == crd.build()
    assert crd.build()["metadata"]["annotations"] == {"specdecode.dev/schema-hash": crd.schema_hash()}


def test_every_field_of_spec_and_status_is_described() -> None:
    silent = [path for path, node in NODES.items() if not node.get("description")]
    allowed = (".metadata", "[]", ".*")
    assert [path for path in silent if not path.endswith(allowed)] == []


def test_every_string_and_list_of_the_spec_is_bounded() -> None:
    """Or the API server can't bound what its rules cost."""
    for path, node in NODES.items():
        if not path.startswith(".spec"):
            continue
        if node.get("type") == "string":
            assert "maxLength" in node or "enum" in node or "x-kubernetes-validations" in node, path
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


def test_patterns_are_anchored() -> None:
    for path, node in NODES.items():
        if "pattern" in node:
            assert re.fullmatch(r"\^.*\$", node["pattern"]), path


def test_defaults_reach_nested_fields() -> None:
    """A nested default only applies where every object above it has a default too, or is required."""
    for path, node in NODES.items():
        parent = NODES.get(path.rpartition(".")[0])
        if parent is None or "default" not in node or path.count(".") < 3:
            continue
        above = path.rpartition(".")[0]
        named = above.rpartition(".")[2]
        required = named in NODES[above.rpartition(".")[0]].get("required", ())
        optional = above in (".spec.topology.prefill", ".spec.model.source.volume")
        assert "default" in parent or required or optional, path


def test_every_time_in_status_is_one_for_the_api_server() -> None:
    times = {path for path, node in NODES.items() if path.startswith(".status") and _is_time(path, node)}
    assert len(times) >= 8
    assert {path for path, node in NODES.items() if node.get("format") == "date-time"} == times


def _is_time(path: str, node: dict[str, Any]) -> bool:
    name = path.rpartition(".")[2]
    return name == "at" or name.endswith(("At", "Time", "Until"))


@pytest.mark.parametrize("written", ["", "yesterday", "2026-13-01T00:00:00Z"])
def test_an_unreadable_time_in_status_is_named(written: str) -> None:
    with pytest.raises(ValidationError, match=r"rollout\.startedAt"):
        SpecDecodeDeploymentStatus.model_validate({"rollout": {"startedAt": written}})


def test_status_has_no_default() -> None:
    assert [path for path, node in NODES.items() if path.startswith(".status") and "default" in node] == []


def test_defaults_as_written() -> None:
    assert NODES[".spec.rollout.steps"]["default"] == [
        {"weight": 10},
        {"weight": 50, "pause": {"duration": "5m"}},
        {"weight": 100},
    ]
    assert NODES[".spec.guard.onFall"]["default"] == ["Alert"]
    assert NODES[".spec.rollout.capacity.decode.maxSurge"]["default"] == "25%"
    assert NODES[".spec.rollout.capacity.decode.maxUnavailable"]["default"] == 0
    assert NODES[".spec.topology.decode.parallelism"]["default"] == {}
    assert "default" not in NODES[".spec.engine.env"]
    assert "default" not in NODES[".spec.topology.prefill"]


def test_a_count_or_percentage_is_int_or_string() -> None:
    assert NODES[".spec.rollout.capacity.prefill.maxSurge"] == {
        "description": NODES[".spec.rollout.capacity.prefill.maxSurge"]["description"],
        "x-kubernetes-int-or-string": True,
        "default": "25%",
        "minimum": 0,
        "maximum": 1024,
        "maxLength": 4,
        "pattern": "^(100|[0-9]{1,2})%$",
    }


def test_lists_known_by_a_field() -> None:
    for path, keys in ((".status.conditions", ["type"]), (".spec.engine.env", ["name"])):
        assert NODES[path]["x-kubernetes-list-type"] == "map"
        assert NODES[path]["x-kubernetes-list-map-keys"] == keys


class _Recursive(BaseModel):
    below: list[_Recursive] = Field(default_factory=list)


class _Union(BaseModel):
    either: Annotated[str, Field(max_length=3)] | int


class _Anything(BaseModel):
    thing: Any


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_Recursive, r"\.below\[\]: the model _Recursive contains itself"),
        (_Union, r"\.either: a union must be of int and str in this order"),
        (_Anything, r"\.thing: a field of any type has no structural schema"),
    ],
)
def test_what_has_no_structural_schema_is_refused(model: type[BaseModel], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        crd.structural(model)
