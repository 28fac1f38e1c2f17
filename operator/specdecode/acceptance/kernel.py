"""The tests of one canary, over many runs at once: the controller has one run, the bench thousands.

At every look the kernel adds both arms' increments to running sums and judges the sums over a ladder of windows that
all end now: one from the canary's beginning, and a thinned set of later starts, so that a fall which begins late
isn't diluted by the good time before it. Each measure has its own share of the one error budget, and each window its
share of that; see docs/analysis.md for the derivation.

Sources: mixtures of likelihood ratios and their time-uniform bound: Robbins, Ann. Math. Stat. 41 (1970); Howard,
Ramdas, McAuliffe and Sekhon, Ann. Stat. 49 (2021). Restarts: Lorden, Ann. Math. Stat. 42 (1971); Shin, Ramdas and
Rinaldo, e-detectors, New England J. Stat. Data Sci. (2023). Bounded means by relative entropy: Hoeffding, JASA 58
(1963).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdecode.acceptance.dispersion import Array, at_window
from specdecode.acceptance.ladder import COLUMNS, STABLE, Ladder, Sums, short
from specdecode.acceptance.mixture import FALL_WEIGHTS, FALLS, GAIN_WEIGHTS, GAINS, crossed, entropy

# Shares of 1 - confidence for a false rollback, by measure; they add up to 1.
SHARES = {"length": 0.9, "collapse": 0.025, "errors": 0.025, "floor": 0.025, "latency": 0.025}

# Shares of the distance from a tolerated failure rate to 1.
RATES = np.array([0.1, 0.3, 0.6, 0.9])

# Stable's last window, for the step in which it no longer serves.
_LAST_SECONDS = 600.0
# Variance of a window that began empty over that of a steady one with as many drafts: 2/3 in the limit of short
# windows, and never much above 1.
_FRESH = (2.0 / 3.0, 1.1)
# Drafts that stand for none in a denominator.
_LITTLE = 1e-9
# Requests, in multiples of the policy's least, from which the sum of a window is taken as normal.
_NORMAL = 2.0
# Share of the length test's budget for the window from the canary's beginning; the rest is the restarts'.
_WHOLE_SHARE = 0.75
# The restarts' budget by period: the first hour, then twice as long each; every later period has this part of what
# the one before it had.
_PERIOD = 3600.0
_LATER = 0.2


class Finding(IntEnum):
    """What the tests found, the gravest last."""

    NOTHING = 0
    LENGTH = 1
    LATENCY = 2
    FLOOR = 3
    COLLAPSE = 4
    ERRORS = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """What the kernel needs of the policy; ``positions`` is how many are common."""

    margin: float
    error: float
    pass_error: float
    min_requests: int
    positions: int
    floor: float
    collapse: float
    errors_tolerance: float
    errors_ratio: float


@dataclass(frozen=True, slots=True)
class Look:
    """The state of all tests at one look; arrays of shape (runs,).

    ``change`` is L_canary / L_stable - 1 and ``information`` one over its variance, both since the step began;
    0 where unknown. ``fall``, its information, ``seconds`` and ``window`` (the sums, shape (columns, runs)) are of the
    window that failed, or of the step.
    """

    finding: NDArray[np.int64]
    passed: NDArray[np.bool_]
    change: Array
    information: Array
    fall: Array
    fall_information: Array
    seconds: Array
    window: Array


def rates(window: Array) -> dict[str, float]:
    """Sums and rates of the only run over a window, for the sentences."""
    out = dict(zip(COLUMNS, (float(x) for x in window[:, 0]), strict=True))
    for arm in ("canary", "stable"):
        drafts, ended = max(out[f"{arm}_drafts"], 1.0), max(out[f"{arm}_ended"], 1.0)
        out[f"{arm}_accepted"] /= drafts
        out[f"{arm}_first"] /= drafts
        out[f"{arm}_failing"] = out[f"{arm}_failed"] / ended
    return out


class Kernel:
    """All measures but latency, on a ladder of windows; one call a look."""

    def __init__(self, settings: Settings, runs: int, now: float) -> None:
        self.settings = settings
        self.began = now
        self.ladder = Ladder(runs, now)
        self.step_start: Array = np.zeros((len(COLUMNS), runs))
        self.step_time = now
        self.reference: Array | None = None

    def compare_with_last(self, now: float) -> None:
        """Stable is leaving: from now on compare with its sums over the last ten minutes, or what there is of them."""
        starts = [k for k, t in enumerate(self.ladder.times) if now - t <= _LAST_SECONDS] or [0]
        last = self.ladder.windows()[:, :, starts[0]]
        self.reference = np.where(STABLE, last, 0.0)
        self.ladder = Ladder(self.ladder.runs, now)

    def begin_step(self, now: float) -> None:
        """Evidence for Pass starts afresh; evidence for Fail goes on."""
        self.step_start = self.ladder.total.copy()
        self.step_time = now

    def select(self, runs: NDArray[np.bool_]) -> None:
        """Keep these runs only."""
        self.ladder.select(runs)
        self.step_start = self.step_start[:, runs]
        if self.reference is not None:
            self.reference = self.reference[:, runs]

    def state(self) -> dict[str, Any]:
        """JSON of a kernel with one run."""
        return {
            "began": self.began,
            "ladder": self.ladder.state(),
            "step": short(self.step_start[:, 0]),
            "step_time": self.step_time,
            "reference": None if self.reference is None else short(self.reference[:, 0]),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what ``state()`` gave."""
        self.began = float(state["began"])
        self.ladder = Ladder.restored(state["ladder"])
        self.step_start = np.array([state["step"]], dtype=float).T
        self.step_time = float(state["step_time"])
        reference = state["reference"]
        self.reference = None if reference is None else np.array([reference], dtype=float).T

    def look(
        self, now: float, increments: Array, running: Array, counted: bool, kappas: Array, excess: Array, base: float
    ) -> Look:
        """Judge, after adding one look's ``increments`` of shape (columns, runs).

        ``running``: the canary's requests in flight (or its engines, if ``counted`` is false: requests unknown).
        ``kappas``: stable's dispersion by scale, (runs, scales), scale 0 being ``base`` seconds; the canary's is
        ``excess``, (runs,), times that.
        """
        ladder = self.ladder
        ladder.add(increments)
        lengths = np.append(now - np.array(ladder.times), now - self.step_time)
        starts = np.concatenate([ladder.starts, self.step_start[:, :, None]], axis=2)
        windows = ladder.total[:, :, None] - starts
        if self.reference is not None:
            windows = np.where(STABLE[:, :, None], self.reference[:, :, None], windows)
        sums = Sums(*windows)
        requests = sums.canary_finished + running[:, None]
        ratio = self._fresh(sums, lengths, running) if counted else None
        change, information = self._change(sums, lengths, kappas, excess, base, ratio)
        spread = self._spread(information, requests, counted)

        if self.reference is not None:
            spread = np.zeros_like(spread)
        length = self._length_fails(change, spread, now - self.began)
        finding = np.zeros(ladder.runs, dtype=np.int64)
        findings = (
            (Finding.LENGTH, length),
            (Finding.FLOOR, self._floor_fails(sums, requests)),
            (Finding.COLLAPSE, self._collapse_fails(sums, requests)),
            (Finding.ERRORS, self._errors_fail(sums)),
        )
        for code, fired in findings:
            finding = np.where(fired[:, :-1].any(axis=1), int(code), finding)
        passed = self._passes(change[:, -1], spread[:, -1])
        step, rows = change.shape[1] - 1, np.arange(ladder.runs)
        worst = np.full(ladder.runs, step)
        for code, fired in findings:
            found = (finding == code) & fired[:, :step].any(axis=1)
            if found.any():
                # The deepest fall; of the others the shortest window, which no good time before dilutes.
                rank = change if code is Finding.LENGTH else -np.arange(step + 1.0)
                worst = np.where(found, np.where(fired, rank, np.inf)[:, :step].argmin(axis=1), worst)
        result = Look(
            finding=finding,
            passed=passed & (finding == Finding.NOTHING),
            change=change[:, -1],
            information=information[:, -1],
            fall=change[rows, worst],
            fall_information=information[rows, worst],
            seconds=lengths[worst],
            window=windows[:, rows, worst],
        )
        ladder.close(now)
        return result

    def _fresh(self, sums: Sums, lengths: Array, running: Array) -> tuple[Array, Array]:
        """Drafts that arriving requests and those in flight at the window's start stand for, over the canary's own.

        Both are 1 in a steady state. A window that began with an empty canary has none of the second.
        """
        drafts = np.maximum(sums.canary_drafts, 1.0)
        finished, busy = sums.stable_finished[:, :1], sums.stable_busy[:, :1]
        known = (finished >= self.settings.min_requests) & (busy > 0.0)
        per_request = sums.stable_drafts[:, :1] / np.maximum(finished, 1.0)
        per_second = sums.stable_drafts[:, :1] / np.maximum(busy, 1e-9)
        arrived = np.maximum(sums.canary_finished + sums.canary_running, 0.0)
        before = np.maximum(running[:, None] - sums.canary_running, 0.0)
        return (
            np.where(known, arrived * per_request / drafts, 1.0),
            np.where(known, before * per_second * lengths / drafts, 1.0),
        )

    def _change(
        self,
        sums: Sums,
        lengths: Array,
        kappas: Array,
        excess: Array,
        base: float,
        fresh: tuple[Array, Array] | None,
    ) -> tuple[Array, Array]:
        """Relative change of acceptance length, and one over its variance at the boundary; 0 where unknown."""
        some = (sums.canary_drafts > 0.0) & (sums.stable_drafts > 0.0)
        canary_drafts = np.maximum(sums.canary_drafts, _LITTLE)
        stable_drafts = np.maximum(sums.stable_drafts, _LITTLE)
        stable_length = 1.0 + sums.stable_accepted / stable_drafts
        change = (1.0 + sums.canary_accepted / canary_drafts) / stable_length - 1.0
        stable, slope = at_window(kappas, base, lengths)
        canary = stable * excess[:, None]
        if fresh is not None:
            arriving, before = fresh
            canary = canary * np.minimum(np.maximum((1.0 - slope) * arriving + slope * before, _FRESH[0]), _FRESH[1])
        # Both terms at the boundary: change = -margin.
        variance = (canary / canary_drafts + (1.0 - self.settings.margin) ** 2 * stable / stable_drafts) / (
            stable_length**2
        )
        # A kappa that isn't known is NaN, and NaN is above nothing.
        known = some & (variance > 0.0)
        return np.where(some, change, 0.0), np.where(known, 1.0 / np.where(known, variance, 1.0), 0.0)

    def _spread(self, information: Array, requests: Array, counted: bool) -> Array:
        """Information, but none while a window holds too few requests for a normal law."""
        if not counted:
            return information
        return np.where(requests >= _NORMAL * self.settings.min_requests, information, 0.0)

    def _length_fails(self, change: Array, information: Array, elapsed: float) -> NDArray[np.bool_]:
        margin = self.settings.margin
        score = -information * (change + margin)
        # How many independent windows of this one's information the present period will have held at its end.
        period = int(np.log2(1.0 + elapsed / _PERIOD))
        end = _PERIOD * (2.0 ** (period + 1) - 1.0)
        whole = np.maximum(information[:, :1] * end / elapsed, information)
        ratio = np.divide(whole, information, out=np.ones_like(whole), where=information > 0.0)
        restart = (1.0 - _WHOLE_SHARE) * (1.0 - _LATER) * _LATER**period / ratio
        restart[:, 0] = _WHOLE_SHARE
        bound = -np.log(SHARES["length"] * self.settings.error * restart)
        return crossed(score, information, margin * FALLS, FALL_WEIGHTS, bound)

    def _passes(self, change: Array, information: Array) -> NDArray[np.bool_]:
        margin = self.settings.margin
        score = information * (change + margin)
        bound = np.full(score.shape, np.log(1.0 / self.settings.pass_error))
        return crossed(score, information, margin * GAINS, GAIN_WEIGHTS, bound)

    def _bound(self, share: str) -> float:
        # Windows that end at look k share 1 / (k (k + 1)) of the budget: over all looks that adds up to it.
        looks = self.ladder.looks
        windows = len(self.ladder.indices)
        return float(np.log(windows * looks * (looks + 1.0) / (SHARES[share] * self.settings.error)))

    def _collapse_fails(self, sums: Sums, requests: Array) -> NDArray[np.bool_]:
        settings = self.settings
        canary = sums.canary_accepted / np.maximum(sums.canary_drafts, 1.0)
        stable = sums.stable_accepted / np.maximum(sums.stable_drafts, 1.0)
        suspect = self._comparable(sums, requests) & (canary < settings.collapse * stable)
        if not suspect.any():
            return suspect
        width = float(max(settings.positions, 1))
        expected = np.maximum((1.0 - settings.margin) * (1.0 + stable[suspect]) - 1.0, 0.0)
        evidence = requests[suspect] * entropy(canary[suspect] / width, expected / width)
        suspect[suspect] = (canary[suspect] < expected) & (evidence >= self._bound("collapse"))
        return suspect

    def _floor_fails(self, sums: Sums, requests: Array) -> NDArray[np.bool_]:
        settings = self.settings
        canary = sums.canary_first / np.maximum(sums.canary_drafts, 1.0)
        suspect = self._comparable(sums, requests) & (canary < settings.floor)
        if suspect.any():
            evidence = requests[suspect] * entropy(canary[suspect], np.full(suspect.sum(), settings.floor))
            suspect[suspect] = evidence >= self._bound("floor")
        return suspect

    def _comparable(self, sums: Sums, requests: Array) -> NDArray[np.bool_]:
        """Both arms drafted, enough of the canary's requests are seen, and stable is above the floor."""
        return np.asarray(
            (sums.canary_drafts > 0.0)
            & (sums.stable_drafts > 0.0)
            & (requests >= self.settings.min_requests)
            & (sums.stable_first >= self.settings.floor * sums.stable_drafts)
        )

    def _errors_fail(self, sums: Sums) -> NDArray[np.bool_]:
        settings = self.settings
        ended, failed = sums.canary_ended, sums.canary_failed
        if not failed.any():
            return np.zeros(failed.shape, dtype=bool)
        seen = sums.stable_ended + 1.0
        rate = (sums.stable_failed + 0.5) / seen
        # Stable's rate counts only once it rests on requests; without any, the tolerance alone stands.
        rate = np.where(sums.stable_ended >= settings.min_requests, rate, 0.0)
        allowed = np.clip(settings.errors_ratio * rate + settings.errors_tolerance, 0.0, 0.9)
        rates = allowed[..., None] + (1.0 - allowed[..., None]) * RATES
        exponents = failed[..., None] * np.log(rates / allowed[..., None]) + (ended - failed)[..., None] * np.log(
            (1.0 - rates) / (1.0 - allowed[..., None])
        )
        evidence = exponents.max(axis=-1) - np.log(len(RATES))
        # Each start's evidence is valid at all times at once, so only the starts share the budget: 1 / (s (s + 1)) for
        # the s-th look. The step's own start repeats one of them and counts for nothing here.
        starts = np.array([*self.ladder.indices, self.ladder.looks], dtype=float)
        bound = np.log((starts + 1.0) * (starts + 2.0) / (SHARES["errors"] * settings.error))
        return np.asarray((ended >= settings.min_requests) & (evidence >= bound))
