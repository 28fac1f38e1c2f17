"""The story, for real: install, apply, a fall that is caught and rolled back, a good change that is promoted, and a
pair that can't shake hands.

Once with stand-ins for vLLM, and once with vLLM itself, which three engines on two cores answer slowly.
"""

from __future__ import annotations

import pytest

from tests.node import models, product, story
from tests.node.deployment import Deployment, manifest
from tests.node.load import Load
from tests.node.models import Models
from tests.node.node import Node, Outside
from tests.node.product import VLLM
from tests.node.workshop import Workshop


def test_with_stand_ins(light: Deployment, weights: Models, capsys: pytest.CaptureFixture[str]) -> None:
    _tell(light, weights, capsys, rate=10.0)


def test_with_vllm(
    operator: Node, outside: Outside, workshop: Workshop, weights: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    with outside:
        archives = product.ensure(VLLM)
    for archive in archives:
        operator.ctr.load(archive)
    models.claim_all(operator, workshop.name, weights)
    tiny = Deployment(operator, manifest(workshop.name, VLLM))
    tiny.apply()
    tiny.wait_ready(1200)
    _tell(tiny, weights, capsys, rate=2.0)
    tiny.delete()


def _tell(tiny: Deployment, weights: Models, capsys: pytest.CaptureFixture[str], *, rate: float) -> None:
    with Load(tiny.entry, "tiny", weights.good.cycle, rate=rate) as load:
        tiny.wait("answers", lambda: len(load.answered("first")) >= 10, 120)
        fallen = story.fall(tiny, load, 2, 1200)
        assert fallen.served, "the canary served nothing"
        promoted = story.promotion(tiny, load, 3, 1800)
        assert load.failed() == [], load.summary()
        strange = story.no_handshake(tiny, load, 4, 1200)
    with capsys.disabled():
        print(f"\n{load.summary()}\nbad weights: {fallen}\n{fallen.told}")
        print(f"the good change was promoted in {promoted:.0f} s\nno handshake: {strange}\n{strange.told}")
    assert load.wrong() == []
    assert fallen.drained
    assert strange.drained
    assert strange.served, "no request of the pair without a handshake failed"
    # Every failure is the pair's own, answered by its proxy.
    assert load.failed() == strange.served, load.summary()
    assert all(found.failure.startswith("500") for found in strange.served)
    assert "RequestsFailing" in strange.told
