"""The story once more with a Gateway: weights request by request, by a real implementation of HTTPRoute."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from tests.bed.processes import wait_for
from tests.node import gateway, models, story
from tests.node.deployment import manifest, serving
from tests.node.load import Load
from tests.node.models import Models
from tests.node.node import Node, Outside
from tests.node.product import VLLM
from tests.node.settings import STAND_IN_IMAGE
from tests.node.workshop import Workshop


@pytest.fixture(scope="session")
def program(outside: Outside) -> Path:
    """Traefik's, installed now where it wasn't."""
    with outside:
        return gateway.program()


def test_with_stand_ins(
    operator: Node, program: Path, workshop: Workshop, weights: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    _tell(operator, program, workshop, weights, capsys, image=STAND_IN_IMAGE, rate=20, first=10)


def test_with_vllm(
    vllm: Node, program: Path, workshop: Workshop, weights: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    _tell(vllm, program, workshop, weights, capsys, image=VLLM, rate=2, first=25)


def _tell(
    node: Node,
    program: Path,
    workshop: Workshop,
    weights: Models,
    capsys: pytest.CaptureFixture[str],
    *,
    image: str,
    rate: float,
    first: int,
) -> None:
    """Fall and promotion, at ``rate`` requests a second of which the canary's first step gets ``first`` percent."""
    models.claim_all(node, workshop.name, weights)
    resource = manifest(workshop.name, image)
    resource["spec"]["traffic"] = {"gateway": {"parentRefs": [{"name": gateway.NAME}]}}
    resource["spec"]["rollout"]["steps"] = [{"weight": first}, {"weight": 50}, {"weight": 100}]
    del resource["spec"]["rollout"]["analysis"]["connectionSplit"]  # each request counts for itself
    with gateway.traefik(program, node, workshop.name) as url, serving(node, resource) as tiny:
        # A Gateway hears of the route and of its endpoints by itself, a moment after the cluster does.
        wait_for("the Gateway", lambda: _serves(url), 30)
        with Load(url, "tiny", weights.good.cycle, rate=rate) as load:
            tiny.wait("answers", lambda: len(load.answered("first")) >= 20, 120)
            fallen = story.fall(tiny, load, 2, 1200)
            share = len(fallen.served) / sum(found.sent >= fallen.served[0].sent for found in load.outcomes)
            promoted = story.promotion(tiny, load, 3, 1800)
    with capsys.disabled():
        print(
            f"\nby request: {load.summary()}\nbad weights: {fallen}, {share:.0%} of all; promoted in {promoted:.0f} s"
        )
    assert load.failed() == [], load.summary()
    assert load.wrong() == []
    assert fallen.drained


def _serves(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
