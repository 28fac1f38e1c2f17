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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# What the neighbouring scales count for, in batches, beside a scale's own.
_PRIOR_BATCHES = 12.0
# Batches of one scale without which nothing is known: a handful can seem calm by chance.
_LEAST_BATCHES = 68.0
# Where a short scale has too few batches of its own, kappa is taken to rise with W to this power below the first
# scale that has: between the 0 of noise in single drafts and the 1 of requests that outlast the window.
_SHORTER = 0.5
# Batches at the scale above from which the growth over the next is that power instead, and what it then counts for,
# in batches: what requests add to kappa grows the more steeply the shorter the window, and the noise of single drafts,
# at most about this, doesn't grow at all.
_MANY_BATCHES = 48.0
DRAFT_NOISE = 2.0
# Growth from one scale to the next, as a power of the growth before it: kappa levels off.
_DAMPING = 0.8
# Nats of evidence at which a Fail and a Pass usually fall: what the uncertainty of kappa is priced at.
_FAIL_CAUTION, _PASS_CAUTION = 5.0, 3.0
# What the neighbouring scales add to what is known of a scale, in batches: less than they count for, being uncertain
# themselves.
_LEANT_FAIL, _LEANT_PASS = 6.0, 12.0
# Scales at which an arm's own steps are compared: several requests come and go, and a fall is one step of many.
_GUARD_SCALES = (1, 2, 3)
# Squares of an arm's own steps at one scale without which its two largest can't be left out.
_LEAST_JUMPS = 4.0
# Batches whose mean square has a relative standard error of 1, tails and overlap of the scales allowed for; for Pass
# on the safe side.
_FAIL_BATCHES, _PASS_BATCHES = 4.0, 8.0
_TINY = 1e-300
_LOG2 = float(np.log(2.0))


_SUMS = ("squares", "weights", "batches", "steps", "step_weights", "jumps", "jumpers")
_PARTIAL = ("_drafts", "_accepted", "_before_drafts", "_before_accepted")


def _figures(row: Array) -> list[float]:
    return [int(x) if x == int(x) else float(f"{x:.7g}") for x in (float(v) for v in row)]


