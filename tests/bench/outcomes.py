"""What becomes of canaries that have nothing wrong: harmless ones are promoted, idle ones held."""

from __future__ import annotations

import time
from typing import Any, Final

from tests.bed.api import Json
from tests.bed.operator_process import OperatorProcess
from tests.bed.processes import BedError
from tests.bench.bars import Bar
from tests.bench.deployed import IDLE, Deployed
from tests.bench.lab import Lab, Measured, say

NOISY: Final[Json] = {"acceptance": [0.85, 0.7, 0.55], "concentration": 3, "draftRate": 15, "resetEvery": 90}

# What a person changes, and how the new revision's Pods then behave.
HARMLESS: Final[dict[str, tuple[Json, Json]]] = {
    "another image": ({"engine": {"image": "vllm:0.33.0-next"}}, {}),
    "depth 3 to 2": ({"speculation": {"depth": 2}}, {}),
    "depth 3 to 5": ({"speculation": {"depth": 5}}, {}),
    "an environment variable": ({"engine": {"env": [{"name": "TZ", "value": "UTC"}]}}, {}),
    "another argument, requests unlike each other and counters that reset": (
        {"engine": {"args": {"max-num-seqs": "64"}}},
        NOISY,
    ),
}


def measure_harmless(lab: Lab, changes: tuple[str, ...] = tuple(HARMLESS), seconds: float = 420.0) -> Measured:
    """Harmless changes, all at the same time: each must be promoted, and none rejected."""
    subjects = {change: lab.deployed("good") for change in changes}
    rules = [
        {"match": {"namespace": subjects[change].namespace}} | HARMLESS[change][1]
        for change in changes
        if HARMLESS[change][1]
    ]
    lab.play(*rules, traffic={"rate": 60})
    table: dict[str, Any] = {}
    with lab.operator():
        for deployed in subjects.values():
            deployed.apply(capacity={role: {"maxSurge": "50%"} for role in ("prefill", "decode")})
        for deployed in subjects.values():
            deployed.wait_ready()
        began = time.monotonic()
        for change, deployed in subjects.items():
            deployed.change(HARMLESS[change][0])
        for change, deployed in subjects.items():
            table[change] = _promoted(deployed, began, seconds)
            say(f"{change}: {table[change]}")
    lab.remove(*subjects.values())
    failed = [change for change, row in table.items() if not row["promoted"]]
    bar = Bar.at_least("harmless_promoted", len(table) - len(failed), "count", len(table), ", ".join(failed))
    return Measured([bar], table)


def _promoted(deployed: Deployed, began: float, seconds: float) -> dict[str, Any]:
    left = max(began + seconds - time.monotonic(), 1.0)
    try:
        deployed.wait("promotion", lambda: deployed.stable() == 2 or deployed.rejected(), left)
    except BedError as error:
        say(f"{error}; {deployed.condition('Reconciling')}")
    rejected = deployed.rejected()
    return {
        "promoted": deployed.stable() == 2 and not rejected,
        "seconds": round(time.monotonic() - began, 1),
        "rejected": rejected,
    }


def measure_idle(lab: Lab, seconds: float = 90.0) -> Measured:
    """Canaries that nobody uses: held before and after their deadline, told so by `why`, and promoted once used."""
    unused, late, silent = (lab.deployed("idle") for _ in range(3))
    subjects = {
        "no request to the canary": unused,
        "no request to the canary, past its deadline": late,
        "no request at all": silent,
    }
    rules: list[Json] = [{"match": {"namespace": found.namespace, "revision": 2}} | IDLE for found in (unused, late)]
    rules.append({"match": {"namespace": silent.namespace}} | IDLE)
    lab.play(*rules, traffic={"rate": 60})
    table: dict[str, Any] = {}
    with lab.operator() as operator:
        for deployed in (unused, silent):
            deployed.apply()
        late.apply(analysis={"interval": "2s", "deadline": "20s"})
        for deployed in subjects.values():
            deployed.wait_ready()
            deployed.change()
        for deployed in subjects.values():
            deployed.wait_event("weight", 60, routers=1)
        before = _scrapes(operator)
        lab.pass_time(seconds)
        pods = sum(sum(deployed.workloads().values()) for deployed in subjects.values())
        scrapes = (_scrapes(operator) - before) / (pods * seconds / 2.0)
        for what, deployed in subjects.items():
            said = deployed.why()
            held = deployed.canary() == 2 and deployed.stable() == 1 and not deployed.rejected()
            table[what] = {
                "held": held,
                "told": "neither promoted nor rolled back" in said or "NoDataAtDeadline" in said,
                "why": said.splitlines(),
                "ready": deployed.condition("Ready")[1],
                "stalled": deployed.condition("Stalled")[1],
            }
            say(f"{what}: {table[what]}")
        lab.play(traffic={"rate": 60})
        began = time.monotonic()
        for what, deployed in subjects.items():
            table[what]["once used"] = _promoted(deployed, began, 300.0)
    lab.remove(*subjects.values())
    good = [what for what, row in table.items() if row["held"] and row["told"] and row["once used"]["promoted"]]
    bar = Bar.at_least("idle_held", len(good), "count", len(table), ", ".join(table.keys() - set(good)))
    # Nothing but the beat makes a scrape, and nothing but a scrape a look.
    beat = Bar.at_most("idle_scrapes", scrapes, "a beat", 1.2)
    return Measured([bar, beat], table)


def _scrapes(operator: OperatorProcess) -> float:
    """Pages that the operator has asked for so far."""
    lines = operator.metrics().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("specdecode_scrapes_total{"))
