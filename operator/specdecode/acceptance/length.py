"""Fail and Pass by acceptance length, from its change and information in the windows that end now.

The window that knows most of the canary's time is judged at planned looks (``planned.py``), and so is a step's own
window for Pass. Later starts are judged at every look, for falls that begin late: each planned size has a likelihood
ratio of its own, against a bound that rests on how many windows of that length, unlike each other, a period has.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log

import numpy as np
from numpy.typing import NDArray

from specdecode.acceptance.dispersion import DRAFT_NOISE, Array, at_window
from specdecode.acceptance.ladder import Sums
from specdecode.acceptance.planned import Plan, beyond, level, ratio

# Shifts beyond the margin, in margins, that Fail is planned for: falls of two and of four margins above all.
FALLS = {6.0: 0.01, 3.0: 0.58, 2.2: 0.06, 1.0: 0.34, 0.6: 0.01}
# The same for a canary that after so many seconds still knows less than a fall of four margins takes to show: one of
# two margins would take ten times as long, so its share is better spent on the first.
SLOW_FALLS = {6.0: 0.01, 3.0: 0.83, 2.2: 0.06, 1.0: 0.09, 0.6: 0.01}
_SLOW, _MAIN_FALL = 600.0, 3.0
# The same for Pass; 1 is a canary as good as stable.
GAINS = {1.5: 0.1, 1.0: 0.9}
# The part of a step's error for those planned looks, and for likelihood ratios that are watched at every look, for a
# canary that missed them narrowly or is a little worse, each with its share; the rest is kept as for Fail, below.
PLANNED_SHARE, WATCHED_SHARE = 0.7, 0.17
WATCHED_GAINS = {1.0: 0.6, 0.55: 0.4}
# A look takes the share of a level that it nearly reaches if the next look would be further beyond it: information is
# taken to grow with this power of the window's length until then.
_NEAREST = 0.45
# Shares of the length test's error for the planned looks and for the later starts; the rest is kept for what the
# normal law gets wrong where requests are few.
WHOLE_SHARE, LATER_SHARE = 0.66, 0.25
# The same for later starts; and where a window knows less than the information given, in 1 / margin**2: too little to
# tell a fall of two margins.
LATER_FALLS = {3.0: 0.47, 1.0: 0.47, 0.6: 0.06}
LATER_DIM_FALLS = {3.0: 0.98, 1.0: 0.01, 0.6: 0.01}
_DIM = 3.6
_LATER_PLAN = (LATER_FALLS, LATER_FALLS.values(), LATER_DIM_FALLS.values())
# The later starts' share by period: the first hour, then twice as long each; every later period has this part of
# what the one before it had.
_PERIOD = 3600.0
_LATER = 0.2
# Windows of one length overlap, and those a little longer are judged too: how many independent ones they amount to, for
# each of those that fit side by side into the period and differ, and each doubling from the shortest window that holds
# requests enough to the period. And the shortest that there can be, in seconds.
_OVERLAP = 1.1
_SHORTEST = 0.1
# Noise that outlasts a window makes its neighbours alike; at most so many of them count as one.
_ALIKE = 20.0
# Variance, without the noise of single drafts, of a window that began empty over that of a steady one with as many
# drafts: in the limit of short windows 2/3 if no request ends in it, and a little less since some do.
_EMPTY = 0.6
# Where a window is long against the requests, they are counted instead, and the ratio is held between these: wholly at
# slopes up to the first, in part up to the second.
_FRESH = (2.0 / 3.0, 1.1)
_LONG, _SHORT = 0.4, 0.6
# Such a window's variance goes by this power, times 1 - slope, of its drafts over those that as many requests are
# expected to make, between the others. Fewer drafts than expected are given little credit for Fail and none for Pass:
# requests can end early for reasons of their own, or nearly all be short.
_UNEVEN = 1.75
_LEAST_UNEVEN, _MOST_UNEVEN = 0.85, 4.0
# Degrees of freedom for each request of a window.
_FREEDOM = 2.0
# Information beyond all plans' levels.
_FORGONE = 1e15
# What stands for none in a denominator.
_LITTLE = 1e-9


@dataclass(frozen=True, slots=True)
class Noise:
    """What is known of the noise, as Fail and as Pass take it: stable's kappa by scale, (runs, scales), scale 0 being
    ``base`` seconds; the canary's is ``excess``, (runs,), times that."""

    kappas: Array
    pass_kappas: Array
    excess: Array
    pass_excess: Array
    base: float


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows by run, (runs, windows): relative change of length, and its variance at the boundary by arm, the
    canary's as of a steady window; infinite where unknown. ``slope`` is d log kappa / d log seconds, ``single`` the
    part of kappa that single drafts may make up."""

    change: Array
    canary: Array
    stable: Array
    slope: Array
    single: Array

    @property
    def variance(self) -> Array:
        """Of the change."""
        return self.canary + self.stable


def measure(sums: Sums, seconds: Array, noise: Noise, margin: float) -> Windows:
    """Change and variance of windows of ``seconds``, (windows,); the last is the step's, for Pass.

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
    kappas[:, -1:] = at_window(noise.pass_kappas, noise.base, seconds[-1:])[0]
    # A kappa that isn't known is NaN.
    unit = np.where(some & (kappas >= 0.0), np.maximum(kappas, _LITTLE), np.inf) / length**2
    kept = np.maximum((1.0 - margin) * length - 1.0, 0.0) / np.maximum(accepted, _LITTLE)
    above = np.repeat(noise.excess[:, None], seconds.size, axis=1)
    above[:, -1] = noise.pass_excess
    canary = unit * np.maximum(kept, 0.5) * above / drafts
    single = np.minimum(DRAFT_NOISE / np.maximum(kappas, DRAFT_NOISE), 1.0)
    return Windows(change, canary, unit * (1.0 - margin) ** 2 / others, slope, single)


