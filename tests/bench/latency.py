"""How long a bad canary keeps its traffic, by what an independent watch sees of router Pods and the entry Service."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tests.bed.api import Json
from tests.bed.processes import BedError
from tests.bench.bars import Bar
from tests.bench.deployed import COLLAPSED, FAILING, Deployed
from tests.bench.lab import Lab, Measured, load, say

COLLAPSE_MEDIAN: Final = 7.0
COLLAPSE_WORST: Final = 10.0
FAILING_WORST: Final = 9.0
"""Seconds."""
PEERS: Final = {"best, tuned to the edge": 15.2, "usual setting": 41.0}
"""Seconds from a bad canary's first Ready Pod to the end of its traffic: Argo Rollouts 1.10.2 on the same machine, with
exact counters (interval 5 s, failureLimit 0, window 20 s; and 10 s, 2, 1 m)."""


def measure_collapse(lab: Lab, runs: int = 10, rates: Sequence[float] = (30, 10)) -> Measured:
    """Acceptance length 3.5 to 1.1 from the canary's first draft on, its answers right; one resource at a time.

    Args:
        lab: where.
        runs: at 100 requests a second, of which the canary gets a tenth.
        rates: fewer requests a second, tried twice each and shown without a bar.
    """
    tried = [100.0] * runs + [rate for rate in rates for _ in range(2)]
    with lab.operator():
        table = [_run(lab, COLLAPSED, rate, "first_draft") for rate in tried]
    judged = [row["seconds"] for row in table[:runs]]
    worst = max(table[:runs], key=lambda row: float(row["seconds"]))
    ready = [row["seconds_from_ready"] for row in table[:runs]]
    where = f"run {table.index(worst) + 1} of {runs}, load {worst['load']}"
    return Measured(
        [
            Bar.at_most("collapse_seconds_median", statistics.median(judged), "s", COLLAPSE_MEDIAN, f"{runs} runs"),
            Bar.at_most("collapse_seconds_worst", max(judged), "s", COLLAPSE_WORST, where),
        ],
        {
            "runs": table,
            "from_first_ready_pod": {"median": statistics.median(ready), "worst": max(ready), "peers": PEERS},
        },
    )


def measure_failing(lab: Lab, runs: int = 5) -> Measured:
    """Every request of the canary fails before it drafts anything; from the 20th that failed."""
    with lab.operator():
        table = [_run(lab, FAILING, 100.0, "failed_request", n=20) for _ in range(runs)]
    worst = max(table, key=lambda row: float(row["seconds"]))
    where = f"run {table.index(worst) + 1} of {runs}, load {worst['load']}"
    return Measured([Bar.at_most("failing_seconds_worst", worst["seconds"], "s", FAILING_WORST, where)], table)


def _run(lab: Lab, canary: Json, rate: float, since: str, **fields: Any) -> dict[str, Any]:
    """One canary that is bad: how long it kept its traffic after an event, and after its first Ready Pod."""
    deployed = lab.deployed("fall")
    lab.play({"match": {"revision": 2}} | canary, traffic={"rate": rate})
    row: dict[str, Any] = {"rate": rate, "seconds": math.inf, "seconds_from_ready": math.inf}
    try:
        deployed.apply()
        deployed.wait_ready()
        deployed.wait_event("first_draft", 30, revision=1)
        time.sleep(lab.rng.uniform(3.0, 5.0))  # so that the canary begins at any moment between two scrapes
        deployed.change()
        began = deployed.wait_event(since, 60, **fields)
        deployed.wait("the end of its traffic", lambda: deployed.traffic_gone() is not None, 60)
        deployed.wait("the rollback's end", lambda: 2 in deployed.rejected(), 60)
        gone = deployed.traffic_gone()
        if gone is not None:
            row |= {"seconds": round(gone - began, 2), "seconds_from_ready": round(gone - _first_ready(deployed), 2)}
    except BedError as error:
        row["error"] = f"{error}; status: {deployed.status()}"
    row |= {"steps_reached": sorted(_weights(deployed)), "reason": deployed.rejected().get(2, ""), "load": load()}
    say(f"{deployed.namespace}: {row}")
    lab.remove(deployed)
    return row


def _first_ready(deployed: Deployed) -> float:
    return float(deployed.fleet.events("pod_ready", namespace=deployed.namespace, revision=2)[0]["at"])


def _weights(deployed: Deployed) -> Iterable[float]:
    events = deployed.fleet.events("weight", namespace=deployed.namespace, revision=2)
    return {float(event["weight"]) for event in events if event["routers"]}