def _rows(name: str, scales: int) -> int:
    return max(_GUARD_SCALES) + 1 if name.startswith("_before") else scales


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured dispersion: squared surpluses, the drafts they stand for and batches, each of shape (runs, scales).

    Scale j has batches of ``base`` * 2**j seconds. ``steps`` and ``step_weights`` are squares and drafts of each
    Pod's batches against its own batch before, without the two largest: a single jump, such as a fall, touches no
    more than two, so the rest tell a noisy arm from one that fell. ``jumps`` counts the squares, and ``jumpers`` the
    Pods in them.
    """

    base: float
    squares: Array
    weights: Array
    batches: Array
    steps: Array
    step_weights: Array
    jumps: Array
    jumpers: Array

    @classmethod
    def without_steps(cls, base: float, squares: Array, weights: Array, batches: Array) -> Curve:
        """A measurement of which only the dispersion is kept."""
        return cls(base, squares, weights, batches, *(np.zeros_like(squares) for _ in range(4)))

    def arrays(self) -> tuple[Array, ...]:
        """All measurements."""
        return self.squares, self.weights, self.batches, self.steps, self.step_weights, self.jumps, self.jumpers

    def row(self, run: int) -> Curve:
        """One run's."""
        return Curve(self.base, *(values[run : run + 1] for values in self.arrays()))

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
        self.steps: Array = np.zeros((runs, scales))
        self.step_weights: Array = np.zeros((runs, scales))
        self.jumps: Array = np.zeros((runs, scales))
        self.jumpers: Array = np.zeros((runs, scales))
        self._peaks: Array = np.zeros((2, runs, scales))
        self._drafts: Array = np.zeros((scales, runs, pods))
        self._accepted: Array = np.zeros((scales, runs, pods))
        self._before_drafts: Array = np.zeros((scales, runs, pods))
        self._before_accepted: Array = np.zeros((scales, runs, pods))
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
            # Half an increment of slack, of those that are shorter than a batch: scrapes are never exactly on time.
            if self._elapsed[scale] < self.base * 2.0**scale - 0.5 * min(seconds, self.base):
                return
            drafts, accepted = self._drafts[scale].copy(), self._accepted[scale].copy()
            seconds = self._elapsed[scale]
            self._score(scale, drafts, accepted)
            if scale in _GUARD_SCALES:
                self._score_step(scale, drafts, accepted)
            self._drafts[scale] = 0.0
            self._accepted[scale] = 0.0
            self._elapsed[scale] = 0.0

    def _score(self, scale: int, drafts: Array, accepted: Array) -> None:
        total, taken = drafts.sum(axis=1), accepted.sum(axis=1)
        groups = (drafts > 0.0).sum(axis=1)
        alone = groups < 2
        if alone.any():
            # One Pod: the rest of the arm's past is the other group.
            total = np.where(alone, self._past_drafts, total)
            taken = np.where(alone, self._past_accepted, taken)
        whole = np.maximum(total, 1e-9)
        surplus = accepted - (taken / whole)[:, None] * drafts
        weight = np.where(alone, drafts.sum(axis=1), total) - (drafts * drafts).sum(axis=1) / whole
        # An arm's first batch has no past to be compared with.
        usable = (total > 0.0) & (weight > 1e-9)
        self.squares[:, scale] += usable * (surplus * surplus).sum(axis=1)
        self.weights[:, scale] += usable * weight
        self.batches[:, scale] += usable * (groups - ~alone)

    def _score_step(self, scale: int, drafts: Array, accepted: Array) -> None:
        before, taken = self._before_drafts[scale], self._before_accepted[scale]
        both = np.maximum(drafts + before, 1e-9)
        weight = drafts * before / both
        surplus = np.where(weight > 0.0, accepted - (accepted + taken) / both * drafts, 0.0)
        square = (surplus * surplus).sum(axis=1)
        self.steps[:, scale] += square
        first, second = self._peaks[0, :, scale], self._peaks[1, :, scale]
        self._peaks[1, :, scale] = np.maximum(second, np.minimum(first, square))
        self._peaks[0, :, scale] = np.maximum(first, square)
        self.step_weights[:, scale] += weight.sum(axis=1)
        jumpers = (weight > 0.0).sum(axis=1)
        self.jumps[:, scale] += jumpers > 0
        self.jumpers[:, scale] += jumpers
        self._before_drafts[scale], self._before_accepted[scale] = drafts, accepted

    def select(self, runs: NDArray[np.bool_]) -> None:
        """Keep these runs only."""
        for name in (*_SUMS, "_past_drafts", "_past_accepted"):
            setattr(self, name, getattr(self, name)[runs])
        for name in ("_drafts", "_accepted", "_before_drafts", "_before_accepted", "_peaks"):
            setattr(self, name, getattr(self, name)[:, runs])

    def state(self, run: int, pods: int) -> dict[str, Any]:
        """JSON of a run, with the batches under way of the first ``pods`` Pods; 0 leaves those out."""
        saved: dict[str, Any] = {name: _figures(getattr(self, name)[run]) for name in _SUMS}
        saved["_peaks"] = [_figures(row) for row in self._peaks[:, run]]
        saved["_past"] = [float(self._past_drafts[run]), float(self._past_accepted[run])]
        saved["_elapsed"] = [round(x, 2) for x in self._elapsed] if pods else []
        if pods:
            # A batch of each scale holds the drafts since its start, so most are 0 or alike: few digits suffice.
            for name in _PARTIAL:
                saved[name] = [
                    _figures(row[run, :pods]) for row in getattr(self, name)[: _rows(name, len(self._elapsed))]
                ]
        return saved

    def restore(self, run: int, state: Mapping[str, Any], *, under_way: bool) -> None:
        """Take what ``state()`` gave of a run; batches ``under_way`` span the same time in all runs, or are dropped."""
        for name in _SUMS:
            getattr(self, name)[run] = state[name]
        self._peaks[:, run] = state["_peaks"]
        self._past_drafts[run], self._past_accepted[run] = state["_past"]
        if under_way and state["_elapsed"]:
            self._elapsed = [float(x) for x in state["_elapsed"]]
            for name in _PARTIAL:
                for scale, row in enumerate(state[name]):
                    getattr(self, name)[scale, run, : len(row)] = row

    def curve(self) -> Curve:
        """What has been measured."""
        return Curve(
            self.base,
            self.squares.copy(),
            self.weights.copy(),
            self.batches.copy(),
            self.steps - self._peaks.sum(axis=0),
            self.step_weights.copy(),
            self.jumps.copy(),
            self.jumpers.copy(),
        )


