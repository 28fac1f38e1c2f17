"""The operator's own kernel over simulated traffic: many runs at once, the code that the controller calls with one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from specdecode.acceptance.dispersion import Curve, Dispersion, excess, kappa, merged, remeasure, resampled
from specdecode.acceptance.kernel import Finding, Kernel, Settings
from specdecode.acceptance.ladder import COLUMNS
from specdecode.acceptance.length import Noise
from tests.sim.law import mean_accepted
from tests.sim.traffic import LOOK, POSITIONS, ArmTraffic, Array, Traffic, draft_noise, simulate

SCALES = 11
HISTORY_LOOK = 30.0
# Of the hour whose scrapes come in pairs a look apart; the controller has such pairs from all of stable's time.
_SHORT_LOOKS = 720
NEVER = 1 << 30
# Pasts simulated in one go, which bounds the memory.
_PASTS_AT_ONCE = 5


@dataclass(frozen=True, slots=True)
class Cell:
    """What is done to the traffic: the canary's acceptance length falls by ``fall`` from look ``onset`` on."""

    fall: float = 0.0
    onset: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """What the scrapers would have counted, by run, look and Pod."""

    drafts: Array
    accepted: Array
    first: Array
    finished: Array
    running: Array


@dataclass(frozen=True, slots=True)
class Outcome:
    """First looks (counted from 1; NEVER if none) of Fail and Pass, what failed, and the canary's drafts by look."""

    fail: NDArray[np.int64]
    passed: NDArray[np.int64]
    finding: NDArray[np.int64]


def settings(margin: float = 0.05, error: float = 0.01, min_requests: int = 20) -> Settings:
    """The default policy's."""
    return Settings(
        margin=margin,
        error=error,
        pass_error=error,
        min_requests=min_requests,
        positions=POSITIONS,
        floor=0.1,
        collapse=0.5,
        errors_tolerance=0.02,
        errors_ratio=2.0,
    )


def factor(fall: float, per_draft: float) -> float:
    """What accepted tokens are multiplied with so that 1 + per_draft falls by ``fall``."""
    return ((1.0 - fall) * (1.0 + per_draft) - 1.0) / per_draft


def observed(arm: ArmTraffic, traffic: Traffic, scale: Array, rng: np.random.Generator) -> Counts:
    """Add the noise of single drafts; ``scale``, by look or by run and look, multiplies acceptance."""
    scale = np.broadcast_to(scale, arm.drafts.shape[:2])[:, :, None]
    noise = np.sqrt(arm.drafts * draft_noise(traffic)) * rng.standard_normal(arm.drafts.shape)
    accepted = np.maximum((arm.accepted + noise) * scale, 0.0)
    return Counts(arm.drafts, accepted, arm.first * scale, arm.finished, arm.running)


def fallen(arm: ArmTraffic, traffic: Traffic, cell: Cell, looks: int, rng: np.random.Generator) -> Counts:
    """What the scrapers count of an arm whose acceptance falls as the cell says."""
    scale = np.where(np.arange(looks) >= cell.onset, factor(cell.fall, mean_accepted(traffic)), 1.0)
    return observed(arm, traffic, scale, rng)


