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

from specdecode.acceptance.bounds import entropy
from specdecode.acceptance.dispersion import Array
from specdecode.acceptance.ladder import COLUMNS, STABLE, Ladder, Sums, short
from specdecode.acceptance.length import LengthTest, Noise, Windows, counts_requests, fresh, measure

# Shares of 1 - confidence for a false rollback, by measure; they add up to 1.
SHARES = {"length": 0.9, "collapse": 0.025, "errors": 0.025, "floor": 0.025, "latency": 0.025}

# Shares of the distance from a tolerated failure rate to 1.
RATES = np.array([0.1, 0.3, 0.6, 0.9])

# Stable's last window, for the step in which it no longer serves.
_LAST_SECONDS = 600.0
# A window of at least this part of the canary's time can stand for all of it.
_WHOLE = 0.1
# Requests of a window in which they aren't counted.
_MANY = 1e9


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
        # When the canary's first drafts began; None before.
        self.served: float | None = None
        self.ladder = Ladder(runs, now)
        self.step_start: Array = np.zeros((len(COLUMNS), runs))
        self.step_time = now
        self.reference: Array | None = None
        self.length = LengthTest(settings.margin, SHARES["length"] * settings.error, settings.pass_error, runs)

    def compare_with_last(self, now: float) -> None:
        """Stable is leaving: from now on compare with its sums over the last ten minutes, or what there is of them."""
        starts = [k for k, t in enumerate(self.ladder.times) if now - t <= _LAST_SECONDS] or [0]
        last = self.ladder.windows()[:, :, starts[0]]
        self.reference = np.where(STABLE, last, 0.0)
        self.ladder = Ladder(self.ladder.runs, now)

    def begin_step(self, now: float) -> None:
        """Evidence for Pass starts afresh; evidence for Fail goes on."""
        self.length.begin_step()
        self.step_start = self.ladder.total.copy()
        self.step_time = now

    def select(self, runs: NDArray[np.bool_]) -> None:
        """Keep these runs only."""
        self.ladder.select(runs)
        self.length.select(runs)
        self.step_start = self.step_start[:, runs]
        if self.reference is not None:
            self.reference = self.reference[:, runs]

    def state(self) -> dict[str, Any]:
        """JSON of a kernel with one run."""
        return {
            "began": self.began,
            "served": self.served,
            "ladder": self.ladder.state(),
            "step": short(self.step_start[:, 0]),
            "step_time": self.step_time,
            "judged": [float(f"{x[0]:.7g}") for x in (self.length.judged, self.length.judged_step)],
            "slow": bool(self.length.slow[0]),
            "reference": None if self.reference is None else short(self.reference[:, 0]),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what ``state()`` gave."""
        self.began = float(state["began"])
        self.served = None if state["served"] is None else float(state["served"])
        self.ladder = Ladder.restored(state["ladder"])
        self.step_start = np.array([state["step"]], dtype=float).T
        self.step_time = float(state["step_time"])
        self.length.judged[0], self.length.judged_step[0] = state["judged"]
        self.length.slow[0] = state["slow"]
        reference = state["reference"]
        self.reference = None if reference is None else np.array([reference], dtype=float).T

    def look(self, now: float, increments: Array, running: Array, counted: bool, noise: Noise) -> Look:
        """Judge, after adding one look's ``increments`` of shape (columns, runs).

        ``running``: the canary's requests in flight (or its engines, if ``counted`` is false: requests unknown).
        """
        ladder = self.ladder
        if self.served is None and increments[COLUMNS.index("canary_drafts")].any():
            self.served = ladder.times[-1]
        ladder.add(increments)
        lengths = np.append(now - np.array(ladder.times), now - self.step_time)
        starts = np.concatenate([ladder.starts, self.step_start[:, :, None]], axis=2)
        windows = ladder.total[:, :, None] - starts
        if self.reference is not None:
            windows = np.where(STABLE[:, :, None], self.reference[:, :, None], windows)
        sums = Sums(*windows)
        requests = sums.canary_finished + running[:, None]
        measured = measure(sums, lengths, noise, self.settings.margin)
        variance = measured.variance
        least = self.settings.min_requests
        if counted:
            variance = measured.stable + measured.canary * fresh(sums, lengths, running, measured, least)
        change, information = measured.change, 1.0 / variance
        if counted:
            seen = (sums.canary_drafts[:, :1] > 0.0) & counts_requests(sums, least)
            self.length.forgo((seen & (information[:, :1] <= 0.0))[:, 0])
        told = information
        if counted:
            told = np.where(requests >= least, information, 0.0)
        if self.reference is not None:
            told = np.zeros_like(information)
        # Requests that aren't counted can't be too few.
        counts = requests if counted else np.full(requests.shape, _MANY)
        length = self._length_fails(measured, told, counts, lengths, now)
        finding = np.zeros(ladder.runs, dtype=np.int64)
        findings = (
            (Finding.LENGTH, length),
            (Finding.FLOOR, self._floor_fails(sums, requests)),
            (Finding.COLLAPSE, self._collapse_fails(sums, requests)),
            (Finding.ERRORS, self._errors_fail(sums)),
        )
        for code, fired in findings:
            if fired.any():
                finding = np.where(fired[:, :-1].any(axis=1), int(code), finding)
        passed = self.length.passes(change[:, -1], told[:, -1], counts[:, -1])
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

    def _length_fails(
        self,
        measured: Windows,
        information: Array,
        requests: Array,
        lengths: Array,
        now: float,
    ) -> NDArray[np.bool_]:
        fires = np.zeros(information.shape, dtype=bool)
        # A later start can know more than the beginning: requests weigh in more evenly. Which start knows most rests on
        # drafts and noise, not on what was accepted, so the look stays one look.
        old = lengths[:-1] >= _WHOLE * lengths[0]
        rows, best = np.arange(len(fires)), np.where(old, information[:, :-1], -1.0).argmax(axis=1)
        fires[rows, best] = self.length.whole_fails(
            measured.change[rows, best],
            information[rows, best],
            requests[rows, best],
            1.0 + (now - self.ladder.times[-1]) / np.maximum(lengths[best], 1.0),
            0.0 if self.served is None else now - self.served,
        )
        later = slice(1, lengths.size - 1)
        fires[:, later] |= self.length.later_fails(
            measured.change[:, later],
            information[:, later],
            requests[:, later],
            lengths[later],
            np.broadcast_to(measured.slope, information.shape)[:, later],
            now - self.began,
        )
        return fires

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