def resampled(curve: Curve, base: float, scales: int) -> Curve:
    """The same measurement on another grid of scales, kappa geometric and batches linear between the measured ones.

    Scales shorter or longer than the measured ones come out empty, and so do the steps: they are compared between
    arms at the very same length of batch only.
    """
    runs = curve.squares.shape[0]
    arrays = [np.zeros((runs, scales)) for _ in curve.arrays()]
    for scale in range(scales):
        position = np.log2(base * 2.0**scale / curve.base)
        low = int(np.floor(position + 1e-9))
        part = position - low
        high = low if part < 1e-9 else low + 1
        if low < 0 or high >= curve.scales:
            continue
        known = (curve.weights[:, low] > 0.0) & (curve.weights[:, high] > 0.0)
        weights = np.where(known, (1.0 - part) * curve.weights[:, low] + part * curve.weights[:, high], 0.0)
        ends = [np.maximum(curve.squares[:, j], _TINY) / np.where(known, curve.weights[:, j], 1.0) for j in (low, high)]
        arrays[0][:, scale] = weights * ends[0] ** (1.0 - part) * ends[1] ** part
        arrays[1][:, scale] = weights
        batches = (1.0 - part) * curve.batches[:, low] + part * curve.batches[:, high]
        arrays[2][:, scale] = np.where(known, batches, 0.0)
    return Curve(base, *arrays)


def merged(first: Curve, second: Curve) -> Curve:
    """Both measurements together; their grids must be the same."""
    if first.base != second.base or first.scales != second.scales:
        raise ValueError("two dispersion curves on different grids can't be merged: resample one of them first")
    return Curve(first.base, *(a + b for a, b in zip(first.arrays(), second.arrays(), strict=True)))


def kappa(curve: Curve) -> tuple[Array, Array]:
    """Dispersion per draft by scale, for Fail and for Pass, both of shape (runs, scales).

    NaN in runs that know nothing, or too little to lean on.

    A scale with few batches leans towards its neighbours: a short one towards a part of the longer one above it, a
    long one towards the shorter scales' growth continued. Every scale is held between once and twice
    the one before, since kappa can't fall with the window's length, nor grow faster than it. Last, each is raised by
    what its own uncertainty costs: for a normal tail at exp(-h), a variance known with relative variance v makes the
    tail exp(h**2 v / 2) times as heavy, which a variance larger by h v / 2 undoes. n batches have v = 2 / n.
    """
    count, prior = curve.batches, _PRIOR_BATCHES
    counted = count > 0.0
    raw = np.divide(curve.squares, curve.weights, out=np.full_like(curve.squares, np.nan), where=counted)
    certain = count.copy()
    above, more = np.full(raw.shape[0], np.nan), np.zeros(raw.shape[0])
    for scale in reversed(range(curve.scales)):
        own = count[:, scale]
        shorter, trusted = _shorter(raw, certain, scale)
        weight = np.where(np.isfinite(above), np.clip(more - own, 0.0, trusted), 0.0)
        found = np.where(counted[:, scale], raw[:, scale], 0.0)
        total = own + weight
        leant = np.where(weight > 0.0, shorter, 0.0)
        leaning = np.divide(own * found + weight * leant, total, out=shorter, where=total > 0.0)
        raw[:, scale] = above = leaning
        more = np.maximum(more, own)
        certain[:, scale] = more
    out = np.empty_like(raw)
    out[:, 0] = previous = raw[:, 0]
    growth, most = np.full_like(previous, 2.0), count[:, 0]
    for scale in range(1, curve.scales):
        own = count[:, scale]
        weight = np.clip(most - own, 0.0, prior)
        total = np.maximum(own + weight, 1e-9)
        found = np.where(np.isfinite(raw[:, scale]), raw[:, scale], 0.0)
        leaning = np.where(own + weight > 0.0, (own * found + weight * growth**_DAMPING * previous) / total, found)
        value = np.clip(leaning, previous, 2.0 * previous)
        growth = np.divide(value, previous, out=growth.copy(), where=previous > 0.0)
        out[:, scale] = previous = value
        most = np.maximum(most, own)
    out[known(curve) < 1.0] = np.nan
    return out * (1.0 + _FAIL_CAUTION / (certain + _LEANT_FAIL)), out * (1.0 + _PASS_CAUTION / (certain + _LEANT_PASS))


def known(curve: Curve) -> Array:
    """The batches seen of those without which kappa is unknown, as a share, shape (runs,): known from 1 on."""
    return np.asarray(curve.batches.max(axis=1) / _LEAST_BATCHES)


