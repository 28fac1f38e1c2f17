"""What traffic and fleets do besides falling: none of it may fail a canary, whatever the method is told of it.

Vectorised like the bench's other cells, on the kernel that the controller calls. A canary whose requests are more or
less alike than stable's, at the same acceptance length, is what tells a test of lengths from one of anything else.
The naive methods see the same traces, and are tuned on all whose traffic is split by request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specdecode.acceptance.dispersion import Curve
from tests.sim.law import accepting, mean_accepted
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
_TRAFFICS = tuple(Traffic(running=n, spread=s) for n in (20.0, 2.0) for s in (0.15, 0.3))
_SPLIT = "split by connection"
# With fewer requests in flight only a fall of exactly the margin is tried: there a test is nearest to its error.
_FEW = 20.0


@dataclass(frozen=True, slots=True)
class Found:
    """Outcomes by trouble (with the traffic) and fall; of the naive methods the highest score of each run, by method,
    trouble and fall."""

    outcomes: dict[tuple[str, float], Outcome]
    naive: dict[tuple[str, str, float], Array]


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
    """The arm with some increments lost, and the requests that would have ended then; ``keep`` by run, look and Pod."""
    drafts, accepted, first = arm.drafts * keep, arm.accepted * keep, arm.first * keep
    return replace(arm, drafts=drafts, accepted=accepted, first=first, finished=arm.finished * keep.mean(axis=2))


def run(seed: int, runs: int, traffics: tuple[Traffic, ...] = _TRAFFICS, looks: int = LOOKS) -> Found:
    """All troubles, once for each traffic."""
    out = Found({}, {})
    for traffic in traffics:
        found, which = _one(traffic, seed, runs, looks), f"spread {traffic.spread:g}, {traffic.running:g} running"
        out.outcomes.update({(f"{title}, {which}", fall): o for (title, fall), o in found.outcomes.items()})
        out.naive.update({(m, f"{title}, {which}", fall): high for (m, title, fall), high in found.naive.items()})
    return out


def _one(traffic: Traffic, seed: int, runs: int, looks: int) -> Found:
    rng = np.random.default_rng(seed)
    pick = rng.integers(0, _PASTS, runs)

    def past_of(traffic: Traffic) -> Curve:
        known = pasts(traffic, 1, _PASTS, (_STABLE_PODS,), _HOURS)[_STABLE_PODS]
        return Curve(known.base, *(a[pick] for a in known.arrays()))

    past = past_of(traffic)
    rules, ones = settings(), np.ones(looks)
    tried = FALLS if traffic.running >= _FEW else FALLS[-1:]
    others = traffic.running * (1.0 - traffic.weight) / traffic.weight

    out = Found({}, {})

    def arm(pods: int, shares: Array | None = None, traffic: Traffic = traffic) -> ArmTraffic:
        empty = pods != _STABLE_PODS
        running = traffic.running if empty else others
        return simulate(
            traffic, rng, runs=runs, looks=looks, pods=pods, running=running, from_empty=empty, shares=shares
        )

    stable, canary = arm(_STABLE_PODS), arm(_PODS)
    plain = observed(stable, traffic, ones, rng)

    def judged(
        title: str,
        cells: list[Counts],
        stable: Counts = plain,
        past: Curve | None = past,
        falls: tuple[float, ...] = tried,
        blind: frozenset[int] = frozenset(),
    ) -> None:
        for fall, cell, outcome in zip(falls, cells, play(cells, stable, past, rules, blind), strict=True):
            out.outcomes[(title, fall)] = outcome
            for method, score in METHODS.items():
                out.naive[(method, title, fall)] = score(cell, stable, rules.margin).max(axis=1)

    def case(title: str, mine: ArmTraffic, blind: frozenset[int] = frozenset(), past: Curve | None = past) -> None:
        judged(title, [_scaled(mine, traffic, fall, ones, rng) for fall in tried], past=past, blind=blind)

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
    case("uneven Pods", arm(_PODS, np.array([0.85, 0.15])))

    path = drift(looks)
    both = observed(stable, traffic, path, rng)
    judged("drift", [observed(canary, traffic, path * _relative(f, traffic, path), rng) for f in tried], both)

    ended = replace(traffic, tokens=1.0)
    parts = [accepting(traffic, fall) for fall in tried]
    cells = [observed(arm(_PODS, traffic=replace(ended, tokens=p)), traffic, p * ones, rng) for p in parts]
    theirs = observed(arm(_STABLE_PODS, traffic=ended), traffic, ones, rng)
    judged("requests end by their tokens", cells, theirs, past_of(ended))

    for clients in CLIENTS if len(tried) > 1 else ():
        # A tenth of the connections leads to the canary; each client's traffic is as it is.
        few = max(1, round(clients * traffic.weight))
        means = [1.0 + _UNLIKE * rng.standard_normal((runs, n)).mean(axis=1) for n in (few, clients - few)]
        unlike = np.repeat((means[0] / means[1])[:, None], looks, axis=1)
        judged(f"{_SPLIT}, {clients} clients", [observed(canary, traffic, unlike, rng)], falls=FALLS[:1])

    for title, part in UNLIKE.items():
        other = replace(traffic, spread=traffic.spread * part)
        mine, level = arm(1, traffic=other), mean_accepted(traffic) / mean_accepted(other)
        judged(title, [observed(mine, other, factor(f, mean_accepted(traffic)) * level * ones, rng) for f in tried])
    return out


def tuned_on(parts: list[Found]) -> list[tuple[float, dict[str, Array]]]:
    """For each trouble that naive methods are tuned on: ours' rate of Fail there, and their highest scores."""
    rows = joined(parts)
    return [(r["fails"] / r["runs"], r["naive"]) for r in rows if not r["cell"].startswith(_SPLIT)]


def joined(parts: list[Found]) -> list[dict[str, Any]]:
    """Failing and passing of all batches by trouble and fall, and the naive methods' highest scores by run."""
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
                "naive": {m: np.concatenate([p.naive[(m, title, fall)] for p in parts]) for m in METHODS},
            }
        )
    return rows
