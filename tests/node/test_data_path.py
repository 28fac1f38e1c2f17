"""What clients notice while Pods come, go and die, with the real router, proxy, kube-proxy and DNS before stand-ins."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from specdecode.api.names import ANNOTATION_BACKENDS
from tests.node.deployment import Deployment
from tests.node.load import Load
from tests.node.models import Models

RATE = 10.0


@pytest.fixture
def load(light: Deployment, weights: Models) -> Load:
    return Load(light.entry, "tiny", weights.good.cycle, rate=RATE, tokens=48)


def scale(deployment: Deployment, role: str, replicas: int) -> None:
    """Changes a role's replicas, and waits until that many Pods are ready and all routers, and no others, list them."""
    deployment.adjust({"topology": {role: {"replicas": replicas}}})
    topology = deployment.resource["spec"]["topology"]
    listed = f"{topology['prefill']['replicas']}/{topology['decode']['replicas']}"

    def reached() -> bool:
        lists = {pod["metadata"]["annotations"][ANNOTATION_BACKENDS] for pod in deployment.pods("router")}
        routers = len(deployment.ready("router")) == topology["router"]["replicas"]
        return len(deployment.ready(role)) == replicas and routers and lists == {listed}

    deployment.wait(f"{replicas} {role} Pods", reached, 180)


def settle(load: Load, seconds: float = 5.0) -> None:
    """Traffic goes on for a while."""
    time.sleep(seconds)


def test_growing_and_shrinking_lose_nothing(light: Deployment, load: Load) -> None:
    with load:
        for role in ("decode", "prefill"):
            scale(light, role, 2)
            settle(load)
            scale(light, role, 1)
            settle(load)
        gone = lambda: len(light.pods("decode")) == len(light.pods("prefill")) == 1  # noqa: E731
        light.wait("the spare Pods to go", gone, 120)
    assert load.failed() == [], load.summary()
    assert load.wrong() == []


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_a_killed_engine_loses_only_what_was_inside(
    light: Deployment, load: Load, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scale(light, role, 2)
    with load:
        settle(load)
        at = time.time()
        light.kill(role)
        light.wait("another Pod", lambda: len(light.ready(role)) == 2, 120)
        settle(load)
    lost = load.failed()
    with capsys.disabled():
        print(f"\nkilled a {role} Pod of 2, {at - load.outcomes[0].sent:.1f} s after the first: {load.summary()}")
    assert load.wrong() == []
    # A stream that had begun can't be begun again; whatever hadn't is asked once more, of another Pod.
    assert all(o.stream and o.sent < at + 1 for o in lost)


def test_a_killed_router_loses_only_what_was_inside(
    light: Deployment, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    scale(light, "router", 2)
    with load:
        settle(load)
        at = time.time()
        light.kill("router")
        light.wait("another router", lambda: len(light.ready("router")) == 2, 120)
        settle(load)
    lost = load.failed()
    with capsys.disabled():
        print(f"\nkilled a router Pod of 2, {at - load.outcomes[0].sent:.1f} s after the first: {load.summary()}")
    assert load.wrong() == []
    # Its requests, and those that the Service still sent to its address.
    assert all(o.done > at and o.sent < at + 5 for o in lost)


def test_a_deleted_router_loses_nothing(light: Deployment, load: Load) -> None:
    scale(light, "router", 2)
    name = light.ready("router")[0]["metadata"]["name"]
    with load:
        settle(load)
        light.node.kubectl("delete", "pod", name, "-n", light.namespace)  # returns when it is gone
        light.wait("another router", lambda: len(light.ready("router")) == 2, 120)
        settle(load)
    assert load.failed() == [], load.summary()
    assert load.wrong() == []


def test_ending_pods_stay_as_long_as_their_requests(
    light: Deployment, weights: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    """A promotion under long requests: each Pod of the old revision ends when its last one has, far below its grace."""
    ending: dict[str, list[float]] = {}

    def promoted() -> bool:
        now, left = time.time(), light.pods(ending=True)
        for pod in left:
            ending.setdefault(pod["metadata"]["name"], [now, now])[1] = now
        return light.stable() == 2 and light.is_true("Ready") and not left

    with Load(light.entry, "tiny", weights.good.cycle, rate=3, tokens=900) as load:
        light.wait("answers", lambda: len(load.outcomes) >= 10, 60)
        light.change("second", {})
        light.wait("the promotion", promoted, 600)
    stays = {name: last - first for name, (first, last) in ending.items()}
    slowest = max(found.done - found.sent for found in load.outcomes)
    with capsys.disabled():
        print(f"\n{load.summary()}\nended in s: " + ", ".join(f"{name} {stay:.0f}" for name, stay in stays.items()))
    assert load.failed() == [], load.summary()
    assert load.wrong() == []
    assert len(stays) >= 3, "prefill, decode and router of the old revision"
    assert slowest > 4, "requests are too short to tell"
    assert max(stays.values()) < slowest + 10


def test_serving_needs_no_api_server(light: Deployment, load: Load) -> None:
    server = light.node.process("kube-apiserver")
    with load:
        settle(load)
        os.kill(server, signal.SIGSTOP)
        try:
            settle(load, 20)
        finally:
            os.kill(server, signal.SIGCONT)
        light.wait("the API server", _answers(light), 60)
        settle(load)
    assert load.failed() == [], load.summary()
    assert load.wrong() == []


def _answers(deployment: Deployment) -> Callable[[], object]:
    def asked() -> bool:
        try:
            deployment.status()
        except OSError:
            return False
        return True

    return asked
