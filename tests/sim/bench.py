"""The bench of the acceptance analysis: ``python -m tests.sim.bench --seed 1 [--runs 2000] [--out build/bench]``.

Writes ``analysis.json`` with every cell's figures and the bars, and with ``--docs FILE`` the table and the plot of that
page between its markers; exits 1 if a bar is missing or doesn't hold. Work is split over processes by batches of runs.
A batch shares its simulated traffic between all falls, Pod counts and methods.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specdecode.acceptance.dispersion import Curve
from specdecode.acceptance.kernel import SHARES
from tests.sim import checks, trouble
from tests.sim.bound import lower_bound
from tests.sim.judge import FALLS, HARMLESS, judge
from tests.sim.naive import METHODS
from tests.sim.oracle import oracle
from tests.sim.ours import Cell, Counts, Outcome, fallen, grouped, observed, pasts, play, settings
from tests.sim.report import write_page
from tests.sim.traffic import Array, Traffic, simulate

MARGIN, ERROR = 0.05, 0.01
LOOKS = 720
PODS = {1: 4, 2: 8, 8: 16}
# Stable's pasts that runs draw from; at a heavy load each takes long to simulate, and they differ little.
PASTS, HEAVY_PASTS = 60, 12
# Runs of each trouble for one of each scenario: rates of 1 % are told from 1.6 % there, cell by cell.
_MORE_TROUBLE = 2
_OWN = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


@dataclass(frozen=True, slots=True)
class Job:
    """One batch of runs of one scenario; ``past`` seeds stable's history, which all batches share."""

    traffic: Traffic
    runs: int
    seed: int
    past: int


def scenarios() -> list[Traffic]:
    """Spread and concurrency of the canary, as asked for."""
    return [Traffic(running=n, spread=s) for s in (0.15, 0.3) for n in (2.0, 20.0, 200.0)]


def name(traffic: Traffic) -> str:
    """A scenario in words."""
    return f"spread {traffic.spread:g}, {traffic.running:g} running"


def run(job: Job) -> dict[str, Any]:
    """All cells of one batch: first looks of Fail and Pass, and the scores of the other methods."""
    traffic, rng = job.traffic, np.random.default_rng(job.seed)
    stable_running = traffic.running * (1.0 - traffic.weight) / traffic.weight
    stable = simulate(traffic, rng, runs=job.runs, looks=LOOKS, pods=16, running=stable_running, from_empty=False)
    canary = simulate(traffic, rng, runs=job.runs, looks=LOOKS, pods=8, running=traffic.running, from_empty=True)
    out: dict[str, Any] = {"drafts": np.cumsum(canary.drafts.sum(axis=2), axis=1).astype(np.float32), "ours": {}}
    for pods, stable_pods in PODS.items():
        many = HEAVY_PASTS if traffic.running >= 200.0 else PASTS
        known = pasts(traffic, job.past, many, tuple(PODS.values()))[stable_pods]
        pick = rng.integers(0, many, job.runs)
        past = Curve(known.base, *(a[pick] for a in known.arrays()))
        cells = [Cell(f) for f in HARMLESS] + (FALLS if pods == 1 else [])
        mine, other = grouped(canary, pods), observed(grouped(stable, stable_pods), traffic, np.ones(LOOKS), rng)
        seen = [fallen(mine, traffic, cell, LOOKS, rng) for cell in cells]
        outcomes = play(seen, other, past, settings(MARGIN, ERROR))
        out["ours"] |= {(pods, cell): outcome for cell, outcome in zip(cells, outcomes, strict=True)}
        if pods == 1:
            out |= _others(traffic, dict(zip(cells, seen, strict=True)), other)
    return out


