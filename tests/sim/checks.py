"""The bars that single runs show: whole fleets through the whole analysis, a scenario at a time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from scipy import stats

from specdecode.acceptance import Analysis, Policy, Reason, Sample, ScrapeError, Verdict, VerdictKind
from tests.sim.fleet import Behaviour, Fleet

Change = Callable[[list[Sample], int], Iterable[Sample | ScrapeError]]


def _start(policy: Policy | None = None) -> Analysis:
    analysis = Analysis(policy or Policy(), steps=1, split="request", trust_connection=False, now=0.0)
    analysis.begin_step(0, 10.0, 0.0)
    return analysis


def _play(fleet: Fleet, looks: int, change: Change = lambda items, _: items) -> list[Verdict]:
    analysis, verdicts = _start(), []
    for look in range(looks):
        analysis.observe(change(fleet.step(), look))
        verdicts.append(analysis.look(fleet.now))
        if verdicts[-1].kind is VerdictKind.FAIL:
            break
    return verdicts


def _bar(title: str, misses: int, runs: int, bound: float, worst: str) -> dict[str, Any]:
    high = 1.0 if misses >= runs else float(stats.beta.ppf(0.975, misses + 1, runs - misses))
    return {
        "name": title,
        "value": high,
        "unit": f"rate, far end, {runs} runs",
        "bound": bound,
        "holds": high <= bound,
        "worst": worst,
        "misses": misses,
    }


def _count(title: str, misses: int, runs: int, worst: str) -> dict[str, Any]:
    return {
        "name": title,
        "value": misses,
        "unit": f"of {runs} runs",
        "bound": 0,
        "holds": misses == 0,
        "worst": worst,
    }


def collapse(seed: int, runs: int) -> dict[str, Any]:
    """3.5 to 1.1 at 2 s: Fail at the second scrape with traffic from at least 20 requests."""
    late = 0
    for k in range(runs):
        fleet = Fleet(seed + k, Behaviour(running=45, mean=0.91, spread=0.06), Behaviour(running=20))
        fleet.behaviour["canary"] = Behaviour(running=20 * (1 + k % 10), mean=0.91, spread=0.06, keep=0.04)
        analysis, enough = _start(Policy(interval=2.0)), 0
        for _ in range(200):
            items = fleet.step(2.0)
            analysis.observe(items)
            verdict = analysis.look(fleet.now)
            canary = [s for s in items if s.arm == "canary"]
            requests = sum((s.requests_finished or 0.0) + (s.requests_running or 0.0) for s in canary)
            enough += requests >= 20
            if verdict.kind is VerdictKind.FAIL or enough > 2:
                break
        late += not (verdict.kind is VerdictKind.FAIL and enough <= 2)
    bar = _bar("collapse", late, runs, 0.01, "Fail later than the second scrape")
    # "In 99 % of runs" is judged by the rate; its interval stands beside it.
    bar["value"], bar["unit"] = late / runs, f"rate, {runs} runs"
    bar["holds"] = bar["value"] <= 0.01
    return bar


def errors(seed: int, runs: int) -> dict[str, Any]:
    """Half failing, or all with nothing drafted: Fail within 3 scrapes of the 20th ended request; 0.1 %: no Fail."""
    misses = 0
    for k in range(runs):
        silent = k % 2 == 1
        fleet = Fleet(
            seed + k, Behaviour(running=20), Behaviour(running=60, failing=1.0 if silent else 0.5, silent=silent)
        )
        analysis, origin, scrapes = _start(), None, 0
        for _ in range(100):
            items = fleet.step()
            analysis.observe(items)
            verdict = analysis.look(fleet.now)
            canary = [s for s in items if s.arm == "canary"]
            ended = sum((s.requests_finished or 0.0) + (s.requests_failed or 0.0) for s in canary)
            origin = ended if origin is None else origin
            scrapes += ended - origin >= 20
            if verdict.kind is VerdictKind.FAIL or scrapes > 3:
                break
        misses += verdict.reason is not Reason.REQUESTS_FAILING
    quiet = max(5, runs // 10)
    for k in range(quiet):
        fleet = Fleet(seed + k, Behaviour(running=20, failing=0.001), Behaviour(running=20, failing=0.001))
        misses += any(v.kind is VerdictKind.FAIL for v in _play(fleet, 720))
    return _count("errors", misses, runs + quiet, "late, or a Fail at 0.1 % on both arms")


def harmless(seed: int, runs: int) -> list[dict[str, Any]]:
    """Changes of depth, of its schedule, of counting, and of the traffic on both arms: no Fail."""
    pairs = {
        "1 to 8": (Behaviour(depth=1), Behaviour(depth=8)),
        "8 to 1": (Behaviour(depth=8), Behaviour(depth=1)),
        "3 to 2": (Behaviour(depth=3), Behaviour(depth=2)),
        "schedule, told": (Behaviour(depth=3), Behaviour(depths=(3, 2), tells_drafted=True)),
        "schedule, untold": (Behaviour(depth=3), Behaviour(depths=(3, 2))),
        "aggregated to P/D": (Behaviour(depth=3), Behaviour(depth=3, empty_first=True)),
        "P/D to aggregated": (Behaviour(depth=3, empty_first=True), Behaviour(depth=3)),
    }
    each = max(2, runs // len(pairs))
    failed = {
        title: sum(any(v.kind is VerdictKind.FAIL for v in _play(Fleet(seed + k, *pair), 240)) for k in range(each))
        for title, pair in pairs.items()
    }
    worst = max(failed, key=lambda title: failed[title])
    depth = _bar("depth", sum(failed.values()), each * len(pairs), 0.016, worst)

    def drifting(k: int) -> bool:
        fleet = Fleet(seed + k, Behaviour(), Behaviour())

        def turn(items: list[Sample], look: int) -> list[Sample]:
            # A sudden change at ten minutes upon a slow wave of the day.
            keep = 0.85 + 0.15 * math.cos(look / 120.0) - (0.25 if look >= 120 else 0.0)
            for behaviour in fleet.behaviour.values():
                behaviour.keep = keep
            return items

        return any(v.kind is VerdictKind.FAIL for v in _play(fleet, 360, turn))

    return [depth, _bar("drift", sum(drifting(k) for k in range(runs)), runs, 0.016, "wave and step on both arms")]


def no_data(seed: int, runs: int) -> dict[str, Any]:
    """Metrics away for 30 s, 60 s and for good; idle; garbage: never Fail, and no Pass while it lasts."""
    wrong = 0
    for k in range(runs):
        begin, length = 20 + 7 * (k % 20), (6, 12, 1000)[k % 3]
        garbage = k % 2 == 1

        def lose(items: list[Sample], look: int) -> list[Sample | ScrapeError]:
            if not begin <= look < begin + length:  # noqa: B023
                return list(items)
            if garbage:  # noqa: B023
                return [Sample(s.t, s.arm, s.pod, s.engine, 3, math.nan, -1.0, 0.0, (math.inf,)) for s in items]
            return [ScrapeError(s.t, s.arm, s.pod, "connection refused") for s in items]

        verdicts = _play(Fleet(seed + k, Behaviour(running=60), Behaviour(running=60)), 200, lose)
        during = verdicts[begin + 6 : begin + length]
        wrong += any(v.kind is VerdictKind.FAIL for v in verdicts)
        wrong += any(v.kind is VerdictKind.PASS for v in during)
        idle = _play(Fleet(seed + k, Behaviour(), Behaviour(running=0.0)), 20)
        wrong += any(v.kind is not VerdictKind.NO_DATA for v in idle)
    return _count("no_data", wrong, runs, "outages of 30 s, 60 s and for good; idle; garbage")


def restart(seed: int, runs: int) -> dict[str, Any]:
    """Stopped and restored at a random look: the same verdict, at most one look later."""

    def end(number: int, keep: float, stop: int | None) -> tuple[VerdictKind, int]:
        fleet = Fleet(number, Behaviour(running=60), Behaviour(running=60, keep=keep))
        analysis = _start()
        for look in range(240):
            if look == stop:
                state = json.loads(json.dumps(analysis.state()))
                analysis = Analysis(
                    Policy(), steps=1, split="request", trust_connection=False, now=fleet.now, state=state
                )
            analysis.observe(fleet.step())
            verdict = analysis.look(fleet.now)
            if verdict.kind in (VerdictKind.PASS, VerdictKind.FAIL):
                return verdict.kind, look
        return verdict.kind, 240

    different = 0
    for k in range(runs):
        keep = (1.0, 0.7)[k % 2]
        kind, look = end(seed + k, keep, None)
        again, later = end(seed + k, keep, 1 + (k * 37) % max(look, 1))
        different += again is not kind or abs(later - look) > 1
    return _count("restart", different, runs, "one restart at any look before the verdict")


def cost(seed: int) -> list[dict[str, Any]]:
    """One look, in CPU time, and the state of one arm."""
    fleet, analysis = Fleet(seed, Behaviour(), Behaviour(), pods=(4, 1)), _start()
    spent, size = [], 0
    for _ in range(300):
        items = fleet.step()
        began = time.process_time()
        analysis.observe(items)
        analysis.look(fleet.now)
        spent.append(time.process_time() - began)
        size = max(size, len(json.dumps(analysis.state(), separators=(",", ":"))) // 2)
    spent.sort()
    median = 1000.0 * spent[len(spent) // 2]
    return [
        {"name": "cost", "value": median, "unit": "ms a verdict", "bound": 1.0, "holds": median < 1.0, "worst": ""},
        {"name": "cost_state", "value": size, "unit": "bytes an arm", "bound": 4096, "holds": size < 4096, "worst": ""},
    ]


def bars(seed: int, runs: int) -> list[dict[str, Any]]:
    """All of them."""
    return [
        collapse(seed, runs),
        errors(seed, runs),
        *harmless(seed, runs),
        no_data(seed, max(6, runs // 5)),
        restart(seed, max(4, runs // 5)),
        *cost(seed),
    ]
