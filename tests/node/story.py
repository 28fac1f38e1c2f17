"""The acts of the story, told by what clients see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.bed.api import Json
from tests.node.deployment import Deployment
from tests.node.load import Load, Outcome
from tests.node.models import BAD, GOOD, STRANGE

DRAIN: Final = 10.0
"""Seconds after a verdict in which routers that drain may still answer those who haven't heard of it."""


@dataclass(frozen=True)
class Fall:
    """A canary that was rolled back.

    Attributes:
        served: requests that it answered, with an error or without.
        verdict: Unix seconds at which the verdict was seen.
        told: what `kubectl specdecode why` said in the end.
    """

    served: list[Outcome]
    verdict: float
    told: str

    def __str__(self) -> str:
        sent = [found.sent for found in self.served]
        late = sum(at > self.verdict for at in sent)
        after = max(sent) - self.verdict
        return (
            f"{len(sent)} requests in {max(sent) - min(sent):.1f} s, {late} of them sent after the verdict was seen, "
            f"the last {after:+.1f} s from it"
        )

    @property
    def drained(self) -> bool:
        """Whether it got nothing once its routers had drained."""
        return all(found.sent < self.verdict + DRAIN for found in self.served)


def volume(claim: str) -> Json:
    """A spec whose model is read from another claim, under the same path."""
    return {"model": {"source": {"volume": {"claimName": claim}}}}


def fall(tiny: Deployment, load: Load, revision: int, seconds: float) -> Fall:
    """Other MTP weights become a canary, fall and are rolled back: as exact as before, with hardly a draft accepted.

    Args:
        tiny: it serves the good ones.
        load: its clients.
        revision: the number that the canary gets.
        seconds: to wait for its verdict.
    """
    tiny.change("fallen", volume(BAD))
    found = _rollback(tiny, revision, seconds)
    return Fall(load.answered("fallen"), *found)


def no_handshake(tiny: Deployment, load: Load, revision: int, seconds: float) -> Fall:
    """A canary whose prefill and decode can't exchange KV: nothing is drafted, so only failing requests can tell."""
    strange = [{"name": "model", "persistentVolumeClaim": {"claimName": STRANGE, "readOnly": True}}]
    before = len(load.failed())
    tiny.change("strange", {"topology": {"decode": {"podTemplate": {"spec": {"volumes": strange}}}}})
    found = _rollback(tiny, revision, seconds)
    gone = len(load.outcomes)
    tiny.wait("more answers", lambda: len(load.outcomes) >= gone + 20, 60)
    return Fall(load.failed()[before:], *found)


def _rollback(tiny: Deployment, revision: int, seconds: float) -> tuple[float, str]:
    """When the verdict was seen, and what was told of it in the end."""
    verdict = tiny.wait("the verdict", lambda: tiny.failing() or revision in tiny.rejected(), seconds, pause=0.1)
    tiny.wait("the rollback", lambda: revision in tiny.rejected(), 300)
    tiny.wait("the end of the canary", lambda: tiny.canary() is None and not tiny.pods(revision=revision), 300)
    assert tiny.is_true("Available")
    assert tiny.condition("Stalled")[0] == "True"
    return verdict, tiny.why()


def promotion(tiny: Deployment, load: Load, revision: int, seconds: float) -> float:
    """A harmless change, the good weights with one draft token less, is promoted; seconds to it."""
    changed = tiny.change("lean", volume(GOOD) | {"speculation": {"depth": 2}})
    done = tiny.wait("the promotion", lambda: tiny.stable() == revision and tiny.is_true("Ready"), seconds)
    count = len(load.answered("lean"))
    tiny.wait("answers of the new revision", lambda: len(load.answered("lean")) >= count + 5, 120)
    return done - changed
