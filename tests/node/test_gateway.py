"""The story once more with a Gateway: weights request by request, by a real implementation of HTTPRoute."""

from __future__ import annotations

import urllib.request

import pytest

from tests.bed.processes import wait_for
from tests.node import gateway, models, story
from tests.node.deployment import Deployment, manifest
from tests.node.load import Load
from tests.node.models import Models
from tests.node.node import Node, Outside
from tests.node.settings import STAND_IN_IMAGE
from tests.node.workshop import Workshop


def test_by_request(
    operator: Node, outside: Outside, workshop: Workshop, weights: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    with outside:
        program = gateway.program()
    models.claim_all(operator, workshop.name, weights)
    resource = manifest(workshop.name, STAND_IN_IMAGE)
    resource["spec"]["traffic"] = {"gateway": {"parentRefs": [{"name": gateway.NAME}]}}
    resource["spec"]["rollout"]["steps"] = [{"weight": 10}, {"weight": 50}, {"weight": 100}]
    del resource["spec"]["rollout"]["analysis"]["connectionSplit"]  # each request counts for itself
    tiny = Deployment(operator, resource)
    with gateway.traefik(program, operator, workshop.name) as url:
        tiny.apply()
        tiny.wait_ready(180)
        # A Gateway hears of the route and of its endpoints by itself, a moment after the cluster does.
        wait_for("the Gateway", lambda: _serves(url), 30)
        with Load(url, "tiny", weights.good.cycle, rate=20) as load:
            tiny.wait("answers", lambda: len(load.answered("first")) >= 40, 60)
            fallen = story.fall(tiny, load, 2, 300)
            share = len(fallen.served) / sum(found.sent >= fallen.served[0].sent for found in load.outcomes)
            promoted = story.promotion(tiny, load, 3, 600)
        tiny.delete()
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
