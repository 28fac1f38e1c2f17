from __future__ import annotations

from typing import Any

import pytest

from specdecode.acceptance import Policy
from specdecode.api import SpecDecodeDeploymentSpec
from specdecode.api.rollout import AnalysisSpec, GuardSpec
from specdecode.rollout.policy import policy, policy_faults


def spec(analysis: dict[str, Any], guard: dict[str, Any] | None = None) -> SpecDecodeDeploymentSpec:
    return SpecDecodeDeploymentSpec.model_validate(
        {
            "model": {"name": "m"},
            "speculation": {"depth": 3},
            "engine": {"image": "i"},
            "topology": {"decode": {"replicas": 1}},
            "rollout": {"analysis": analysis},
            "guard": guard or {},
        }
    )


ELSEWHERE = {
    "analysis": {"deadline", "onDeadline", "onNoData", "connectionSplit"},
    "guard": {"enabled", "onFall"},
}
"""Fields that the planner or the controller reads, and tests of theirs."""
OTHER: dict[str, Any] = {
    "margin": "3%",
    "confidence": "95%",
    "interval": "7s",
    "minRequests": 7,
    "errors": {"margin": "4%"},
    "latency": {"margin": "12%"},
    "floor": {"acceptance": "20%"},
    "fall": "12%",
}


def test_every_field_reaches_the_policy() -> None:
    analysis = {name: value for name, value in OTHER.items() if name != "fall"}
    assert policy(spec(analysis, {"interval": "1m", "fall": OTHER["fall"]})) == Policy(
        margin=0.03,
        confidence=0.95,
        interval=7.0,
        min_requests=7,
        errors_tolerance=0.04,
        latency_margin=0.12,
        floor=0.2,
        stale_after=42.0,
        guard_interval=60.0,
        guard_fall=0.12,
    )


@pytest.mark.parametrize(("section", "model"), [("analysis", AnalysisSpec), ("guard", GuardSpec)])
def test_no_field_is_accepted_and_then_forgotten(section: str, model: type[AnalysisSpec | GuardSpec]) -> None:
    for name, field in model.model_fields.items():
        alias = field.alias or name
        if alias not in ELSEWHERE[section]:
            change = {alias: OTHER[alias]}
            changed = spec(change) if section == "analysis" else spec({}, change)
            assert policy(changed) != policy(spec({})), alias


def test_latency_that_is_only_reported_decides_nothing() -> None:
    assert policy(spec({"latency": {"mode": "Report"}})).latency_margin is None


def test_a_long_interval_makes_silence_longer() -> None:
    assert policy(spec({"interval": "20s"})).stale_after == 120.0


def test_the_defaults_are_sound() -> None:
    assert policy_faults(spec({})) == []


@pytest.mark.parametrize(
    ("analysis", "why"),
    [
        ({"margin": "60%"}, "margin is 0.6: give a number above 0 and below 0.5"),
        ({"margin": "0%"}, "margin is 0.0"),
        ({"confidence": "100%"}, "confidence is 1.0"),
        ({"interval": "10ms"}, "interval is 0.01"),
        ({"errors": {"margin": "0%"}}, "errors_tolerance is 0.0"),
        ({"latency": {"margin": "0%"}}, "latency_margin is 0.0"),
    ],
)
def test_numbers_that_no_analysis_can_work_with_are_faults(analysis: dict[str, Any], why: str) -> None:
    (fault,) = policy_faults(spec(analysis))
    assert fault.severity == "error"
    assert fault.path == "spec.rollout.analysis"
    assert why in fault.message