def _shorter(raw: Array, certain: Array, scale: int) -> tuple[Array, Array]:
    """kappa at ``scale`` by those of the two scales above it, and in how many batches it counts; NaN without any."""
    last = raw.shape[1] - 1
    above, further = raw[:, min(scale + 1, last)], raw[:, min(scale + 2, last)]
    enough = (certain[:, min(scale + 1, last)] >= _MANY_BATCHES) & (certain[:, min(scale + 2, last)] >= _PRIOR_BATCHES)
    known = enough & (above > 0.0) & (scale + 2 <= last)
    growth = np.divide(further, above, out=np.full_like(above, 2.0**_SHORTER), where=known)
    floor = np.minimum(above, DRAFT_NOISE)
    extended = floor + (above - floor) / np.clip(growth, 1.0, 2.0)
    value = np.where(known, extended, above * 2.0**-_SHORTER)
    if scale == last:
        value = np.full_like(above, np.nan)
    return value, np.where(known, _MANY_BATCHES, _PRIOR_BATCHES)


def remeasure(look: int) -> bool:
    """Whether kappa is worth measuring anew at this look: always at first, then at every fourth."""
    return look < 24 or look % 4 == 0


def excess(stable: Curve, canary: Curve) -> tuple[Array, Array]:
    """The canary's dispersion over stable's, for Fail and for Pass, both of shape (runs,): at least 1.

    One factor for all scales; a canary that seems calmer than stable is not believed. What few batches show by chance
    is its standard error. For Fail all of a ratio counts once that much less of it would still be above 1; for Pass,
    which every look of an equal canary would pay for, the ratio less its error.
    """
    enough = (canary.jumps >= _LEAST_JUMPS) & (stable.jumps >= _LEAST_JUMPS)
    known = enough & (stable.step_weights > 0.0) & (canary.step_weights > 0.0) & (stable.steps > 0.0)
    expected, found = (
        np.divide(arm.steps, arm.step_weights * kept(arm), out=np.ones_like(arm.steps), where=known)
        for arm in (stable, canary)
    )
    count, others = (np.where(known, arm.batches, 0.0) for arm in (canary, stable))
    total = count.sum(axis=1)
    mean = np.divide((count * found / expected).sum(axis=1), total, out=np.ones_like(total), where=total > 0.0)
    canary_part, stable_part = (1.0 / np.maximum(n, 1.0) for n in (total, others.sum(axis=1)))

    def least(variance: Array) -> Array:
        return np.asarray(mean * (1.0 - np.minimum(np.sqrt(variance), 1.0)))

    shown = least(_FAIL_BATCHES * (canary_part + stable_part)) > 1.0
    return np.where(shown, mean, 1.0), np.maximum(1.0, least(_PASS_BATCHES * canary_part))


def kept(curve: Curve) -> Array:
    """The part of a sum of squares that is left on average without its two largest, by run and scale.

    Fitted to simulated squares of normal deviates, each the mean over k Pods: within a tenth from 4 squares on.
    """
    squares = np.maximum(curve.jumps, 3.0)
    pods = np.maximum(curve.jumpers / squares, 1.0)
    return np.asarray((1.0 - 2.0 / squares) ** (1.0 + 1.37 * pods**-0.65 * np.log(squares)))


def at_window(kappas: Array, base: float, windows: Array) -> tuple[Array, Array]:
    """kappa at windows of the given seconds and its slope d log kappa / d log W, both (runs, windows).

    Geometric between scales; the last scale's growth goes on above.
    """
    last = kappas.shape[1] - 1
    # Counters without any noise have a kappa of 0; its logarithm must still be a number.
    logs = np.log(np.maximum(kappas, _TINY))
    rises = logs[:, 1:] - logs[:, :-1]
    position = np.log2(np.maximum(windows, base) / base)
    low = np.minimum(position.astype(int), last - 1)
    value = np.exp(logs[:, low] + (position - low) * rises[:, low])
    # The slope at the scales, half a scale to either side, and linear between them.
    middle = np.minimum(np.maximum(position - 0.5, 0.0), last - 1)
    left = np.minimum(middle.astype(int), max(last - 2, 0))
    first, second = rises[:, left], rises[:, np.minimum(left + 1, last - 1)]
    slope = (first + (middle - left) * (second - first)) / _LOG2
    return np.asarray(value), np.asarray(np.minimum(np.maximum(slope, 0.0), 1.0))
