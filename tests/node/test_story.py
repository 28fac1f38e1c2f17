"""The story, for real: install, apply, a fall that is caught and rolled back, a good change that is promoted, and a
pair that can't shake hands.

Once with stand-ins for vLLM, and once with vLLM itself, which answers slowly on two cores. Served otherwise,
aggregated or by two decode Pods, it ends with the promotion.
"""

from __future__ import annotations

import pytest

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


def test_with_stand_ins(
    operator: Node, workshop: Workshop, weights: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    _tell(operator, workshop, weights, capsys, STAND_IN_IMAGE, handshake=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_other_shapes_with_stand_ins(
    operator: Node, workshop: Workshop, weights: Models, capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    _tell(operator, workshop, weights, capsys, STAND_IN_IMAGE, *SHAPES[shape])


def test_with_vllm(vllm: Node, workshop: Workshop, weights: Models, capsys: pytest.CaptureFixture[str]) -> None:
    _tell(vllm, workshop, weights, capsys, VLLM, handshake=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_other_shapes_with_vllm(
    vllm: Node, workshop: Workshop, weights: Models, capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    _tell(vllm, workshop, weights, capsys, VLLM, *SHAPES[shape])


def _tell(
    node: Node,
    workshop: Workshop,
    weights: Models,
    capsys: pytest.CaptureFixture[str],
    image: str,
    prefill: int = 1,
    decode: int = 1,
    *,
    handshake: bool = False,
) -> None:
    """Fall and promotion, and with ``handshake`` a pair that can't shake hands."""
    models.claim_all(node, workshop.name, weights)
    strange = None
    with (
        serving(node, manifest(workshop.name, image, prefill=prefill, decode=decode)) as tiny,
        Load(tiny.entry, "tiny", weights.good.cycle, rate=2 if image == VLLM else 10) as load,
    ):
        told = _fall_and_promotion(tiny, load)
        if handshake:
            strange = story.no_handshake(tiny, load, 4, 1200)
    _judge(load, capsys, told, strange)


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
