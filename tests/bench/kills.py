"""kill -9 of the operator at random moments of a canary: each must end as it would have without."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.bed.operator_process import OperatorProcess
from tests.bed.processes import BedError
from tests.bench.bars import Bar
from tests.bench.deployed import COLLAPSED, NAME, Deployed
from tests.bench.lab import Lab, Measured, say

_LONGEST = 420.0
"""Seconds of one canary."""
_NOT_BEGUN, _OVER = "not begun", "over"


def measure_kills(lab: Lab, kills: int = 20, together: int = 4) -> Measured:
    """Canaries, every other one bad; each is met by a kill at a moment of its own, and the operator starts again.

    The moment is uniform over the time that a canary of its kind took without a kill; two are run first to see how
    long that is, and how it ends. Some canaries share one kill, which finds each of them elsewhere on its way.

    Args:
        lab: where.
        kills: how many canaries.
        together: how many share a kill.
    """
    with lab.operator() as operator:
        without = _round(lab, operator, [None, None])
        rows: list[dict[str, Any]] = []
        while sum(row["met"] for row in rows) < kills and len(rows) < 3 * kills:
            moments = [lab.rng.uniform(0.0, without[index % 2]["seconds"]) for index in range(together)]
            rows += _round(lab, operator, moments)
    for row in rows:
        row["same"] = row["end"] == without[0 if row["bad"] else 1]["end"]
    differing = [row["name"] for row in rows if not row["same"]]
    met = sum(row["met"] for row in rows)
    bar = Bar(
        "kill9_same_end", met - len(differing), "count", kills, met >= kills and not differing, ", ".join(differing)
    )
    return Measured([bar], {"without": without, "killed": rows})


def _round(lab: Lab, operator: OperatorProcess, moments: Sequence[float | None]) -> list[dict[str, Any]]:
    """Canaries at the same time, the first and every other one bad, with a kill so many seconds after each began."""
    subjects = [lab.deployed("good" if index % 2 else "bad") for index in range(len(moments))]
    bad = [deployed.namespace for deployed in subjects[::2]]
    lab.play(
        *({"match": {"namespace": namespace, "revision": 2}} | COLLAPSED for namespace in bad), traffic={"rate": 60}
    )
    for deployed in subjects:
        deployed.apply(capacity={role: {"maxSurge": "50%"} for role in ("prefill", "decode")})
    for deployed in subjects:
        deployed.wait_ready(180)
        deployed.wait_event("first_draft", 60, revision=1)
    killed_at = time.monotonic() + max((moment or 0.0 for moment in moments), default=0.0)
    began: dict[str, float] = {}
    for moment, deployed in sorted(zip(moments, subjects, strict=True), key=lambda pair: -(pair[0] or 0.0)):
        time.sleep(max(killed_at - (moment or 0.0) - time.monotonic(), 0.0))
        deployed.change()
        began[deployed.namespace] = time.monotonic()
    phases = [""] * len(subjects)
    if any(moment is not None for moment in moments):
        time.sleep(max(killed_at - time.monotonic(), 0.0))
        phases = [_phase(deployed) for deployed in subjects]
        operator.kill()
        operator.start()
    rows = []
    for deployed, moment, phase in zip(subjects, moments, phases, strict=True):
        try:
            deployed.wait("its end", partial(_ended, deployed), _LONGEST)
        except BedError as error:
            say(str(error))
        row: dict[str, Any] = {
            "name": deployed.namespace,
            "bad": deployed.namespace in bad,
            "killed_after": moment if moment is None else round(moment, 2),
            "killed_in": phase,
            "met": phase not in ("", _NOT_BEGUN, _OVER),
            "seconds": round(time.monotonic() - began[deployed.namespace], 1),
            "reason": deployed.rejected().get(2, ""),
            "end": deployed.end(),
        }
        say(f"{row}")
        rows.append(row)
    lab.remove(*subjects)
    return rows


def _phase(deployed: Deployed) -> str:
    """Where a canary is; the first Pods of one are made before its status speaks of it."""
    if deployed.bed.api.find("ControllerRevision", deployed.namespace, f"{NAME}-2") is None:
        return _NOT_BEGUN
    if _ended(deployed):
        return _OVER
    rollout = deployed.status()["rollout"]
    return f"{rollout['phase']} {rollout.get('step', 0)}"


def _ended(deployed: Deployed) -> bool:
    return (deployed.stable() == 2 or 2 in deployed.rejected()) and deployed.at_rest()
