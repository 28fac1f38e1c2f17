"""What the operator costs while nothing changes: writes, memory, time."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

from tests.bed.audit import Request, requests
from tests.bed.control_plane import OPERATOR
from tests.bench.bars import Bar
from tests.bench.lab import Lab, Measured, load, say

NUMBERS: Final = 300.0
"""Seconds between two writes of one resource's status that only follow the traffic (invariant 7)."""
RSS_MB: Final = 150.0
NOISE: Final = {"acceptance": [0.85, 0.7, 0.55], "concentration": 3, "draftRate": 15, "resetEvery": 90}
TRAFFIC: Final = {"rate": 6, "life": {"median": 5, "sigma": 1.0}}


def measure_quiet(lab: Lab, resources: int = 20, seconds: float = 600.0, settle: float = 340.0) -> Measured:
    """Resources of 6 Pods under noisy traffic, nothing changing; every write but the Lease's is looked at.

    Args:
        lab: where.
        resources: how many.
        seconds: how long writes are counted.
        settle: seconds from the last one Ready to the beginning of that time: until the guard has had its first word.
    """
    subjects = [lab.deployed("quiet") for _ in range(resources)]
    lab.play(traffic=TRAFFIC, behaviour=NOISE)
    with lab.operator() as operator:
        for deployed in subjects:
            deployed.apply(prefill=1, decode=3, routers=2)
        for deployed in subjects:
            deployed.wait_ready(300)
        say(f"{resources} resources of 6 Pods are Ready")
        lab.pass_time(settle)
        since, used = time.time(), operator.child.cpu_seconds()
        megabytes = []
        while time.time() < since + seconds:
            time.sleep(min(5.0, max(since + seconds - time.time(), 0.0)))
            megabytes.append(operator.child.resident_bytes() / 1e6)
        used = operator.child.cpu_seconds() - used
        made = [r for r in requests(lab.bed.audit_log, user=OPERATOR) if r.is_write]
    beyond, allowed = _beyond(made, since, {deployed.namespace for deployed in subjects})
    lab.remove(*subjects)
    table: dict[str, Any] = {
        "resources": resources,
        "seconds": seconds,
        "status writes within the budget": allowed,
        "lease writes": sum(r.resource == "leases" and r.at >= since for r in made),
        "writes beyond the budget": beyond,
        "rss_mb": {"mean": round(sum(megabytes) / len(megabytes), 1), "max": round(max(megabytes), 1)},
        "operator_cpu_percent_of_a_core": round(100 * used / seconds, 2),
        "load": load(),
    }
    say(f"quiet: {table}")
    return Measured(
        [
            Bar.at_most("quiet_writes", len(beyond), "count", 0, beyond[0] if beyond else f"{allowed} allowed"),
            Bar.at_most("operator_rss_mb", max(megabytes), "MB", RSS_MB, f"{resources} resources"),
        ],
        table,
    )


def _beyond(made: list[Request], since: float, namespaces: set[str]) -> tuple[list[str], int]:
    """Writes from `since` on (Unix seconds) that invariant 7 doesn't allow, in words, and how many it does.

    It allows the Lease, and for each resource one status in five minutes.
    """
    last: dict[str, float] = {}
    beyond: list[str] = []
    count: Counter[str] = Counter()
    for write in made:
        if write.resource == "leases" or write.namespace not in namespaces:
            continue
        status = write.resource == "specdecodedeployments" and write.subresource == "status"
        spent = status and write.at - last.get(write.namespace, 0.0) < NUMBERS - 1.0
        if status:
            last[write.namespace] = write.at
        if write.at < since:
            continue
        if status and not spent:
            count["allowed"] += 1
        else:
            beyond.append(f"{write.at - since:.0f} s: {write.verb} {write.resource}/{write.subresource} "
                          f"{write.namespace}/{write.name}")  # fmt: skip
    return beyond, count["allowed"]
