"""The story, for real: install, apply, a fall that is caught and rolled back, a good change that is promoted, and a
pair that can't shake hands.

Once with stand-ins for vLLM, and once with vLLM itself, which answers slowly on two cores. Served otherwise,
aggregated or by two decode Pods, it ends with the promotion.
"""

from __future__ import annotations

import pytest

from tests.bed.api import Json
from tests.node import models, story
from tests.node.deployment import Deployment, manifest, serving
from tests.node.load import Load
from tests.node.models import Models
from tests.node.node import Node
from tests.node.product import VLLM
from tests.node.settings import STAND_IN_IMAGE
from tests.node.workshop import Workshop

SHAPES = {"aggregated": (0, 1), "1P2D": (1, 2)}
"""Prefill and decode Pods."""


def test_with_stand_ins(light: Deployment, weights: Models, capsys: pytest.CaptureFixture[str]) -> None:
    with Load(light.entry, "tiny", weights.good.cycle, rate=10) as load:
        told = _fall_and_promotion(light, load)
        strange = story.no_handshake(light, load, 4, 1200)
    _judge(load, capsys, told, strange)


@pytest.mark.parametrize("shape", SHAPES)
def test_other_shapes_with_stand_ins(
    operator: Node, workshop: Workshop, weights: Models, capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    with (
        serving(operator, _shaped(operator, workshop, weights, STAND_IN_IMAGE, *SHAPES[shape])) as tiny,
        Load(tiny.entry, "tiny", weights.good.cycle, rate=10) as load,
    ):
        told = _fall_and_promotion(tiny, load)
    _judge(load, capsys, told)


def test_with_vllm(vllm: Node, workshop: Workshop, weights: Models, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        serving(vllm, _shaped(vllm, workshop, weights, VLLM, 1, 1)) as tiny,
        Load(tiny.entry, "tiny", weights.good.cycle, rate=2) as load,
    ):
        told = _fall_and_promotion(tiny, load)
        strange = story.no_handshake(tiny, load, 4, 1200)
    _judge(load, capsys, told, strange)


@pytest.mark.parametrize("shape", SHAPES)
def test_other_shapes_with_vllm(
    vllm: Node, workshop: Workshop, weights: Models, capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    with (
        serving(vllm, _shaped(vllm, workshop, weights, VLLM, *SHAPES[shape])) as tiny,
        Load(tiny.entry, "tiny", weights.good.cycle, rate=2) as load,
    ):
        told = _fall_and_promotion(tiny, load)
    _judge(load, capsys, told)


def _shaped(node: Node, workshop: Workshop, weights: Models, image: str, prefill: int, decode: int) -> Json:
    models.claim_all(node, workshop.name, weights)
    return manifest(workshop.name, image, prefill=prefill, decode=decode)


def _fall_and_promotion(tiny: Deployment, load: Load) -> tuple[story.Fall, float]:
    tiny.wait("answers", lambda: len(load.answered("first")) >= 10, 120)
    fallen = story.fall(tiny, load, 2, 1200)
    promoted = story.promotion(tiny, load, 3, 1800)
    assert load.failed() == [], load.summary()
    return fallen, promoted


def _judge(
    load: Load,
    capsys: pytest.CaptureFixture[str],
    told: tuple[story.Fall, float],
    strange: story.Fall | None = None,
) -> None:
    fallen, promoted = told
    with capsys.disabled():
        print(f"\n{load.summary()}\nbad weights: {fallen}\n{fallen.told}")
        print(f"the good change was promoted in {promoted:.0f} s")
        if strange:
            print(f"no handshake: {strange}\n{strange.told}")
    assert load.wrong() == []
    assert fallen.served, "the canary served nothing"
    assert fallen.drained
    # Every failure is the pair's own, answered by its proxy.
    assert load.failed() == (strange.served if strange else []), load.summary()
    if strange:
        assert strange.served, "no request of the pair without a handshake failed"
        assert strange.drained
        assert all(found.failure.startswith(("500", "cut after 0 tokens")) for found in strange.served)
        assert "RequestsFailing" in strange.told
