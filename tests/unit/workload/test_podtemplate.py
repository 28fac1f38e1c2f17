"""The merging rules of podTemplate, one by one."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.workload.podtemplate import merge

CASES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("mappings by key", {"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),
    ("null removes", {"a": 1, "b": {"c": 1}}, {"a": None, "b": {"c": None}}, {"b": {}}),
    ("null of nothing", {}, {"a": None}, {}),
    ("other types replace", {"a": {"x": 1}}, {"a": 2}, {"a": 2}),
    (
        "containers by name",
        {"containers": [{"name": "a", "image": "1", "tty": True}]},
        {"containers": [{"name": "b"}, {"name": "a", "image": "2"}]},
        {"containers": [{"name": "a", "image": "2", "tty": True}, {"name": "b"}]},
    ),
    (
        "variables whole",
        {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]},
        {"env": [{"name": "B", "valueFrom": {}}, {"name": "C", "value": "1"}]},
        {"env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}, {"name": "C", "value": "1"}]},
    ),
    (
        "volumes whole",
        {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]},
        {"volumes": [{"name": "shm", "hostPath": {"path": "/x"}}]},
        {"volumes": [{"name": "shm", "hostPath": {"path": "/x"}}]},
    ),
    (
        "mounts by path",
        {"volumeMounts": [{"name": "a", "mountPath": "/a"}]},
        {"volumeMounts": [{"name": "b", "mountPath": "/a"}, {"name": "a", "mountPath": "/b"}]},
        {"volumeMounts": [{"name": "b", "mountPath": "/a"}, {"name": "a", "mountPath": "/b"}]},
    ),
    ("arguments are appended", {"args": ["--a"]}, {"args": ["--b", "1"]}, {"args": ["--a", "--b", "1"]}),
    (
        "a command is replaced",
        {"command": ["vllm"]},
        {"command": ["numactl", "vllm"]},
        {"command": ["numactl", "vllm"]},
    ),
    ("other lists are replaced", {"drop": ["ALL"]}, {"drop": ["NET_RAW"]}, {"drop": ["NET_RAW"]}),
    (
        "nameless entries are appended",
        {"env": [{"name": "A"}]},
        {"env": [{"x": 1}]},
        {"env": [{"name": "A"}, {"x": 1}]},
    ),
]


@pytest.mark.parametrize(("name", "ours", "theirs", "merged"), CASES, ids=[case[0] for case in CASES])
def test_merge(name: str, ours: dict[str, Any], theirs: dict[str, Any], merged: dict[str, Any]) -> None:
    before = deepcopy((ours, theirs))
    assert merge(ours, theirs) == merged
    assert (ours, theirs) == before


_JSON = st.recursive(
    st.integers() | st.text(max_size=3) | st.booleans(),
    lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3),
    max_leaves=8,
)
_TREES = st.dictionaries(st.text("abc", min_size=1, max_size=2), _JSON, max_size=4)


@settings(max_examples=50)
@given(_TREES)
def test_nothing_laid_over_changes_nothing(tree: dict[str, Any]) -> None:
    assert merge(tree, {}) == tree
    assert merge({}, tree) == tree


@settings(max_examples=50)
@given(_TREES, _TREES)
def test_laying_over_twice_is_as_once(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    once = merge(ours, theirs)
    assert merge(once, theirs) == once
