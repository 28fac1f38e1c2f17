"""Fail and Pass by acceptance length, from its change and information in the windows that end now.

The window from the canary's beginning is judged at planned looks (``planned.py``), and so is a step's own window for
Pass. Later starts are judged at every look, for falls that begin late. In a late window noise is known in part:
requests that were in flight before it still are, and what they were above or below the canary's mean then, they are
now. So the surplus of the stretch just before is taken off, as far as it predicts the window's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdecode.acceptance.dispersion import Array, at_window
from specdecode.acceptance.ladder import Sums
from specdecode.acceptance.planned import Plan, level, log_tail

# Shifts beyond the margin, in margins, that Fail is planned for: falls of two and of four margins above all.
FALLS = {12.0: 0.02, 6.0: 0.06, 4.0: 0.06, 3.0: 0.33, 2.2: 0.06, 1.5: 0.05, 1.0: 0.33, 0.75: 0.05, 0.5: 0.04}
# The same for Pass; 1 is a canary as good as stable.
GAINS = {2.0: 0.06, 1.4: 0.06, 1.0: 0.55, 0.85: 0.12, 0.7: 0.09, 0.55: 0.06, 0.4: 0.06}
# Shares of the length test's error for the window from the canary's beginning and for the later starts; the rest is
# kept for what the normal law gets wrong where requests are few.
WHOLE_SHARE, LATER_SHARE = 0.55, 0.25
# The later starts' share by period: the first hour, then twice as long each; every later period has this part of
# what the one before it had.
_PERIOD = 3600.0
_LATER = 0.2
# Windows of one length overlap, and there are many lengths: how many independent ones they amount to, for each that
# fits side by side into the period.
_OVERLAP = 20.0
# The stretch before a window, in lengths of the window, and the past before that, in lengths of the stretch.
_BEFORE = (0.5, 2.5)
_REST = 3.0
# A window's variance is never taken for less than this part of what it is without the stretch before it.
_LEAST_LEFT = 0.25
# Variance of a window that began empty over that of a steady one with as many drafts: 2/3 in the limit of short
# windows, and never much above 1.
_FRESH = (2.0 / 3.0, 1.1)
# Drafts that stand for none in a denominator.
_LITTLE = 1e-9


@dataclass(frozen=True, slots=True)
class Noise:
    """What is known of the noise: stable's kappa by scale, (runs, scales), scale 0 being ``base`` seconds; the
    canary's is ``excess``, (runs,), times that."""

    kappas: Array
    excess: Array
    base: float


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows by run, (runs, windows): relative change of length, and its variance at the boundary by arm, the
    canary's as of a steady window; infinite where unknown. ``slope`` is d log kappa / d log seconds."""

    change: Array
    canary: Array
    stable: Array
    slope: Array
    drafts: Array

    @property
    def variance(self) -> Array:
        """Of the change."""
        return self.canary + self.stable

    def of(self, runs: NDArray[np.int64], which: NDArray[np.int64]) -> Windows:
        """These windows of these runs."""
        cells = np.ix_(runs, which)
        slope = np.broadcast_to(self.slope, self.change.shape)
        return Windows(self.change[cells], self.canary[cells], self.stable[cells], slope[cells], self.drafts[cells])


def measure(sums: Sums, seconds: Array, noise: Noise, margin: float) -> Windows:
    """Change and variance of windows of ``seconds``, (windows,).

    The boundary is a canary whose length is lower by the margin. If it accepts a smaller part of every draft, its
    dispersion is smaller by that part squared; if some requests alone accept less, it isn't smaller: taken is the
    middle, the part itself.
    """
    some = (sums.canary_drafts > 0.0) & (sums.stable_drafts > 0.0)
    drafts, others = np.maximum(sums.canary_drafts, _LITTLE), np.maximum(sums.stable_drafts, _LITTLE)
    accepted = sums.stable_accepted / others
    length = 1.0 + accepted
    change = np.where(some, (1.0 + sums.canary_accepted / drafts) / length - 1.0, 0.0)
    kappas, slope = at_window(noise.kappas, noise.base, seconds)
    # A kappa that isn't known is NaN.
    unit = np.where(some & (kappas >= 0.0), np.maximum(kappas, _LITTLE), np.inf) / length**2
    kept = np.maximum((1.0 - margin) * length - 1.0, 0.0) / np.maximum(accepted, _LITTLE)
    canary = unit * np.maximum(kept, 0.5) * noise.excess[:, None] / drafts
    return Windows(change, canary, unit * (1.0 - margin) ** 2 / others, slope, drafts)


def fresh(sums: Sums, seconds: Array, running: Array, slope: Array, least: float) -> Array:
    """Variance of the canary's surplus over that of a steady window with as many drafts.

    Arriving requests stand for 1 - slope of it and those in flight at the window's start for the rest; both are
    weighed with the drafts that so many requests of stable's are worth. A window that began with an empty canary has
    none of the second. 1 until stable has seen ``least`` requests.
    """
    drafts = np.maximum(sums.canary_drafts, 1.0)
    finished, busy = sums.stable_finished[:, :1], sums.stable_busy[:, :1]
    known = (finished >= least) & (busy > 0.0)
    per_request = sums.stable_drafts[:, :1] / np.maximum(finished, 1.0)
    per_second = sums.stable_drafts[:, :1] / np.maximum(busy, _LITTLE)
    arrived = np.maximum(sums.canary_finished + sums.canary_running, 0.0)
    before = np.maximum(running[:, None] - sums.canary_running, 0.0)
    found = ((1.0 - slope) * arrived * per_request + slope * before * per_second * seconds) / drafts
    return np.where(known, np.minimum(np.maximum(found, _FRESH[0]), _FRESH[1]), 1.0)


