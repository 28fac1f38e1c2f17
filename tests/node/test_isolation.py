"""Who reaches an engine: its own revision's Pods, and nobody else."""

from __future__ import annotations

from typing import Final

from specdecode.api.names import ENGINE_PORT, PROXY_METRICS_PORT, PROXY_PORT, SIDE_CHANNEL_PORT, labels
from tests.bed.processes import wait_for
from tests.node.deployment import NAME, Deployment
from tests.node.load import Load
from tests.node.models import Models
from tests.node.workshop import Workshop

_CLOSED: Final = (ENGINE_PORT, SIDE_CHANNEL_PORT)


def _address(deployment: Deployment, role: str) -> str:
    (pod,) = deployment.ready(role)
    address: str = pod["status"]["podIP"]
    return address


def test_nobody_else_reaches_an_engine(light: Deployment, workshop: Workshop, weights: Models) -> None:
    prefill, decode, router = (_address(light, role) for role in ("prefill", "decode", "router"))
    workshop.pod("beside")
    workshop.pod("other", labels(NAME, 99, "decode"))
    workshop.pod("kin", labels(NAME, 1, "decode"))
    with Workshop(light.node, f"{workshop.name}-outside") as outside:
        outside.pod("stranger", labels(NAME, 1, "decode"))
        for port in _CLOSED:
            # A Pod's label is enforced within some seconds of its start.
            wait_for(
                f"kin to reach {port}", lambda port=port: workshop.reaches("kin", f"{prefill}:{port}"), 30, pause=0.5
            )
            for address in (prefill, decode):
                for room, pod in ((workshop, "beside"), (workshop, "other"), (outside, "stranger")):
                    assert not room.reaches(pod, f"{address}:{port}"), (pod, address, port)
        for room, pod in ((workshop, "beside"), (outside, "stranger")):
            assert room.reaches(pod, f"{router}:{PROXY_PORT}")
            assert not room.reaches(pod, f"{router}:{PROXY_METRICS_PORT}")
    # And what must pass does: clients to the router, the router to engines, decode to prefill's side channel.
    with Load(light.entry, "tiny", weights.good.cycle, rate=10) as load:
        light.wait("answers", lambda: len(load.outcomes) >= 20, 60)
    assert load.failed() == [], load.summary()
    assert load.wrong() == []
