"""The Python side of every rule, on the table that the API server is tried with."""

from __future__ import annotations

from typing import Any

import pytest

from specdecode.api import SpecDecodeDeployment, checks, strict
from specdecode.api.base import Rule
from specdecode.api.crd import schema
from tests.unit.api import rule_cases
from tests.unit.api.rule_cases import CASES, PLAIN, Case


@pytest.mark.parametrize(("rule", "resource"), rule_cases.accepted())
def test_accepted(rule: Rule, resource: dict[str, Any]) -> None:
    assert strict.faults(resource) == []
    SpecDecodeDeployment.parse(resource)


@pytest.mark.parametrize(("case", "resource"), rule_cases.refused())
def test_refused_by_its_own_rule_alone(case: Case, resource: dict[str, Any]) -> None:
    (fault,) = strict.faults(resource)
    assert fault.path == case.path
    assert case.says in fault.message if case.says else fault.message == case.rule.message


def test_the_table_knows_every_rule() -> None:
    assert {case.rule for case in CASES} == set(checks.ALL)


def test_the_schema_carries_every_rule() -> None:
    found: set[str] = set()

    def visit(node: dict[str, Any]) -> None:
        found.update(v["rule"] for v in node.get("x-kubernetes-validations", ()))
        for child in [*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")]:
            if isinstance(child, dict):
                visit(child)

    visit(schema())
    assert found == set(checks.BY_CEL)


def test_an_owned_flag_is_named_with_the_field_to_set() -> None:
    resource = rule_cases.changed({"spec.engine.args": {"no-enable-expert": "", "tensor-parallel-size": "2"}})
    (fault,) = strict.faults(resource)
    assert fault.message == (
        "the operator sets these flags itself: no-enable-expert (instead: topology.<role>.parallelism.expert), "
        "tensor-parallel-size (instead: topology.<role>.parallelism.tensor); remove them"
    )


def test_the_plain_resource_has_no_fault() -> None:
    assert strict.faults(PLAIN) == []