def counts_requests(sums: Sums, least: float) -> NDArray[np.bool_]:
    """Whether stable has shown ``least`` requests since the beginning, (runs, 1): what they are like is known then."""
    return np.asarray((sums.stable_finished[:, :1] >= least) & (sums.stable_busy[:, :1] > 0.0))


def fresh(sums: Sums, seconds: Array, running: Array, measured: Windows, least: float) -> Array:
    """Variance of the canary's surplus over that of a steady window with as many drafts.

    The noise of single drafts is the same in both. The requests' part has a slope s of its own. In a short window it
    is the less, the fewer of the drafts come from requests in flight at its start: none in one that began empty,
    where it goes from ``_EMPTY`` at s = 1 to 1 at s = 0. In a long one arriving requests stand for 1 - s of it and
    those in flight at its start for the rest, both weighed with the drafts that so many of stable's are worth. Of long
    windows with as many requests, one with more drafts than expected has them from a few that lived long, so it varies
    more: docs/analysis.md. 1 until stable has seen ``least`` requests, and while kappa is unknown.
    """
    single = np.where(np.isfinite(measured.single), measured.single, 0.0)
    slope = np.minimum(measured.slope / np.maximum(1.0 - single, _LITTLE), 1.0)
    drafts = np.maximum(sums.canary_drafts, 1.0)
    finished, busy = sums.stable_finished[:, :1], sums.stable_busy[:, :1]
    known = counts_requests(sums, least)
    per_request = sums.stable_drafts[:, :1] / np.maximum(finished, 1.0)
    per_second = sums.stable_drafts[:, :1] / np.maximum(busy, _LITTLE)
    arrived = np.maximum(sums.canary_finished + sums.canary_running, 0.0)
    carried = np.maximum(running[:, None] - sums.canary_running, 0.0) * per_second * seconds
    empty = 1.0 - (1.0 - _EMPTY) * slope
    short = empty + (1.0 - empty) * np.minimum(carried / drafts, 1.0)
    # Where more are in flight at the end than at the start, their drafts to come are missing, and more than their own
    # number's: the long ones are in flight.
    expected = np.maximum(sums.canary_finished - 0.5 * sums.canary_running, 1.0) * per_request
    # Where none has ended, which may be that none is counted, nothing is known of them.
    expected = np.where(sums.canary_finished > 0.0, np.maximum(expected, drafts / _MOST_UNEVEN), drafts)
    long = ((1.0 - slope) * arrived * per_request + slope * carried) / expected
    least_uneven = np.append(np.full(seconds.size - 1, _LEAST_UNEVEN), 1.0)
    uneven = np.maximum(drafts / expected, least_uneven) ** (_UNEVEN * (1.0 - slope))
    long = np.minimum(np.maximum(long, _FRESH[0]), _FRESH[1]) * uneven
    part = np.minimum(np.maximum((_SHORT - slope) / (_SHORT - _LONG), 0.0), 1.0)
    requests = part * long + (1.0 - part) * short
    return np.where(known & np.isfinite(slope), single + (1.0 - single) * requests, 1.0)


def needed_information(margin: float, error: float) -> float:
    """Information at which a canary as good as stable is expected to pass, ``error`` being the step's."""
    return level(margin, GAINS, PLANNED_SHARE * error, 1.0)


def awaited_information(margin: float, error: float, change: float, information: float) -> float:
    """Information at which a canary is next expected to pass if its ``change`` stays; infinite if it isn't."""
    planned = needed_information(margin, error)
    if information < planned:
        return planned
    shown = change / margin + 1.0
    gains = {gain: gain * shown - 0.5 * gain**2 for gain in WATCHED_GAINS}
    return min(
        (_watched(gain, error) / (margin**2 * speed) for gain, speed in gains.items() if speed > 0.0), default=inf
    )


def _watched(gain: float, error: float) -> float:
    """The log likelihood ratio at which a watched gain passes: by Wald's bound it is ever reached with that error."""
    return -log(WATCHED_SHARE * error * WATCHED_GAINS[gain])


def tempered(z: Array, requests: Array) -> Array:
    """A normal variable as unlikely as Student's of ``requests`` degrees of freedom at z.

    A window's variance is that of windows on average; this one's requests, few and of unlike lives, may weigh more or
    less. sqrt(n log(1 + z**2 / n)) is the usual transformation (Wallace, Ann. Math. Stat. 30 (1959)), to first order.
    """
    count = _FREEDOM * np.maximum(requests, 1.0)
    return np.asarray(np.sign(z) * np.sqrt(count * np.log1p(z**2 / count)))


