"""Stable's record outside a canary: how noisy its acceptance is, at every window length and for every depth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from specdecode.acceptance.arm import MAX_PODS, Columns
from specdecode.acceptance.counters import Counters
from specdecode.acceptance.dispersion import Array, Curve, Dispersion, known, merged, resampled
from specdecode.acceptance.types import Sample, ScrapeError

_SCALES = 9
# Intervals of the cadence.
_TOO_LONG = 1.5
# Intervals without a draft after which there is nothing to learn from, and rounds after which traffic has shown itself
# too sparse for it.
_QUIET, _PATIENCE = 4.0, 2000
_SAVED = ("squares", "weights", "batches")


class Record:
    """Batch means by number of leading positions, on one grid of scales, over this process and those before it.

    Row k - 1 is for the first k positions.
    """

    def __init__(self, base: float, scales: int, state: Mapping[str, Any] | None) -> None:
        """``base``: seconds of the shortest batch; a state with another one is dropped."""
        self.base = base
        self._scales = scales
        self._width = 0
        self._dispersion: Dispersion | None = None
        self._past: Curve | None = None
        if state and state.get("base") == base and state["squares"]:
            rows = [np.array(state[name], dtype=float) for name in _SAVED]
            self._past = Curve.without_steps(base, *rows)
            self._width = rows[0].shape[0]

    def add(self, seconds: float, drafts: Array, accepted: Array) -> None:
        """Take increments of shape (positions, Pods) over ``seconds``; fewer positions than before are filled up."""
        width = drafts.shape[0]
        if self._dispersion is None or width > self._width:
            self._past = self._padded(self.curve(), max(width, self._width)) if self._width else None
            self._width = max(width, self._width)
            self._dispersion = Dispersion(self.base, self._scales, self._width, MAX_PODS)
        fill = ((0, self._width - width), (0, 0))
        self._dispersion.add(seconds, np.pad(drafts, fill), np.pad(accepted, fill))

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
            return {"base": self.base, "squares": [], "weights": [], "batches": []}
        return {
            "base": self.base,
            "squares": [[float(f"{x:.4g}") for x in row] for row in curve.squares],
            "weights": [[float(f"{x:.4g}") for x in row] for row in curve.weights],
            "batches": [[int(x) for x in row] for row in curve.batches],
        }


class History:
    """Feeds on the serving revision's samples at the guard's cadence, which come in pairs an analysis interval apart.

    The short batch between the two of a pair is one that a canary's first looks are as long as; what lies between it
    and the guard's interval isn't measured. While it is ``learning``, samples that come an analysis interval apart all
    the time are welcome.
    """

    def __init__(
        self, interval: float = 30.0, short: float | None = None, state: Mapping[str, Any] | None = None
    ) -> None:
        """``interval``: seconds from pair to pair; ``short``: from one of a pair to the other, None without pairs."""
        self.interval = interval
        self.short = short
        self._counters = Counters()
        self._columns = Columns()
        self._then: float | None = None
        self._long = Record(interval, _SCALES, state)
        self._short = Record(short, 1, (state or {}).get("short")) if short is not None else None
        # Positions when there were drafts last, that time, the last round's, and how many rounds there were.
        self._width = 0
        self._drafted = self._heard = 0.0
        self._rounds = 0

    @property
    def learning(self) -> bool:
        """Whether the noise of a canary's first looks isn't known, though there is traffic to learn it from.

        A canary that began now would have to wait for it.
        """
        quiet = self._heard - self._drafted > _QUIET * self.interval
        if self._short is None or not self._width or quiet or self._rounds > _PATIENCE:
            return False
        curve = self._short.of_positions(self._width)
        return curve is None or bool(known(curve)[0] < 1.0)

    def observe(self, items: Iterable[Sample | ScrapeError]) -> None:
        """Take one round of scrapes."""
        increments = []
        self._rounds += 1
        for item in items:
            if isinstance(item, ScrapeError) or item.source != "engine":
                continue
            self._heard = max(self._heard, item.t)
            increment = self._counters.advance(item)
            if increment is not None and not isinstance(increment, str) and increment.drafts > 0.0:
                increments.append(increment)
        if not increments:
            return
        now = self._drafted = max(i.t for i in increments)
        width = self._width = max(len(i.drafted) for i in increments)
        drafts = np.zeros((width, MAX_PODS))
        accepted = np.zeros((width, MAX_PODS))
        for i in increments:
            column = self._columns.of(i.pod, i.t)
            for k in range(len(i.drafted)):
                drafts[k, column] += i.drafts
                rates = [a / d if d > 0.0 else 0.0 for a, d in zip(i.accepted[: k + 1], i.drafted, strict=False)]
                accepted[k, column] += i.drafts * sum(rates)
        seconds = now - self._then if self._then is not None else max(i.seconds for i in increments)
        self._then = now
        if seconds > _TOO_LONG * self.interval:
            # A canary, or scrapes that failed, lie between: no batch of the cadence.
            return
        self._long.add(max(seconds, 0.0), drafts, accepted)
        if self._short is not None and 0.5 * self._short.base < seconds < _TOO_LONG * self._short.base:
            self._short.add(seconds, drafts, accepted)

    def known(self, positions: int, base: float, scales: int) -> Curve | None:
        """What is known of this many leading positions, on the grid of ``scales`` from ``base`` seconds."""
        records = (self._long, self._short) if self._short is not None else (self._long,)
        found = [curve for record in records if (curve := record.of_positions(positions)) is not None]
        if not found:
            return None
        return reduce(merged, (resampled(curve, base, scales) for curve in found))

    def state(self) -> dict[str, Any]:
        """JSON, restorable."""
        short = {} if self._short is None else {"short": self._short.state()}
        return self._long.state() | short
