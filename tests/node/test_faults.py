"""What goes wrong in a canary, and what must be seen of it: in conditions, in `why`, at the client."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bed.api import Json
from tests.node import release
from tests.node.deployment import Deployment
from tests.node.load import Load
from tests.node.models import BAD, Models
from tests.node.settings import STAND_IN_IMAGE

RATE = 10.0


@pytest.fixture
def load(light: Deployment, weights: Models) -> Load:
    light.adjust({"rollout": {"progressDeadline": "20s"}})
    return Load(light.entry, "tiny", weights.good.cycle, rate=RATE)


def _env(**variables: str) -> Json:
    return {"engine": {"env": [{"name": name, "value": value} for name, value in variables.items()]}}


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        (_env(STANDIN_CRASH="1"), "CrashLooping"),
        ({"engine": {"image": f"{STAND_IN_IMAGE}-missing"}}, "ImagePullFailing"),
    ],
    ids=["crash-loop", "missing-image"],
)
def test_a_canary_that_cannot_run_is_rejected(
    light: Deployment, load: Load, patch: dict[str, Any], reason: str
) -> None:
    with load:
        light.change("second", patch)
        light.wait("the rejection", lambda: light.rejected().get(2) == reason, 180)
        light.wait("the end of the canary", lambda: light.canary() is None and not light.pods(revision=2), 120)
    assert light.condition("Stalled")[0] == "True"
    assert light.is_true("Available")
    assert reason in light.why()
    assert load.failed() == [], load.summary()
    assert load.answered("second") == []


def test_a_canary_without_room_waits(light: Deployment, load: Load) -> None:
    """Stalled, with what is scarce; it goes on by itself when there is room."""
    with load:
        light.change("second", {"topology": {"decode": {"resources": {"requests": {"cpu": "64"}}}}})
        light.wait("Stalled", lambda: light.condition("Stalled")[1] == "Unschedulable", 120)
        assert "cpu" in light.condition("Stalled")[2]
        assert light.rejected() == {}
        light.change("first", {"topology": {"decode": {"resources": {"requests": {"cpu": "100m"}}}}})
        light.wait("the canary to be dropped", lambda: light.canary() is None and light.is_true("Ready"), 120)
    assert load.failed() == [], load.summary()


def test_a_metrics_port_that_hangs_gets_no_traffic(light: Deployment, load: Load) -> None:
    with load:
        light.change("second", _env(STANDIN_METRICS="hang"))
        light.wait("the canary's Pods", lambda: light.ready("decode", 2) and light.ready("prefill", 2), 120)
        light.wait("the reason", lambda: "TuningsUnseen" in str(light.status().get("conditions")), 60)
        assert "/metrics" in light.why()
    assert load.failed() == [], load.summary()
    assert load.answered("second") == []


def test_the_operator_dies_in_mid_canary(light: Deployment, load: Load) -> None:
    """Another goes on where it was."""
    with load:
        light.change("second", {"model": {"source": {"volume": {"claimName": BAD}}}})
        light.wait("the canary's Pods", lambda: light.ready("decode", 2), 120)
        selector = "specdecode.dev/component=operator"
        light.node.kubectl(*("delete", "pod", "-n", release.NAMESPACE, "-l", selector, "--force", "--grace-period=0"))
        light.wait("the rollback", lambda: 2 in light.rejected(), 240)
        light.wait("the end of the canary", lambda: light.canary() is None and not light.pods(revision=2), 120)
    assert load.failed() == [], load.summary()
    assert load.wrong() == []
