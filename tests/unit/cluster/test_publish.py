from __future__ import annotations

from typing import Any

from specdecode.acceptance import Reason, Suspicion
from specdecode.api import SpecDecodeDeployment, SpecDecodeDeploymentStatus
from specdecode.cluster.publish import publish
from specdecode.rollout.types import ArmObserved, Plan, PodObserved, RoleObserved, Snapshot
from specdecode.telemetry import Metrics

STATUS: dict[str, Any] = {
    "stable": {"revision": 1},
    "canary": {"revision": 2},
    "weight": {"asked": 50, "reached": 25},
    "verdict": {"revision": 2, "verdict": "Inconclusive", "reason": "NotEnoughEvidence", "at": "2026-01-01T00:00:00Z"},
    "baseline": {"revision": 1, "length": "3.49"},
    "tunings": [{"role": "decode", "revision": 1, "depth": "3"}, {"role": "decode", "revision": 2, "depth": "4"}],
    "conditions": [
        {"type": "Ready", "status": "False", "reason": "Analysing", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ],
}
SUMMARIES = {
    1: {"length": 3.5, "positions": (0.9, 0.8), "drafts": 100.0, "requests": 5.0, "interval": None},
    2: {"length": 3.4, "positions": (0.9, 0.7), "drafts": 10.0, "requests": 1.0, "interval": (3.1, 3.6)},
}


def published(status: dict[str, Any], metrics: Metrics, guard: Suspicion | None = None) -> None:
    resource = SpecDecodeDeployment.parse(
        {
            "metadata": {"name": "glm", "namespace": "a"},
            "spec": {
                "model": {"name": "m"},
                "speculation": {"depth": 3},
                "engine": {"image": "i"},
                "topology": {"prefill": {"replicas": 2}, "decode": {"maxReplicas": 9}},
            },
        }
    )
    pods = (PodObserved("p", "u", ready=True), PodObserved("q", "v"))
    arms = {1: ArmObserved(1, decode=RoleObserved(exists=True, replicas=2, pods=pods))}
    plan = Plan(status=SpecDecodeDeploymentStatus.model_validate(status))
    publish(metrics, Snapshot(resource=resource, now=0.0, arms=arms, guard=guard), plan, SUMMARIES, {1: 70.0})


def test_a_first_revision_has_the_baseline_that_the_guard_goes_by() -> None:
    metrics = Metrics("test")
    published(STATUS | {"baseline": None}, metrics, Suspicion(False, Reason.ACCEPTANCE_HELD, "", 3.4, 3.44))
    labels = {"namespace": "a", "name": "glm"}
    assert metrics.registry.get_sample_value("specdecode_baseline_acceptance_length", labels) == 3.44


def test_a_resource_s_gauges() -> None:
    metrics = Metrics("test")
    published(STATUS, metrics)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"specdecode_{name}", {"namespace": "a", "name": "glm"} | labels)

    stable, canary = {"revision": "1", "arm": "stable"}, {"revision": "2", "arm": "canary"}
    assert value("acceptance_length", **stable) == 3.5
    assert value("acceptance_length_low", **stable) is None
    assert value("acceptance_length_low", **canary) == 3.1
    assert value("acceptance_length_high", **canary) == 3.6
    assert value("position_acceptance_ratio", **canary, position="2") == 0.7
    assert value("drafts_total", **stable) == 70.0
    assert value("traffic_weight_asked_ratio") == 0.5
    assert value("traffic_weight_reached_ratio") == 0.25
    assert [value("verdict", verdict=v) for v in ("Pass", "Fail", "Inconclusive", "NoData")] == [0.0, 0.0, 1.0, 0.0]
    assert value("baseline_acceptance_length") == 3.49
    assert value("ready_pods", role="decode", arm="stable") == 1.0
    assert value("wanted_pods", role="prefill") == 2.0
    assert value("wanted_pods", role="decode") is None
    assert value("tunings_effective", role="decode", tuning="depth", value="3") == 1.0
    assert value("tunings_effective", role="decode", tuning="depth", value="4") is None
    assert value("condition", type="Ready", status="False") == 1.0


def test_what_no_longer_holds_vanishes() -> None:
    metrics = Metrics("test")
    published(STATUS, metrics)
    published({"stable": {"revision": 2}}, metrics)
    lengths = metrics.registry.get_sample_value
    labels = {"namespace": "a", "name": "glm"}
    assert lengths("specdecode_acceptance_length", labels | {"revision": "2", "arm": "canary"}) is None
    assert lengths("specdecode_acceptance_length", labels | {"revision": "2", "arm": "stable"}) == 3.4
    assert lengths("specdecode_verdict", labels | {"verdict": "Pass"}) is None
