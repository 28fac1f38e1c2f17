"""The story once more with a Gateway: weights request by request, by a real implementation of HTTPRoute."""

from __future__ import annotations

import urllib.request

import pytest

from tests.bed.processes import wait_for
from tests.node import gateway, models
from tests.node.deployment import Deployment, manifest
from tests.node.load import Load
from tests.node.models import BAD, GOOD, Models
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
            tiny.change("second", {"model": {"source": {"volume": {"claimName": BAD}}}})
            tiny.wait("the rollback", lambda: 2 in tiny.rejected(), 300)
            tiny.wait("the end of the canary", lambda: tiny.canary() is None, 120)
            fallen = load.answered("second")
            share = len(fallen) / sum(found.sent >= fallen[0].sent for found in load.outcomes)
            seconds = max(found.sent for found in fallen) - min(found.sent for found in fallen)

            good = {"model": {"source": {"volume": {"claimName": GOOD}}}, "speculation": {"depth": 2}}
            tiny.change("third", good)
            tiny.wait("the promotion", lambda: tiny.stable() == 3 and tiny.is_true("Ready"), 600)
            count = len(load.answered("third"))
            wait_for("answers", lambda: len(load.answered("third")) >= count + 40, 60)
        tiny.delete()
    with capsys.disabled():
        print(f"\nby request: {load.summary()}; the bad revision served {len(fallen)} in {seconds:.1f} s, {share:.0%}")
    assert load.failed() == [], load.summary()
    assert load.wrong() == []


def _serves(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
