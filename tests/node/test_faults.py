"""What goes wrong in a canary, and what must be seen of it: in conditions, in `why`, at the client."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.bed.api import Json
from tests.node import models, release
from tests.node.deployment import Deployment, manifest, serving
from tests.node.load import Load
from tests.node.models import BAD, Models
from tests.node.node import Node
from tests.node.product import VLLM
from tests.node.settings import STAND_IN_IMAGE
from tests.node.workshop import Workshop

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
        light.wait(
            "the canary to be dropped, and the next promoted",
            lambda: light.canary() is None and light.is_true("Ready"),
            400,
        )
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


@pytest.mark.parametrize("role", ["decode", "prefill"])
@pytest.mark.parametrize("arm", ["stable", "canary"])
def test_an_engine_dies_in_mid_canary(
    operator: Node,
    workshop: Workshop,
    weights: Models,
    arm: str,
    role: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was inside is lost, of which the streams that had begun can't be asked again; the change is promoted.

    Of four such Pods a canary of half the traffic has two.
    """
    models.claim_all(operator, workshop.name, weights)
    resource = manifest(workshop.name, STAND_IN_IMAGE, **{"prefill": 1, "decode": 1, role: 4})
    resource["spec"]["rollout"]["capacity"][role] = {"maxSurge": 2}
    resource["spec"]["rollout"]["steps"] = [{"weight": 50, "pause": {"duration": "20s"}}, {"weight": 100}]
    with serving(operator, resource) as tiny, Load(tiny.entry, "tiny", weights.good.cycle, rate=RATE) as load:
        tiny.change("second", {})
        tiny.wait("the canary's answers", lambda: len(load.answered("second")) >= 10, 240)
        at = time.time()
        tiny.kill(role, 1 if arm == "stable" else 2)
        tiny.wait("the promotion", lambda: tiny.stable() == 2 and tiny.is_true("Ready"), 600)
        assert tiny.rejected() == {}
    with capsys.disabled():
        print(f"\nkilled {arm}'s {role} Pod, {at - load.outcomes[0].sent:.1f} s after the first: {load.summary()}")
    assert load.wrong() == []
    assert all(lost.stream and lost.sent < at + 1 for lost in load.failed()), load.summary()


def test_the_only_decode_pod_of_a_canary_dies(
    light: Deployment, weights: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can serve the canary's share: it fails until its routers are out of the entry, and stable has it all."""
    light.adjust({"rollout": {"steps": [{"weight": 50, "pause": {"duration": "20s"}}, {"weight": 100}]}})
    with Load(light.entry, "tiny", weights.good.cycle, rate=RATE) as load:
        light.change("second", {})
        light.wait("the canary's answers", lambda: len(load.answered("second")) >= 10, 240)
        at = time.time()
        light.kill("decode", 2)
        light.wait("an end", lambda: light.stable() == 2 or 2 in light.rejected(), 600)
        told = light.why()
    lost = load.failed()
    last = max((found.sent for found in lost), default=at) - at
    with capsys.disabled():
        print(f"\nthe canary's decode Pod: {load.summary()}\nthe last was sent {last:.1f} s after it\n{told}")
    assert load.wrong() == []
    assert last < 10
    # Failing requests are a verdict's business; nothing else may reject it.
    assert light.rejected() in ({}, {2: "RequestsFailing"})


def test_a_prefill_pod_of_vllm_dies_with_transfers_under_way(
    vllm: Node, workshop: Workshop, weights: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    models.claim_all(vllm, workshop.name, weights)
    with (
        serving(vllm, manifest(workshop.name, VLLM, prefill=2)) as tiny,
        Load(tiny.entry, "tiny", weights.good.cycle, rate=3) as load,
    ):
        tiny.wait("answers", lambda: len(load.answered("first")) >= 30, 120)
        at = time.time()
        tiny.kill("prefill")
        tiny.wait("another Pod", lambda: len(tiny.ready("prefill")) == 2, 300)
        tiny.wait("more answers", lambda: load.answered("first")[-1].sent > at + 5, 60)
    lost = load.failed()
    with capsys.disabled():
        print(f"\nkilled a prefill Pod of 2, {at - load.outcomes[0].sent:.1f} s after the first: {load.summary()}")
    assert load.wrong() == []
    assert all(found.stream and found.sent < at + 1 for found in lost)
