"""What is said of a file that a person wrote: exact lines, and never an exception."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specdecode.api import SpecDecodeDeployment, strict
from specdecode.api.crd import schema
from tests.unit.api.rule_cases import ABSENT, PLAIN, changed


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"kind": "Deployment"}, "kind: Deployment: isn't known to this version: write SpecDecodeDeployment"),
        ({"apiVersion": ABSENT}, "apiVersion: absent: is missing: write apiVersion: specdecode.dev/v1alpha1"),
        ({"metadata": {}}, "metadata.name: absent: is no name: give the resource one"),
        ({"metadata": ABSENT}, "metadata: absent: is missing: write metadata: {name: NAME}"),
        ({"metadata.label": {}}, "metadata.label: {}: is no field of the resource: did you mean labels?"),
        (
            {"metadata.labels": {"team": 7}},
            'metadata.labels.team: 7: must be a string: put it in quotes, "7"',
        ),
        (
            {"spec.speculation.dept": 3},
            "spec.speculation.dept: 3: is no field of the resource: did you mean depth?",
        ),
        (
            {"spec.topology.kv_transfer": {}},
            "spec.topology.kv_transfer: {}: is no field of the resource: did you mean kvTransfer?",
        ),
        (
            {"spec.margin": "5%"},
            "spec.margin: 5%: is no field here: it belongs to spec.rollout.analysis or "
            "spec.rollout.analysis.errors or spec.rollout.analysis.latency",
        ),
        (
            {"spec.traffic.ingress": "x"},
            "spec.traffic.ingress: x: is no field of the resource: remove it, or use one of gateway",
        ),
        ({"spec.engine.image": 3}, 'spec.engine.image: 3: must be a string: put it in quotes, "3"'),
        (
            {"spec.engine.args": {"max-model-len": 8192}},
            'spec.engine.args.max-model-len: 8192: must be a string: put it in quotes, "8192"',
        ),
        ({"spec.engine.patched": True}, 'spec.engine.patched: true: must be a string: put it in quotes, "true"'),
        ({"spec.speculation.depth": "3"}, "spec.speculation.depth: 3: must be a whole number: remove the quotes"),
        ({"spec.speculation.depth": "three"}, "spec.speculation.depth: three: must be a whole number: replace it"),
        ({"spec.speculation.depth": 2.5}, "spec.speculation.depth: 2.5: must be a whole number: rewrite it as such"),
        ({"spec.speculation.depth": True}, "spec.speculation.depth: true: must be a whole number: rewrite it as such"),
        (
            {"spec.rollout.paused": "true"},
            "spec.rollout.paused: true: must be true or false: remove the quotes",
        ),
        (
            {"spec.rollout.steps": [{"weight": 10, "pause": None}, {"weight": 100}]},
            "spec.rollout.steps[0].pause: null: has no value: write {} or remove the field",
        ),
        ({"spec.rollout.steps": []}, "spec.rollout.steps: 0 entries: has too few: write at least 1"),
        (
            {"spec.rollout.steps": [{"weight": 0}, {"weight": 100}]},
            "spec.rollout.steps[0].weight: 0: is too small: write 1 or more",
        ),
        (
            {"spec.topology.router.replicas": 99},
            "spec.topology.router.replicas: 99: is too large: write 16 or less",
        ),
        (
            {"spec.engine.image": ABSENT},
            "spec.engine.image: absent: is missing: set it (vLLM image. The project's patched image makes every "
            "tuning settable and visible; an unpatched one works with what it has. A digest is immutable; a tag is "
            "named in the condition InputsMutable)",
        ),
        ({"spec.engine.image": ""}, 'spec.engine.image: "": is empty: give a value'),
        (
            {"spec.engine.version": "1" * 17},
            "spec.engine.version: 11111111111111111: is too long: write at most 16 characters",
        ),
        (
            {"spec.speculation.hostCopy": "allways"},
            "spec.speculation.hostCopy: allways: isn't known here: write Always",
        ),
        (
            {"spec.speculation.hostCopy": "x"},
            "spec.speculation.hostCopy: x: isn't known here: write one of Auto, Always, Never",
        ),
        (
            {"spec.rollout.promotionDelay": "5 min"},
            "spec.rollout.promotionDelay: 5 min: has the wrong form: write a duration such as 30s, 5m or 1h30m",
        ),
        (
            {"spec.rollout.promotionDelay": "5m\n"},
            'spec.rollout.promotionDelay: "5m\\n": has the wrong form: write a duration such as 30s, 5m or 1h30m',
        ),
        (
            {"spec.guard.fall": "0.2"},
            "spec.guard.fall: 0.2: has the wrong form: write a percentage such as 5% or 99.5%",
        ),
        (
            {"spec.rollout.capacity.decode.maxSurge": "a lot"},
            "spec.rollout.capacity.decode.maxSurge: a lot: is too long: write at most 4 characters",
        ),
        (
            {"spec.rollout.capacity.decode.maxSurge": "2"},
            "spec.rollout.capacity.decode.maxSurge: 2: has the wrong form: write a count such as 1, or a percentage "
            "such as 25%",
        ),
        (
            {"spec.rollout.capacity.decode.maxSurge": 1.5},
            "spec.rollout.capacity.decode.maxSurge: 1.5: must be a whole number or a string: write a count or a "
            "percentage",
        ),
        (
            {"spec.engine.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
            'spec.engine.env[1]: {"name": "A", "value": "2"}: is there twice: remove one of the two',
        ),
        (
            {"spec.guard.onFall": ["Alert", "Alert"]},
            "spec.guard.onFall[1]: Alert: is there twice: remove one of the two",
        ),
        (
            {"spec.engine.cudagraphCaptureSizes": [4] * 129},
            "spec.engine.cudagraphCaptureSizes: 129 entries: has too many: keep 128 at most",
        ),
        (
            {"spec.engine.args": {f"flag-{i}": "" for i in range(65)}},
            "spec.engine.args: 65 entries: has too many: keep 64 at most",
        ),
        ({"spec.engine.args": {1: ""}}, 'spec.engine.args.1: "": is no name of a field: put it in quotes'),
        ({"spec": []}, "spec: []: must be a map of fields: rewrite it as such"),
    ],
)
def test_one_fault_is_one_line(changes: dict[str, Any], line: str) -> None:
    assert [str(fault) for fault in strict.faults(changed(changes))] == [line]


def test_every_fault_is_told_in_order() -> None:
    resource = changed(
        {"metadata.name": 3, "spec.speculation.depth": "x", "spec.engine.imge": "a", "spec.topology.decode": None}
    )
    assert [fault.path for fault in strict.faults(resource)] == [
        "metadata.name",
        "spec.speculation.depth",
        "spec.engine.imge",
        "spec.topology.decode",
    ]


@pytest.mark.parametrize("document", [None, 3, "text", [], [PLAIN]])
def test_what_is_no_map_is_no_resource(document: Any) -> None:
    (fault,) = strict.faults(document)
    assert fault.path == "document"


def test_a_null_where_a_default_stands_is_the_default() -> None:
    assert strict.faults(changed({"spec.rollout": None, "spec.engine.device": None})) == []


def test_a_resource_as_the_cluster_prints_it_has_no_fault() -> None:
    stored = changed(
        {
            "metadata.uid": "u",
            "metadata.resourceVersion": "1",
            "metadata.generation": 1,
            "metadata.managedFields": [],
            "metadata.creationTimestamp": "2026-01-01T00:00:00Z",
            "status.conditions": [],
        }
    )
    assert strict.faults(stored) == []


def test_defaults_are_those_of_the_models() -> None:
    parsed = SpecDecodeDeployment.parse(PLAIN)
    filled = SpecDecodeDeployment.parse(strict.defaulted(schema(), PLAIN))
    assert filled == parsed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def _paths(node: dict[str, Any], path: str) -> list[str]:
    below = [p for name, field in node.get("properties", {}).items() for p in _paths(field, f"{path}.{name}")]
    return [path, *below]


@given(path=st.sampled_from(_paths(schema()["properties"]["spec"], "spec")), value=JSON)
def test_what_has_no_fault_is_parsed(path: str, value: Any) -> None:
    base = strict.defaulted(schema(), changed({"spec.traffic.gateway": {"parentRefs": [{"name": "g"}]}}))
    resource = changed({path: value}, base)
    faults = strict.faults(resource)
    if faults:
        assert all(fault.path and fault.message for fault in faults)
    else:
        SpecDecodeDeployment.parse(strict.defaulted(schema(), resource))


@given(path=st.sampled_from(_paths(schema()["properties"]["spec"], "spec")), value=JSON)
def test_what_is_not_parsed_has_a_fault(path: str, value: Any) -> None:
    base = strict.defaulted(schema(), changed({"spec.traffic.gateway": {"parentRefs": [{"name": "g"}]}}))
    resource = changed({path: value}, base)
    try:
        SpecDecodeDeployment.parse(strict.defaulted(schema(), resource))
    except ValidationError:
        assert strict.faults(resource)