class LengthTest:
    """Fail over the whole canary and its later windows, Pass over a step; arrays by run."""

    def __init__(self, margin: float, error: float, pass_error: float, runs: int) -> None:
        """``error``: what Fail may spend over the whole canary; ``pass_error``: what Pass may over a step."""
        self._margin = margin
        self._error = error
        self._fail = Plan(margin, FALLS, WHOLE_SHARE * error)
        self._slow = Plan(margin, SLOW_FALLS, WHOLE_SHARE * error)
        self._slow_below = level(margin, SLOW_FALLS, WHOLE_SHARE * error, _MAIN_FALL)
        self._pass = Plan(margin, GAINS, PLANNED_SHARE * pass_error)
        self._watched = {gain: _watched(gain, pass_error) for gain in WATCHED_GAINS}
        # The most information that the canary, and the step, have been judged with.
        self.judged: Array = np.zeros(runs)
        self.judged_step: Array = np.zeros(runs)
        # Which canaries go by the plan for slow ones, once that is known.
        self.slow: NDArray[np.bool_] = np.zeros(runs, dtype=bool)

    def begin_step(self) -> None:
        """Evidence for Pass starts afresh."""
        self.judged_step = np.zeros_like(self.judged_step)

    def select(self, runs: NDArray[np.bool_]) -> None:
        """Keep these runs only."""
        self.judged, self.judged_step, self.slow = self.judged[runs], self.judged_step[runs], self.slow[runs]

    def forgo(self, runs: NDArray[np.bool_]) -> None:
        """These have no planned looks, Pass none in this step: requests end and the noise isn't known.

        They learn it from few batches, with which planned looks would err up to twice as often as they may (the bench's
        canaries without history: promoted in 2.0 % at the margin). Later starts and watched ratios go on.
        """
        self.judged = np.where(runs, _FORGONE, self.judged)
        self.judged_step = np.where(runs, _FORGONE, self.judged_step)

    def passes(self, change: Array, information: Array, requests: Array) -> NDArray[np.bool_]:
        """Whether the step's window, of so many requests, passes."""
        z = tempered((change + self._margin) * np.sqrt(information), requests)
        fires = self._pass.fires(z, information, self.judged_step)
        self.judged_step = np.maximum(self.judged_step, information)
        for gain, bound in self._watched.items():
            fires |= ratio(z, gain * self._margin * np.sqrt(information)) >= bound
        return fires

    def whole_fails(
        self, change: Array, information: Array, requests: Array, growth: Array, elapsed: float
    ) -> NDArray[np.bool_]:
        """Whether the window that knows most, of so many requests, fails; ``elapsed``: seconds since the canary's first
        drafts.

        ``growth`` is that of the window's length until the next look. Both plans are alike up to the level by which
        they are told apart, so a canary spends one error whichever it goes by.
        """
        z = tempered(-(change + self._margin) * np.sqrt(information), requests)
        reached = information * growth**_NEAREST
        if elapsed >= _SLOW:
            # While nothing is known, which may be the noise, it isn't known either whether the canary is slow.
            self.slow |= (reached > 0.0) & (np.maximum(self.judged, reached) < self._slow_below)
        fires = np.where(
            self.slow, self._slow.fires(z, reached, self.judged), self._fail.fires(z, reached, self.judged)
        )
        self.judged = np.maximum(self.judged, reached)
        return fires

    def later_fails(
        self, change: Array, information: Array, requests: Array, seconds: Array, slope: Array, elapsed: float
    ) -> NDArray[np.bool_]:
        """Which later windows fail, the canary being ``elapsed`` seconds old.

        For each planned size a likelihood ratio of that fall against the margin, as in a CUSUM. ``slope`` is
        d log kappa / d log seconds: near 1 the noise outlasts the window, and windows side by side have the same.
        Windows without information take no part.
        """
        period = int(np.log2(1.0 + elapsed / _PERIOD))
        length = _PERIOD * 2.0**period
        error = LATER_SHARE * self._error * (1.0 - _LATER) * _LATER**period
        shortest = np.where(information > 0.0, seconds, length).min(axis=1, keepdims=True, initial=length)
        overlap = _OVERLAP * np.maximum(np.log2(length / np.maximum(shortest, _SHORTEST)), 1.0)
        part = seconds * np.minimum(1.0 / np.maximum(1.0 - slope, _LITTLE), _ALIKE) / (overlap * length)
        root = np.sqrt(information)
        z = tempered(-(change + self._margin) * root, requests)
        falls, shares, dim = (np.array(list(v))[:, None, None] for v in _LATER_PLAN)
        shares = np.where(information < _DIM / self._margin**2, dim, shares)
        bound = beyond(error * shares * np.clip(part, _LITTLE, 1.0))
        return np.asarray((ratio(z, falls * self._margin * root) >= 0.5 * bound**2).any(axis=0))
