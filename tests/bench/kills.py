"""kill -9 of the operator at random moments of a canary: each must end as it would have without."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.bed.api import Json
from tests.bed.processes import BedError
from tests.bench.bars import Bar
from tests.bench.deployed import COLLAPSED, Deployed
from tests.bench.lab import Lab, Measured, say


def measure_kills(lab: Lab, kills: int = 20, at_once: int = 4, seconds: float = 420.0) -> Measured:
    """Canaries, every other one bad, each with an operator of its own that is killed once and started again at once.

    The moment is uniform over the time that a canary of its kind took without; two are run first to see how long that
    is, and how it ends.

    Args:
        lab: where.
        kills: how many canaries.
        at_once: how many run at the same time.
        seconds: longest time of one.
    """
    subjects = [lab.deployed("bad" if index % 2 == 0 else "good") for index in range(kills + 2)]
    bad = [found.namespace for found in subjects[::2]]
    lab.play(
        *({"match": {"namespace": namespace, "revision": 2}} | COLLAPSED for namespace in bad), traffic={"rate": 60}
    )
    with ThreadPoolExecutor(at_once) as pool:
        references = list(pool.map(lambda subject: _trial(lab, subject, None, seconds), subjects[:2]))
        expected = [row["end"] for row in references]
        moments = [lab.rng.uniform(0.0, references[index % 2]["seconds"]) for index in range(kills)]
        rows = list(
            pool.map(lambda pair: _trial(lab, pair[0], pair[1], seconds), zip(subjects[2:], moments, strict=True))
        )
    for index, row in enumerate(rows):
        row["same"] = row["end"] == expected[index % 2]
    differing = [row["name"] for row in rows if not row["same"]]
    bar = Bar.at_least("kill9_same_end", kills - len(differing), "count", kills, ", ".join(differing))
    return Measured([bar], {"without": references, "killed": rows})


def _trial(lab: Lab, deployed: Deployed, kill_after: float | None, seconds: float) -> dict[str, Any]:
    """One canary from its beginning to its end, with a kill so many seconds after the change."""
    operator = lab.operator(deployed, name=f"operator-{deployed.namespace}")
    with operator:
        deployed.apply(capacity={role: {"maxSurge": "50%"} for role in ("prefill", "decode")})
        deployed.wait_ready(180)
        deployed.wait_event("first_draft", 60, revision=1)
        began = time.monotonic()
        deployed.change()
        phase = ""
        if kill_after is not None:
            time.sleep(kill_after)
            status: Json = deployed.status()
            phase = f"{status['rollout']['phase']} {status['rollout'].get('step', 0)}"
            operator.kill()
            operator.start()
        try:
            deployed.wait("its end", lambda: _ended(deployed), seconds)
        except BedError as error:
            say(f"{error}; {deployed.condition('Reconciling')}")
        took = time.monotonic() - began
        row = {
            "name": deployed.namespace,
            "killed_after": kill_after if kill_after is None else round(kill_after, 2),
            "killed_in": phase,
            "seconds": round(took, 1),
            "reason": deployed.rejected().get(2, ""),
            "end": deployed.end(),
        }
    say(f"{row}")
    lab.remove(deployed)
    return row


def _ended(deployed: Deployed) -> bool:
    return (deployed.stable() == 2 or 2 in deployed.rejected()) and deployed.at_rest()


def phases(rows: Sequence[dict[str, Any]]) -> list[str]:
    """In which phases the kills fell."""
    return sorted({str(row["killed_in"]) for row in rows})
