"""Acceptance of one revision over the last minutes, for display. Pure; the verdict rests on other things."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from specdecode.acceptance import Counters, Increment, Sample

SPAN: Final = 300.0
"""Seconds that are summed up."""


class Recent:
    """A sliding sum of what a revision's decode Pods drafted and had accepted."""

    def __init__(self) -> None:
        self._counters = Counters()
        self._window: deque[Increment] = deque()
        self.total = 0.0
        """Drafts counted since the beginning."""

    def observe(self, samples: Iterable[Sample]) -> None:
        """Take one round of samples of the revision's decode Pods."""
        for sample in samples:
            increment = self._counters.advance(sample)
            if isinstance(increment, Increment):
                self._window.append(increment)
                self.total += increment.drafts

    def summary(self, now: float) -> dict[str, Any] | None:
        """Positions, length, drafts and requests of the last minutes; None while nothing was drafted."""
        while self._window and self._window[0].t < now - SPAN:
            self._window.popleft()
        width = max((len(i.drafted) for i in self._window), default=0)
        accepted, drafted = [0.0] * width, [0.0] * width
        for increment in self._window:
            for k, (a, d) in enumerate(zip(increment.accepted, increment.drafted, strict=False)):
                accepted[k] += a
                drafted[k] += d
        if not width or drafted[0] <= 0.0:
            return None
        positions = tuple(a / d if d > 0.0 else 0.0 for a, d in zip(accepted, drafted, strict=True))
        return {
            "positions": positions,
            "length": 1.0 + sum(positions),
            "drafts": sum(i.drafts for i in self._window),
            "requests": sum(i.finished or 0.0 for i in self._window),
            "interval": None,
        }
