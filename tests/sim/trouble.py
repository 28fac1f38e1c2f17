"""What traffic and fleets do besides falling: none of it may fail a canary, whatever the method is told of it.

Vectorised like the bench's other cells, on the kernel that the controller calls. A canary whose requests are more or
less alike than stable's, at the same acceptance length, is what tells a test of lengths from one of anything else, so
the naive methods are tuned on it too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specdecode.acceptance.dispersion import Curve
from tests.sim.law import mean_accepted
from tests.sim.naive import METHODS
from tests.sim.ours import NEVER, Counts, Outcome, factor, observed, pasts, play, settings
from tests.sim.traffic import ArmTraffic, Array, Traffic, simulate

LOOKS = 720
FALLS = (0.0, 0.05)
CLIENTS = (5, 20, 100)
# Standard deviation between clients of the acceptance of their traffic, as a part of it.
_UNLIKE = 0.1
# The spread of the canary's requests over that of stable's: the same length on average, its variance half, or twice.
UNLIKE = {"requests more alike": 0.71, "requests less alike": 1.41}
_PODS, _STABLE_PODS = 2, 8
# Stable's pasts and their hours.
_PASTS, _HOURS = 20, 2.0
_TRAFFICS = (Traffic(running=20.0, spread=0.15), Traffic(running=20.0, spread=0.3))


@dataclass(frozen=True, slots=True)
class Found:
    """Outcomes by trouble (with the traffic's spread) and fall; and of the naive methods the highest score of each run
    by method and trouble, at a fall of exactly the margin, where they are tuned on it."""

    outcomes: dict[tuple[str, float], Outcome]
    naive: dict[tuple[str, str], Array]


def drift(looks: int) -> Array:
    """Acceptance over time: a wave of half an hour, a sudden fall by a quarter at 20 minutes, half of it back at 40."""
    look = np.arange(looks)
    wave = 1.0 + 0.1 * np.sin(look * 2.0 * np.pi / 360.0)
    return np.asarray(wave * np.where(look < 240, 1.0, np.where(look < 480, 0.75, 0.875)))


def _scaled(arm: ArmTraffic, traffic: Traffic, fall: float, more: Array, rng: np.random.Generator) -> Counts:
    return observed(arm, traffic, factor(fall, mean_accepted(traffic)) * more, rng)


def _relative(fall: float, traffic: Traffic, path: Array) -> Array:
    """What takes the canary's length by ``fall`` below stable's while stable's acceptance follows ``path``."""
    accepted = mean_accepted(traffic) * path
    return np.asarray(((1.0 - fall) * (1.0 + accepted) - 1.0) / accepted)


def _cut(arm: ArmTraffic, keep: Array) -> ArmTraffic:
    """The arm with some increments lost; ``keep`` by run, look and Pod."""
    return replace(arm, drafts=arm.drafts * keep, accepted=arm.accepted * keep, first=arm.first * keep)


def run(seed: int, runs: int, traffics: tuple[Traffic, ...] = _TRAFFICS, looks: int = LOOKS) -> Found:
    """All troubles, once for each traffic."""
    out = Found({}, {})
    for traffic in traffics:
        found, spread = _one(traffic, seed, runs, looks), f"spread {traffic.spread:g}"
        out.outcomes.update({(f"{title}, {spread}", fall): o for (title, fall), o in found.outcomes.items()})
        out.naive.update({(method, f"{title}, {spread}"): high for (method, title), high in found.naive.items()})
    return out


def _one(traffic: Traffic, seed: int, runs: int, looks: int) -> Found:
    rng = np.random.default_rng(seed)
    known = pasts(traffic, 1, _PASTS, (_STABLE_PODS,), _HOURS)[_STABLE_PODS]
    pick = rng.integers(0, _PASTS, runs)
    past = Curve(known.base, *(a[pick] for a in known.arrays()))
    rules, ones = settings(), np.ones(looks)
    others = traffic.running * (1.0 - traffic.weight) / traffic.weight

    def arm(pods: int, running: float, *, empty: bool, shares: Array | None = None) -> ArmTraffic:
        return simulate(
            traffic, rng, runs=runs, looks=looks, pods=pods, running=running, from_empty=empty, shares=shares
        )

    stable, canary = arm(_STABLE_PODS, others, empty=False), arm(_PODS, traffic.running, empty=True)
    plain = observed(stable, traffic, ones, rng)
    out: dict[tuple[str, float], Outcome] = {}

    def case(title: str, mine: ArmTraffic, blind: frozenset[int] = frozenset(), past: Curve | None = past) -> None:
        cells = [_scaled(mine, traffic, fall, ones, rng) for fall in FALLS]
        out.update({(title, f): o for f, o in zip(FALLS, play(cells, plain, past, rules, blind), strict=True)})

    case("no history", canary, past=None)
    gaps = np.flatnonzero(rng.random(looks) < 0.1)
    case("scrapes late or missing", canary, frozenset([*gaps.tolist(), *range(100, 112), *range(150, 156)]))
    restarts = np.ones((runs, looks, _PODS))
    for pod in range(_PODS):
        # What was counted since the last scrape is lost, and a minute goes by until the next request.
        for at in rng.integers(12, looks - 12, (6, runs)):
            for more in range(12):
                restarts[np.arange(runs), at + more, pod] = 0.0
    case("Pods restart", _cut(canary, restarts))
    hanging = np.ones((runs, looks, _PODS))
    hanging[:, looks // 6 :, 1] = 0.0
    case("a Pod hangs", _cut(canary, hanging))
    case("uneven Pods", arm(_PODS, traffic.running, empty=True, shares=np.array([0.85, 0.15])))

    path = drift(looks)
    both = observed(stable, traffic, path, rng)
    cells = [observed(canary, traffic, path * _relative(fall, traffic, path), rng) for fall in FALLS]
    out.update({("drift", f): o for f, o in zip(FALLS, play(cells, both, past, rules), strict=True)})

    for clients in CLIENTS:
        # A tenth of the connections leads to the canary; each client's traffic is as it is.
        few = max(1, round(clients * traffic.weight))
        means = [1.0 + _UNLIKE * rng.standard_normal((runs, n)).mean(axis=1) for n in (few, clients - few)]
        unlike = np.repeat((means[0] / means[1])[:, None], looks, axis=1)
        cells = [observed(canary, traffic, unlike, rng)]
        out[(f"split by connection, {clients} clients", 0.0)] = play(cells, plain, past, rules)[0]

    naive: dict[tuple[str, str], Array] = {}
    for title, part in UNLIKE.items():
        other = replace(traffic, spread=traffic.spread * part)
        theirs = simulate(other, rng, runs=runs, looks=looks, pods=1, running=traffic.running, from_empty=True)
        level = mean_accepted(traffic) / mean_accepted(other)
        cells = [observed(theirs, other, factor(fall, mean_accepted(traffic)) * level * ones, rng) for fall in FALLS]
        out.update({(title, f): o for f, o in zip(FALLS, play(cells, plain, past, rules), strict=True)})
        for method, score in METHODS.items():
            naive[(method, title)] = score(cells[-1], plain, rules.margin).max(axis=1)
    return Found(out, naive)


def tuned_on(parts: list[Found]) -> list[tuple[float, dict[str, Array]]]:
    """For each trouble that naive methods are tuned on: ours' rate of Fail there, and their highest scores."""
    out = []
    for title in dict.fromkeys(title for _, title in parts[0].naive):
        fail = np.concatenate([p.outcomes[(title, FALLS[-1])].fail for p in parts])
        scores = {m: np.concatenate([p.naive[(m, title)] for p in parts]) for m in METHODS}
        out.append((float((fail < NEVER).mean()), scores))
    return out


def joined(parts: list[Found]) -> list[dict[str, Any]]:
    """Failing and passing of all batches by trouble and fall."""
    rows = []
    for title, fall in parts[0].outcomes:
        fail = np.concatenate([p.outcomes[(title, fall)].fail for p in parts])
        passed = np.concatenate([p.outcomes[(title, fall)].passed for p in parts])
        rows.append(
            {
                "cell": f"{title}, fall {fall:g}",
                "fall": fall,
                "runs": int(fail.size),
                "fails": int((fail < NEVER).sum()),
                "passes": int((passed < fail).sum()),
            }
        )
    return rows