def grouped(arm: ArmTraffic, pods: int) -> ArmTraffic:
    """The same requests on fewer Pods."""
    runs, looks, many = arm.drafts.shape

    def fold(x: Array) -> Array:
        return np.asarray(x.reshape(runs, looks, pods, many // pods).sum(axis=3))

    return ArmTraffic(fold(arm.drafts), fold(arm.accepted), fold(arm.first), arm.finished, arm.running)


@cache
def pasts(traffic: Traffic, seed: int, runs: int, pods: tuple[int, ...], hours: float = 4.0) -> dict[int, Curve]:
    """Dispersion of stable before a canary, as the controller records it: ``runs`` pasts for each number of Pods."""
    rng = np.random.default_rng(seed)
    looks = int(hours * 3600.0 / HISTORY_LOOK)
    running = traffic.running / traffic.weight
    parts: dict[int, list[Curve]] = {count: [] for count in pods}
    for first in range(0, runs, _PASTS_AT_ONCE):
        some = min(_PASTS_AT_ONCE, runs - first)

        def arm(length: int, look: float, *, runs: int = some) -> ArmTraffic:
            return simulate(
                traffic,
                rng,
                runs=runs,
                looks=length,
                pods=max(pods),
                running=running,
                from_empty=False,
                look=look,
            )

        long, short = arm(looks, HISTORY_LOOK), arm(_SHORT_LOOKS, LOOK)
        for count, found in parts.items():
            counts = observed(grouped(long, count), traffic, np.ones(looks), rng)
            dispersion = Dispersion(HISTORY_LOOK, 9, some, count)
            for i in range(looks):
                dispersion.add(HISTORY_LOOK, counts.drafts[:, i, :], counts.accepted[:, i, :])
            counts = observed(grouped(short, count), traffic, np.ones(_SHORT_LOOKS), rng)
            pairs = Dispersion(LOOK, 1, some, count)
            for i in range(0, _SHORT_LOOKS, round(HISTORY_LOOK / LOOK)):
                pairs.add(LOOK, counts.drafts[:, i, :], counts.accepted[:, i, :])
            found.append(merged(*(resampled(d.curve(), LOOK, SCALES) for d in (dispersion, pairs))))
    return {
        count: Curve(LOOK, *(np.concatenate(arrays) for arrays in zip(*(c.arrays() for c in found), strict=True)))
        for count, found in parts.items()
    }


def play(
    cells: list[Counts], stable: Counts, past: Curve | None, rules: Settings, blind: frozenset[int] = frozenset()
) -> list[Outcome]:
    """Run the kernel over each cell's canary beside the same stable arm, to each run's end or Fail.

    At the looks in ``blind`` no scrape comes in; the next look has all of it.
    """
    runs, looks, _ = stable.drafts.shape
    many = runs * len(cells)
    base = np.tile(np.arange(runs), len(cells))
    alive = np.arange(many)
    fail, passed = np.full(many, NEVER), np.full(many, NEVER)
    finding = np.zeros(many, dtype=np.int64)
    noise: tuple[Array, Array] | None = None
    above: tuple[Array, Array] | None = None
    kernel = Kernel(rules, many, 0.0)
    drafts, accepted = (np.concatenate([getattr(c, name) for c in cells]) for name in ("drafts", "accepted"))
    own = Dispersion(LOOK, SCALES, many, drafts.shape[2])
    other = Dispersion(LOOK, SCALES, runs, stable.drafts.shape[2])
    running = np.concatenate([c.running for c in cells])
    canary = {
        "canary_drafts": drafts.sum(axis=2),
        "canary_accepted": accepted.sum(axis=2),
        "canary_first": np.concatenate([c.first for c in cells]).sum(axis=2),
        "canary_finished": np.concatenate([c.finished for c in cells]),
        "canary_running": np.diff(running, axis=1, prepend=0.0),
    }
    shared = {
        "stable_drafts": stable.drafts.sum(axis=2),
        "stable_accepted": stable.accepted.sum(axis=2),
        "stable_first": stable.first.sum(axis=2),
        "stable_finished": stable.finished,
        "stable_busy": stable.running * LOOK,
    }
    theirs, taken = stable.drafts, stable.accepted
    if blind:
        theirs, taken = theirs.copy(), taken.copy()
        shared = {name: values.copy() for name, values in shared.items()}
    span = 0.0
    for i in range(looks):
        span += LOOK
        if i in blind and i + 1 < looks:
            for values in (drafts, accepted, theirs, taken, *canary.values(), *shared.values()):
                values[:, i + 1] += values[:, i]
            continue
        own.add(span, drafts[alive, i, :], accepted[alive, i, :])
        other.add(span, theirs[:, i, :], taken[:, i, :])
        span = 0.0
        measured = other.curve()
        mine = base[alive]
        if noise is None or above is None or remeasure(i):
            noise = kappa(measured if past is None else merged(past, measured))
            above = excess(Curve(measured.base, *(a[mine] for a in measured.arrays())), own.curve())
        row = np.zeros((len(COLUMNS), alive.size))
        for c, name in enumerate(COLUMNS):
            if name in canary:
                row[c] = canary[name][alive, i]
            elif name in shared:
                row[c] = shared[name][mine, i]
        told = Noise(noise[0][mine], noise[1][mine], *above, LOOK)
        look = kernel.look((i + 1) * LOOK, row, running[alive, i], True, told)
        failed = look.finding != Finding.NOTHING
        new = alive[look.passed]
        passed[new] = np.minimum(passed[new], i + 1)
        if failed.any():
            fail[alive[failed]] = i + 1
            finding[alive[failed]] = look.finding[failed]
            alive = alive[~failed]
            kernel.select(~failed)
            own.select(~failed)
            above = above[0][~failed], above[1][~failed]
            if not alive.size:
                break
    return [Outcome(*(x[c * runs : (c + 1) * runs] for x in (fail, passed, finding))) for c in range(len(cells))]
