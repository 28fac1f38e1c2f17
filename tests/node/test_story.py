"""The story, for real: install, apply, a fall that is caught and rolled back, a good change that is promoted.

Once with stand-ins for vLLM, and once with vLLM itself, which three engines on two cores answer slowly.
"""

from __future__ import annotations

import time

import pytest

from tests.bed.api import Json
from tests.node import models, product
from tests.node.deployment import Deployment, manifest
from tests.node.load import Load
from tests.node.models import BAD, GOOD, Models
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
    _tell(tiny, weights, capsys, rate=1.0)
    tiny.delete()


def _volume(claim: str) -> Json:
    return {"model": {"source": {"volume": {"claimName": claim}}}}


def _tell(tiny: Deployment, weights: Models, capsys: pytest.CaptureFixture[str], *, rate: float) -> None:
    with Load(tiny.entry, "tiny", weights.good.cycle, rate=rate) as load:
        tiny.wait("answers", lambda: len(load.answered("first")) >= 10, 120)

        # Other MTP weights: as exact as before, with hardly a draft accepted.
        tiny.change("second", _volume(BAD))
        tiny.wait("the rollback", lambda: 2 in tiny.rejected(), 1200)
        verdict = time.time()
        tiny.wait("the end of the canary", lambda: tiny.canary() is None and not tiny.pods(revision=2), 300)
        assert tiny.is_true("Available")
        assert tiny.condition("Stalled")[0] == "True"
        told = tiny.why()
        fallen = load.answered("second")
        assert fallen, "the canary served nothing"
        first, last = min(found.sent for found in fallen), max(found.sent for found in fallen)

        # A harmless change on the good weights.
        began = time.time()
        tiny.change("third", _volume(GOOD) | {"speculation": {"depth": 2}})
        tiny.wait("the promotion", lambda: tiny.stable() == 3 and tiny.is_true("Ready"), 1800)
        promoted = time.time() - began
        count = len(load.answered("third"))
        tiny.wait("answers of the new revision", lambda: len(load.answered("third")) >= count + 5, 120)

    with capsys.disabled():
        print(f"\n{load.summary()}")
        print(f"weight 0 at the client {last - first:.1f} s after the first bad answer was asked for,")
        print(f"{last - verdict:+.1f} s after the rejection was seen; promoted in {promoted:.0f} s\n{told}")
    assert load.failed() == [], load.summary()
    assert load.wrong() == []
    # A draining router answers those who haven't heard yet, for some seconds.
    assert last < verdict + 10