def _others(traffic: Traffic, seen: dict[Cell, Counts], stable: Counts) -> dict[str, Any]:
    """Scores of the oracle and of the naive methods, by run and look; where no call is wanted the highest alone."""
    law, null = oracle(traffic, LOOKS, MARGIN), seen[Cell(MARGIN)]

    def highest(score: Array) -> Array:
        return np.asarray(score.max(axis=1, keepdims=True))

    tests: dict[Any, Array] = {
        ("pass", None): highest(law.from_start(null, stable, MARGIN)),
        ("pass", Cell()): law.from_start(seen[Cell()], stable, MARGIN),
    }
    for fall in (0.1, 0.2):
        shift = MARGIN - fall
        tests[("start", fall, None)] = highest(law.from_start(null, stable, shift))
        tests[("late", fall, None)] = highest(law.any_onset(null, stable, shift))
        for cell in FALLS:
            if cell.fall == fall:
                which = law.any_onset if cell.onset else law.from_start
                tests[("late" if cell.onset else "start", fall, cell)] = which(seen[cell], stable, shift)
    naive = {}
    for method, score in METHODS.items():
        for cell, counts in seen.items():
            found = score(counts, stable, MARGIN)
            naive[(method, cell)] = (found if cell in FALLS else highest(found)).astype(np.float16)
    return {"oracle": {k: v.astype(np.float32) for k, v in tests.items()}, "naive": naive}


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Batches of one scenario put together; takes them out of ``parts``."""

    def cat(values: list[Any]) -> Any:
        if isinstance(values[0], Outcome):
            return Outcome(*(np.concatenate([getattr(v, f) for v in values]) for f in ("fail", "passed", "finding")))
        return np.concatenate(values)

    out: dict[str, Any] = {"drafts": cat([p["drafts"] for p in parts])}
    for group in ("ours", "oracle", "naive"):
        out[group] = {key: cat([p[group].pop(key) for p in parts]) for key in list(parts[0][group])}
    return out


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=2000, help="runs a scenario")
    parser.add_argument("--single", type=int, default=240, help="runs of whole fleets for each of the other bars")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--docs", type=Path, help="the page whose table and plot are written anew")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run all, write the file, say the bars."""
    options = _options(arguments)
    seed, runs = options.seed, options.runs
    began = time.monotonic()
    jobs: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = []
    for traffic in scenarios():
        size = 50 if traffic.running >= 200.0 else 125
        for first in range(0, runs, size):
            job = Job(traffic, min(size, runs - first), seed * 1_000_003 + len(jobs), seed)
            jobs.append((name(traffic), run, (job,)))
    jobs += [("trouble", trouble.run, (seed * 1_000_003 + k, 200)) for k in range(-(-runs * _MORE_TROUBLE // 200))]
    jobs += [
        ("bound", lower_bound, (traffic, MARGIN, SHARES["length"] * ERROR, tuple((c.fall, c.onset) for c in FALLS)))
        for traffic in scenarios()
    ]
    jobs += [("checks", checks.tally, work) for work in checks.work(seed, min(runs, options.single))]
    parts: dict[str, list[Any]] = {}
    with ProcessPoolExecutor(options.processes) as pool:
        waiting = deque((title, pool.submit(what, *given)) for title, what, given in jobs)
        while waiting:
            # A future that is done with must go, or it keeps its batch in memory.
            title, future = waiting.popleft()
            parts.setdefault(title, []).append(future.result())
            print(f"{time.monotonic() - began:6.0f} s  {title}", file=sys.stderr, flush=True)
    troubles, bounds, tallies = parts.pop("trouble"), parts.pop("bound"), parts.pop("checks")
    known = {name(traffic): bound for traffic, bound in zip(scenarios(), bounds, strict=True)}
    results = {scenario: joined(batches) for scenario, batches in parts.items()}
    rows, bars = judge(results, known, trouble.joined(troubles), trouble.tuned_on(troubles), MARGIN, ERROR)
    bars += checks.bars(tallies) + checks.cost(seed)
    document = {
        "seed": seed,
        "runs": runs,
        "seconds": round(time.monotonic() - began),
        # What it takes of a processor, whatever ran beside.
        "cpu_seconds": round(sum(sum(resource.getrusage(who)[:2]) for who in _OWN)),
        "bars": bars,
        "bounds": known,
        "table": rows,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "analysis.json").write_text(json.dumps(document, indent=1, default=float) + "\n")
    if options.docs:
        write_page(options.docs, document)
    for bar in bars:
        print(f"{bar['name']:20} {bar['value']:.4g} (bound {bar['bound']:g}) {'holds' if bar['holds'] else 'FAILS'}")
    return 0 if all(bar["holds"] for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