def stretches(ages: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs (window, window that begins earlier), by index, whose difference is the stretch just before the first.

    ``ages`` in seconds, the oldest first. The stretch is about as long as the window, and much shorter than what was
    before it; windows without one are left out.
    """
    if ages.size < 3:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    length, stretch = np.maximum(ages[1:, None], _LITTLE), ages[None, 1:] - ages[1:, None]
    allowed = (stretch >= _BEFORE[0] * length) & (stretch <= _BEFORE[1] * length)
    allowed &= ages[0] - ages[None, 1:] >= _REST * stretch
    off = np.where(allowed, np.abs(stretch - length) / length, np.inf)
    windows = np.flatnonzero(allowed.any(axis=1))
    return windows + 1, off[windows].argmin(axis=1) + 1


def predicted(window: Windows, joint: Windows, before: Windows, rest: Windows) -> tuple[Array, Array]:
    """What the stretch before says of a window's noise: (surplus to take off, part of the variance that is left).

    ``joint`` is window and stretch together, ``rest`` what came before the stretch: the canary's mean, whatever it
    is, is taken from there. With w = the window's share of the drafts, Var(joint) = w**2 Var(window) +
    (1 - w)**2 Var(before) + 2 w (1 - w) Cov gives the covariance, and least squares the rest.
    """
    share = window.drafts / np.maximum(joint.drafts, 1e-9)
    other = 1.0 - share
    both = 2.0 * share * other
    noises = window.variance, joint.variance, before.variance, rest.variance
    known = (both > 1e-6) & np.isfinite(sum(noises))
    of_window, of_joint, of_before, of_rest = (np.where(known, noise, 1.0) for noise in noises)
    covariance = (of_joint - share**2 * of_window - other**2 * of_before) / np.where(known, both, 1.0)
    covariance = np.where(known, np.maximum(covariance, 0.0), 0.0)
    slope = covariance / (of_before + of_rest)
    explained = slope * covariance / of_window
    # More than this is never explained: beyond it the measured kappa isn't exact enough.
    keep = np.minimum(1.0, np.sqrt((1.0 - _LEAST_LEFT) / np.maximum(explained, 1e-9)))
    slope = slope * keep
    left = 1.0 - 2.0 * keep * explained + keep**2 * explained
    return slope * (before.change - rest.change), left


def needed_information(margin: float, error: float) -> float:
    """Information at which a canary as good as stable is expected to pass, ``error`` being the step's."""
    return level(margin, GAINS, error, 1.0)


def tempered(z: Array, requests: Array) -> Array:
    """A normal variable as unlikely as Student's of ``requests`` degrees of freedom at z.

    A window's variance is that of windows on average; this one's requests, few and of unlike lives, may weigh more or
    less. sqrt(n log(1 + z**2 / n)) is the usual transformation (Wallace, Ann. Math. Stat. 30 (1959)), to first order.
    """
    count = np.maximum(requests, 1.0)
    return np.asarray(np.sign(z) * np.sqrt(count * np.log1p(z**2 / count)))


class LengthTest:
    """Fail over the whole canary and its later windows, Pass over a step; arrays by run."""

    def __init__(self, margin: float, error: float, pass_error: float, runs: int) -> None:
        """``error``: what Fail may spend over the whole canary; ``pass_error``: what Pass may over a step."""
        self._margin = margin
        self._error = error
        self._fail = Plan(margin, FALLS, WHOLE_SHARE * error)
        self._pass = Plan(margin, GAINS, pass_error)
        # The most information that the canary's whole window, and the step's, have been judged with.
        self.judged: Array = np.zeros(runs)
        self.judged_step: Array = np.zeros(runs)

    def begin_step(self) -> None:
        """Evidence for Pass starts afresh."""
        self.judged_step = np.zeros_like(self.judged_step)

    def select(self, runs: NDArray[np.bool_]) -> None:
        """Keep these runs only."""
        self.judged, self.judged_step = self.judged[runs], self.judged_step[runs]

    def passes(self, change: Array, information: Array, requests: Array) -> NDArray[np.bool_]:
        """Whether the step's window, of so many requests, passes."""
        z = tempered((change + self._margin) * np.sqrt(information), requests)
        fires = self._pass.fires(z, information, self.judged_step)
        self.judged_step = np.maximum(self.judged_step, information)
        return fires

    def whole_fails(self, change: Array, information: Array, requests: Array) -> NDArray[np.bool_]:
        """Whether the window from the canary's beginning, of so many requests, fails."""
        z = tempered(-(change + self._margin) * np.sqrt(information), requests)
        fires = self._fail.fires(z, information, self.judged)
        self.judged = np.maximum(self.judged, information)
        return fires

    def later_fails(
        self, surplus: Array, information: Array, requests: Array, seconds: Array, elapsed: float
    ) -> NDArray[np.bool_]:
        """Which later windows fail, the canary being ``elapsed`` seconds old.

        ``surplus``: the change plus the margin, less what was predicted; ``information``: one over its variance.
        """
        period = int(np.log2(1.0 + elapsed / _PERIOD))
        length = _PERIOD * 2.0**period
        error = LATER_SHARE * self._error * (1.0 - _LATER) * _LATER**period
        spend = np.log(error * np.clip(seconds / (_OVERLAP * length), _LITTLE, 1.0))
        return np.asarray(log_tail(tempered(-surplus * np.sqrt(information), requests)) <= spend)
