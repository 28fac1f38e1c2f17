"""The oracle: likelihood-ratio tests that know the traffic's exact second-order law and the size of the fall.

It judges the same sums as the operator, accepted tokens and drafts over a window, by their exact variance: from the
start as a sequential probability ratio test, for later onsets as a CUSUM over all windows that end now. Its thresholds
are set by simulation so that over the hour, at a fall of exactly the margin, it errs as often as it is allowed: it
wastes nothing on bounds. Like any test that compares arms, it sees stable's acceptance only through stable's counters.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tests.sim.law import covariance, expected_drafts, mean_accepted
from tests.sim.ours import NEVER, Counts
from tests.sim.traffic import Array, Traffic


@cache
def oracle(traffic: Traffic, looks: int, margin: float) -> Oracle:
    """The oracle of this traffic; its law takes seconds to work out."""
    return Oracle(traffic, looks, margin)


class Oracle:
    """Log likelihood ratios by run and look."""

    def __init__(self, traffic: Traffic, looks: int, margin: float) -> None:
        self.margin = margin
        self.length = 1.0 + mean_accepted(traffic)
        weight = expected_drafts(traffic, traffic.running, looks, from_empty=True)
        stable_running = traffic.running * (1.0 - traffic.weight) / traffic.weight
        others = expected_drafts(traffic, stable_running, looks, from_empty=False)
        keep = (1.0 - margin) ** 2
        stable = covariance(traffic, stable_running, looks, from_empty=False) / others[0] ** 2
        start = covariance(traffic, traffic.running, looks, from_empty=True)
        self.drafts = weight
        self.whole = whole = start + keep * weight[:, None] * stable * weight[None, :]
        # Sums of the covariance over the rectangle up to (i, j), and of the drafts up to i.
        self._area = np.zeros((looks + 1, looks + 1))
        self._area[1:, 1:] = np.cumsum(np.cumsum(whole, axis=0), axis=1)
        self._sums = np.concatenate([[0.0], np.cumsum(weight)])

    def _window(self, age: int) -> Array:
        """Variance of the mean surplus per draft over the windows of ``age`` looks, by their last look."""
        end = np.arange(age, self._sums.size)
        start = end - age
        area = self._area[end, end] - 2.0 * self._area[start, end] + self._area[start, start]
        return np.asarray(area / (self._sums[end] - self._sums[start]) ** 2)

    def surplus(self, canary: Counts, stable: Counts) -> tuple[Array, Array]:
        """(surplus, drafts) by run and look: what the canary accepts above the margin's boundary."""
        drafts, accepted = canary.drafts.sum(axis=2), canary.accepted.sum(axis=2)
        stable_length = 1.0 + stable.accepted.sum(axis=2) / np.maximum(stable.drafts.sum(axis=2), 1.0)
        return drafts + accepted - (1.0 - self.margin) * stable_length * drafts, drafts

    def from_start(self, canary: Counts, stable: Counts, shift: float) -> Array:
        """Log likelihood ratio of a length off the boundary by ``shift`` (of stable's length), from the first look."""
        surplus, drafts = self.surplus(canary, stable)
        total = np.cumsum(drafts, axis=1)
        mean = np.cumsum(surplus, axis=1) / np.maximum(total, 1.0)
        variance = np.array([self._window(age)[0] for age in range(1, drafts.shape[1] + 1)])
        return self._ratio(mean, total, variance, self._sums[1:], shift)

    def any_onset(self, canary: Counts, stable: Counts, shift: float) -> Array:
        """The largest log likelihood ratio over the windows that end at each look, by run and look."""
        surplus, drafts = self.surplus(canary, stable)
        runs, looks = surplus.shape
        sums = np.concatenate([np.zeros((runs, 1)), np.cumsum(surplus, axis=1)], axis=1)
        counts = np.concatenate([np.zeros((runs, 1)), np.cumsum(drafts, axis=1)], axis=1)
        best = np.full((runs, looks), -np.inf)
        for age in ages(looks):
            window = counts[:, age:] - counts[:, :-age]
            mean = (sums[:, age:] - sums[:, :-age]) / np.maximum(window, 1.0)
            ratio = self._ratio(mean, window, self._window(age), self._sums[age:] - self._sums[:-age], shift)
            np.maximum(best[:, age - 1 :], ratio, out=best[:, age - 1 :])
        return best

    def _ratio(self, mean: Array, drafts: Array, variance: Array, expected: Array, shift: float) -> Array:
        # The law is for the expected drafts; a window that has fewer or more is worth so much less or more.
        wanted = shift * self.length
        ratio = (wanted * mean - 0.5 * wanted**2) / variance * (drafts / expected)
        return np.where(drafts > 0.0, ratio, -np.inf)


def ages(looks: int) -> list[int]:
    """Lengths of windows, all of them to within 2 %."""
    out = [1]
    while out[-1] < looks:
        out.append(max(out[-1] + 1, int(out[-1] * 1.04)))
    return [*out[:-1], looks]


def threshold(null: Array, error: float) -> float:
    """The level that ``error`` of the runs' maxima exceed; ``null`` by run and look."""
    return float(np.quantile(null.max(axis=1), 1.0 - error))


def first_above(values: Array, level: float, after: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """First look (from 1) above the level and after ``after``; runs that were above it before count as NEVER."""
    above = values > level
    first = np.where(above.any(axis=1), above.argmax(axis=1) + 1, NEVER)
    return np.where(first <= after, NEVER, first)
