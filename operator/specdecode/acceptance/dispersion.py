"""How noisy accepted tokens are: the dispersion per draft as a function of the window's length.

For a window of W seconds in which an arm drafted D times and accepted A tokens, with theta the acceptance per draft,
the surplus A - theta D has variance kappa(W) D. Drafts of one request are alike, so kappa grows with W while requests
outlive the window, at most in proportion to W, and levels off above the time over which an arm's sum stays
correlated. No parametric model of requests is needed: kappa(W) is measured with batches as long as the window it is
used for (the batch-means method, at every power of two of the scrape interval at once).

The batches compared are Pods of one arm within the same stretch of time, so that what changes for all of them alike
(drift of the traffic) drops out; an arm with one Pod is compared with its own past instead. All arrays carry runs
first: the controller has one run, the bench thousands.

Sources: batch means: Law and Kelton, Simulation Modeling and Analysis; ratio estimators and their linearised
variance: Cochran, Sampling Techniques, chapter 6. docs/analysis.md derives the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Batches that a scale must have before it is believed alone; below, it is mixed with twice the next shorter scale,
# which is the most that it can be.
_PRIOR_BATCHES = 4.0
# Batches' worth of trust that the canary is no noisier than stable.
_PRIOR_CANARY = 16.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured dispersion: squared surpluses, the drafts they stand for and batches, each of shape (runs, scales).

    Scale j has batches of ``base`` * 2**j seconds.
    """

    base: float
    squares: Array
    weights: Array
    batches: Array

    @property
    def scales(self) -> int:
        """How many scales there are."""
        return int(self.squares.shape[1])


class Dispersion:
    """Batch means at all scales, online: each scale hands its full batches to the next."""

    def __init__(self, base: float, scales: int, runs: int, pods: int) -> None:
        """``base``: seconds of the shortest batch. State is of size runs * scales * pods."""
        self.base = base
        self.squares: Array = np.zeros((runs, scales))
        self.weights: Array = np.zeros((runs, scales))
        self.batches: Array = np.zeros((runs, scales))
        self._drafts: Array = np.zeros((scales, runs, pods))
        self._accepted: Array = np.zeros((scales, runs, pods))
        self._elapsed = [0.0] * scales
        self._past_drafts: Array = np.zeros(runs)
        self._past_accepted: Array = np.zeros(runs)

    def add(self, seconds: float, drafts: Array, accepted: Array) -> None:
        """Take one look's increments, both of shape (runs, pods), that span ``seconds``."""
        self._past_drafts += drafts.sum(axis=1)
        self._past_accepted += accepted.sum(axis=1)
        for scale in range(len(self._elapsed)):
            self._drafts[scale] += drafts
            self._accepted[scale] += accepted
            self._elapsed[scale] += seconds
            # Half a base interval of slack: scrapes are never exactly on time.
            if self._elapsed[scale] < self.base * (2.0**scale - 0.5):
                return
            drafts, accepted, seconds = self._drafts[scale], self._accepted[scale], self._elapsed[scale]
            self._score(scale, drafts, accepted)
            self._drafts[scale] = np.zeros_like(drafts)
            self._accepted[scale] = np.zeros_like(accepted)
            self._elapsed[scale] = 0.0

    def _score(self, scale: int, drafts: Array, accepted: Array) -> None:
        total, taken = drafts.sum(axis=1), accepted.sum(axis=1)
        alone = np.count_nonzero(drafts, axis=1) < 2
        # One Pod: the rest of the arm's past is the other group.
        whole = np.where(alone, self._past_drafts, total)
        mean = np.divide(
            np.where(alone, self._past_accepted, taken), whole, out=np.zeros_like(whole), where=whole > 0.0
        )
        surplus = accepted - mean[:, None] * drafts
        share = np.divide(drafts, whole[:, None], out=np.zeros_like(drafts), where=whole[:, None] > 0.0)
        weight = (drafts * (1.0 - share)).sum(axis=1)
        # An arm's first batch has no past to be compared with.
        usable = weight > 1e-9
        self.squares[:, scale] += np.where(usable, (surplus**2).sum(axis=1), 0.0)
        self.weights[:, scale] += np.where(usable, weight, 0.0)
        groups = np.count_nonzero(drafts, axis=1) - np.where(alone, 0, 1)
        self.batches[:, scale] += np.where(usable, groups, 0)

    def curve(self) -> Curve:
        """What has been measured."""
        return Curve(self.base, self.squares.copy(), self.weights.copy(), self.batches.copy())


