"""The bars that single runs show: whole fleets through the whole analysis, a scenario at a time."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from specdecode.acceptance import Analysis, Policy, Reason, Sample, ScrapeError, Verdict, VerdictKind
from specdecode.scrape.exposition import engine_page
from tests.sim.fleet import Behaviour, Fleet
from tests.sim.judge import far_end
from tests.sim.page import full_page

# Misses and runs, by cell.
Tally = dict[str, list[int]]
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


def _tally(misses: int, runs: int) -> Tally:
    return {"": [misses, runs]}


def collapse(seed: int, runs: int) -> Tally:
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
    return _tally(late, runs)


def errors(seed: int, runs: int) -> Tally:
    """Half failing, or all with nothing drafted: Fail within 3 scrapes of the 20th ended request."""
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
    return _tally(misses, runs)


def few_errors(seed: int, runs: int) -> Tally:
    """0.1 % failing on both arms: no Fail."""
    misses = 0
    for k in range(runs):
        fleet = Fleet(seed + k, Behaviour(running=60, failing=0.001), Behaviour(running=60, failing=0.001), pods=(2, 1))
        misses += any(v.kind is VerdictKind.FAIL for v in _play(fleet, 120))
    return _tally(misses, runs)


_PAIRS = {
    "1 to 8": (Behaviour(depth=1), Behaviour(depth=8)),
    "8 to 1": (Behaviour(depth=8), Behaviour(depth=1)),
    "3 to 2": (Behaviour(depth=3), Behaviour(depth=2)),
    "a schedule, told": (Behaviour(depth=3), Behaviour(depths=(3, 2), tells_drafted=True)),
    "a schedule, untold": (Behaviour(depth=3), Behaviour(depths=(3, 2))),
    "aggregated to P/D": (Behaviour(depth=3), Behaviour(depth=3, empty_first=True)),
    "P/D to aggregated": (Behaviour(depth=3, empty_first=True), Behaviour(depth=3)),
}


def depth(seed: int, runs: int) -> Tally:
    """Changes of depth, of its schedule and of counting, at the same acceptance by position: no Fail."""
    out: Tally = {}
    each = -(-runs // len(_PAIRS))
    for title, pair in _PAIRS.items():
        fails = sum(
            any(v.kind is VerdictKind.FAIL for v in _play(Fleet(seed + k, *pair, pods=(2, 1)), 120))
            for k in range(each)
        )
        out[title] = [fails, each]
    return out


def no_data(seed: int, runs: int) -> Tally:
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
    return _tally(wrong, runs)


def restart(seed: int, runs: int) -> Tally:
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
    return _tally(different, runs)


def cost(seed: int) -> list[dict[str, Any]]:
    """One look and one parsed page, in CPU time, and the state of one arm."""
    fleet, analysis = Fleet(seed, Behaviour(), Behaviour(), pods=(4, 1)), _start()
    page, parsing = full_page(), []
    for _ in range(100):
        began = time.process_time()
        engine_page(page, t=0.0, arm="canary", pod="a", prefill_apart=False)
        parsing.append(1000.0 * (time.process_time() - began))
    parse = statistics.median(parsing)
    spent, size = [], 0
    for _ in range(300):
        items = fleet.step()
        began = time.process_time()
        analysis.observe(items)
        analysis.look(fleet.now)
        spent.append(time.process_time() - began)
        size = max(size, len(json.dumps(analysis.state(), separators=(",", ":"))) // 2)
    median = 1000.0 * statistics.median(spent)
    return [
        {"name": "cost", "value": median, "unit": "ms a verdict", "bound": 1.0, "holds": median < 1.0, "worst": ""},
        {
            "name": "parse",
            "value": parse,
            "unit": "ms a page",
            "bound": 2.0,
            "holds": parse < 2.0,
            "worst": f"{len(page)} bytes",
        },
        {"name": "cost_state", "value": size, "unit": "bytes an arm", "bound": 4096, "holds": size < 4096, "worst": ""},
    ]


# The bars: what counts the misses, the rate allowed (0: never) and whether the interval's far end is judged. The
# runs of the costly ones are a part of what is asked for.
_BARS: dict[str, tuple[Callable[[int, int], Tally], float, bool, int]] = {
    "collapse": (collapse, 0.01, False, 1),
    "errors": (errors, 0.0, False, 1),
    "few_errors": (few_errors, 0.016, True, 1),
    "depth": (depth, 0.016, True, 1),
    "no_data": (no_data, 0.0, False, 4),
    "restart": (restart, 0.0, False, 4),
}
_BATCH = 30


def work(seed: int, runs: int) -> list[tuple[str, int, int]]:
    """Batches for ``tally``, of ``runs`` runs in all for each bar."""
    out = []
    for title, (_, _, _, part) in _BARS.items():
        wanted = max(runs // part, 6)
        out += [(title, seed * 7919 + first, min(_BATCH, wanted - first)) for first in range(0, wanted, _BATCH)]
    return out


def tally(title: str, seed: int, runs: int) -> tuple[str, Tally]:
    """Misses and runs of one batch, by cell."""
    return title, _BARS[title][0](seed, runs)


def bars(tallies: Iterable[tuple[str, Tally]]) -> list[dict[str, Any]]:
    """The bars that all batches together make; a bar without a batch is missing and doesn't hold."""
    sums: dict[str, Tally] = {title: {} for title in _BARS}
    for title, found in tallies:
        for cell, (misses, runs) in found.items():
            known = sums[title].setdefault(cell, [0, 0])
            known[0], known[1] = known[0] + misses, known[1] + runs
    out = []
    for title, (_, bound, by_far_end, _) in _BARS.items():
        misses, runs = (sum(values[i] for values in sums[title].values()) for i in (0, 1))
        worst = max(sums[title], key=lambda cell: sums[title][cell][0], default="")
        value = far_end(misses, runs) if by_far_end else misses / runs if runs else 1.0
        unit = "rate, far end" if by_far_end else "rate"
        out.append(
            {
                "name": title,
                "value": value,
                "unit": f"{unit}, {runs} runs",
                "bound": bound,
                "holds": value <= bound,
                "worst": worst if misses else "",
                "misses": misses,
            }
        )
    return out
