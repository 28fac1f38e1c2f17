"""Stable's record outside a canary: how noisy its acceptance is, at every window length and for every depth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from specdecode.acceptance.arm import MAX_PODS, Columns
from specdecode.acceptance.counters import Counters
from specdecode.acceptance.dispersion import Curve, Dispersion, merged
from specdecode.acceptance.types import Sample, ScrapeError

_SCALES = 9
_SAVED = ("squares", "weights", "batches")


class History:
    """Feeds on the serving revision's samples at the guard's cadence.

    Row k - 1 of its dispersion is for the first k positions, so that a canary of another depth finds the one for
    the positions that both have.
    """

    def __init__(self, interval: float = 30.0, state: Mapping[str, Any] | None = None) -> None:
        self.interval = interval
        self._counters = Counters()
        self._columns = Columns()
        self._width = 0
        self._dispersion: Dispersion | None = None
        self._past: Curve | None = None
        self._then: float | None = None
        if state and state.get("base") == interval and state["squares"]:
            rows = [np.array(state[name], dtype=float) for name in _SAVED]
            nothing = np.zeros_like(rows[0])
            self._past = Curve(interval, rows[0], rows[1], rows[2], nothing, nothing)
            self._width = rows[0].shape[0]

    def observe(self, items: Iterable[Sample | ScrapeError]) -> None:
        """Take one round of scrapes."""
        increments = []
        for item in items:
            if isinstance(item, ScrapeError) or item.source != "engine":
                continue
            increment = self._counters.advance(item)
            if increment is not None and not isinstance(increment, str) and increment.drafts > 0.0:
                increments.append(increment)
        if not increments:
            return
        now = max(i.t for i in increments)
        width = max(len(i.drafted) for i in increments)
        if self._dispersion is None or width > self._width:
            self._widen(width)
        assert self._dispersion is not None
        drafts = np.zeros((self._width, MAX_PODS))
        accepted = np.zeros((self._width, MAX_PODS))
        for i in increments:
            column = self._columns.of(i.pod, i.t)
            for k in range(len(i.drafted)):
                drafts[k, column] += i.drafts
                rates = [a / d if d > 0.0 else 0.0 for a, d in zip(i.accepted[: k + 1], i.drafted, strict=False)]
                accepted[k, column] += i.drafts * sum(rates)
        seconds = now - self._then if self._then is not None else max(i.seconds for i in increments)
        self._then = now
        self._dispersion.add(max(seconds, 0.0), drafts, accepted)

    def _widen(self, width: int) -> None:
        self._past = self._padded(self.curve(), width) if self._width else None
        self._width = width
        self._dispersion = Dispersion(self.interval, _SCALES, width, MAX_PODS)

    @staticmethod
    def _padded(curve: Curve | None, width: int) -> Curve | None:
        if curve is None:
            return None
        more = width - curve.squares.shape[0]
        return Curve(curve.base, *(np.pad(a, ((0, more), (0, 0))) for a in curve.arrays()))

    def curve(self) -> Curve | None:
        """Dispersion by scale, one row for each number of leading positions; None if nothing is known."""
        own = self._dispersion.curve() if self._dispersion is not None else None
        if self._past is None or own is None:
            return own if self._past is None else self._past
        past = self._padded(self._past, own.squares.shape[0])
        assert past is not None
        return merged(past, own)

    def of_positions(self, positions: int) -> Curve | None:
        """The row for this many leading positions."""
        curve = self.curve()
        if curve is None or not 1 <= positions <= curve.squares.shape[0]:
            return None
        row = slice(positions - 1, positions)
        return Curve(curve.base, *(a[row] for a in curve.arrays()))

    def state(self) -> dict[str, Any]:
        """JSON, restorable."""
        curve = self.curve()
        if curve is None:
            return {"base": self.interval, "squares": [], "weights": [], "batches": []}
        return {
            "base": self.interval,
            "squares": [[float(f"{x:.4g}") for x in row] for row in curve.squares],
            "weights": [[float(f"{x:.4g}") for x in row] for row in curve.weights],
            "batches": [[int(x) for x in row] for row in curve.batches],
        }