def resampled(curve: Curve, base: float, scales: int) -> Curve:
    """The same measurement on another grid of scales: each takes what the next longer measured one knows.

    Scales above the longest measured one come out empty. A shorter window's kappa is never above a longer one's, so
    this is cautious.
    """
    runs = curve.squares.shape[0]
    out = [np.zeros((runs, scales)) for _ in range(3)]
    for scale in range(scales):
        j = int(np.ceil(np.log2(base * 2.0**scale / curve.base) - 0.01))
        # Below half of the shortest measured batch it isn't knowledge any more.
        if 0 <= j < curve.scales:
            for into, source in zip(out, (curve.squares, curve.weights, curve.batches), strict=True):
                into[:, scale] = source[:, j]
    return Curve(base, *out)


def merged(first: Curve, second: Curve) -> Curve:
    """Both measurements together; their grids must be the same."""
    if first.base != second.base or first.scales != second.scales:
        raise ValueError("two dispersion curves on different grids can't be merged: resample one of them first")
    return Curve(
        first.base,
        first.squares + second.squares,
        first.weights + second.weights,
        first.batches + second.batches,
    )


def kappa(curve: Curve) -> Array:
    """Dispersion per draft by scale, shape (runs, scales); NaN in runs that know nothing.

    A scale with few batches leans towards twice the next shorter one, and every scale is held between once and twice
    that: kappa can't fall with the window's length, nor grow faster than it.
    """
    known = curve.batches > 0.0
    raw = np.divide(curve.squares, curve.weights, out=np.full_like(curve.squares, np.nan), where=curve.weights > 0.0)
    out = np.full_like(raw, np.nan)
    # Shorter than anything measured: as noisy as the shortest measured scale.
    first = np.argmax(known, axis=1)
    start = np.where(known.any(axis=1), np.take_along_axis(raw, first[:, None], axis=1)[:, 0], np.nan)
    previous = start
    for scale in range(curve.scales):
        count = curve.batches[:, scale]
        most = 2.0 * previous
        leaning = (count * np.where(known[:, scale], raw[:, scale], 0.0) + _PRIOR_BATCHES * most) / (
            count + _PRIOR_BATCHES
        )
        value = np.where(scale <= first, start, np.clip(leaning, previous, most))
        out[:, scale] = value
        previous = value
    return out


def guarded(stable: Array, canary: Curve) -> Array:
    """The canary's kappa by scale: stable's, or more where the canary's own batches are the noisier.

    ``stable`` is kappa of the stable arm, (runs, scales). The canary's excess is one factor for all scales, and
    counts for nothing until it has batches to show for it.
    """
    own = np.divide(canary.squares, canary.weights, out=np.zeros_like(canary.squares), where=canary.weights > 0.0)
    known = (canary.batches > 0.0) & np.isfinite(stable) & (stable > 0.0)
    count = np.where(known, canary.batches, 0.0)
    relative = np.where(known, own / np.where(known, stable, 1.0), 0.0)
    factor = (_PRIOR_CANARY + (count * relative).sum(axis=1)) / (_PRIOR_CANARY + count.sum(axis=1))
    return np.asarray(stable * np.maximum(1.0, factor)[:, None])


def at_window(kappas: Array, base: float, windows: Array) -> Array:
    """kappa at windows of the given seconds, shape (runs, windows): geometric between scales, linear in W above."""
    position = np.log2(np.maximum(windows, base) / base)
    low = np.minimum(position.astype(int), kappas.shape[1] - 1)
    high = np.minimum(low + 1, kappas.shape[1] - 1)
    part = np.where(high > low, position - low, 0.0)
    inside = kappas[:, low] ** (1.0 - part) * kappas[:, high] ** part
    beyond = np.maximum(position - (kappas.shape[1] - 1), 0.0)
    return np.asarray(inside * 2.0**beyond)
