"""`make bench-main`: what the operator's main job must show, on a real control plane with the real operator.

    python -m tests.bench.main_job --seed 1 [--only collapse]

Writes build/bench/main.json; exits 1 if a bar is missing or doesn't hold. All of it takes about half an hour. Times
are taken one resource at a time, before everything that loads the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from tests.bed import binaries
from tests.bed.api import ApiError
from tests.bed.binaries import BuildError
from tests.bed.control_plane import OPERATOR, Bed
from tests.bed.fleet import Fleet
from tests.bed.processes import BedError
from tests.bed.recorder import Recorder
from tests.bench.bars import FOLDER, Bar, write
from tests.bench.kills import measure_kills
from tests.bench.lab import Lab, Measured, load, say
from tests.bench.latency import measure_collapse, measure_failing
from tests.bench.outcomes import measure_harmless, measure_idle
from tests.bench.quiet import measure_quiet

MEASURES: Final[dict[str, tuple[Callable[[Lab], Measured], tuple[str, ...]]]] = {
    "collapse": (measure_collapse, ("collapse_seconds_median", "collapse_seconds_worst")),
    "failing": (measure_failing, ("failing_seconds_worst",)),
    "quiet": (measure_quiet, ("quiet_writes", "operator_rss_mb")),
    "harmless": (measure_harmless, ("harmless_promoted",)),
    "idle": (measure_idle, ("idle_held",)),
    "kills": (measure_kills, ("kill9_same_end",)),
}
"""Each measure with the bars that it gives, in the order in which they run."""


def measure(chosen: list[str], seed: int) -> tuple[list[Bar], dict[str, Any]]:
    """Runs the chosen measures on one bed, watched for breaches of invariants 1 and 2 all the while."""
    bars: list[Bar] = []
    tables: dict[str, Any] = {"seed": seed, "cores": os.cpu_count(), "load at the beginning": load()}
    with Bed() as bed, Fleet(bed, seed=seed) as fleet, Recorder(bed) as recorder:
        bed.install_crds()
        lab = Lab(bed, fleet, random.Random(seed))
        for name in chosen:
            say(f"{name}, load {load()}")
            try:
                found = MEASURES[name][0](lab)
            finally:
                FOLDER.mkdir(parents=True, exist_ok=True)
                shutil.copy(bed.state / "operator.log", FOLDER / f"main-{name}-operator.log")
            bars += found.bars
            tables[name] = found.table
        tables["operator restarts"] = lab.restarts
        breaches = recorder.breaches(OPERATOR)
    tables["breaches"] = [str(breach) for breach in breaches]
    bars.append(Bar.at_most("breaches", len(breaches), "count", 0, str(breaches[0]) if breaches else ""))
    return bars, tables


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.main_job", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="only this measure; repeatable")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = given.only or list(MEASURES)
    try:
        binaries.ensure()
        bars, tables = measure(chosen, given.seed)
    except (ApiError, BedError, BuildError) as error:
        print(f"bench-main: {error}", file=sys.stderr)
        return 1
    asked = [bar for name in chosen for bar in MEASURES[name][1]] + ["breaches"]
    path = FOLDER / ("main.json" if given.only is None else f"main-{'-'.join(chosen)}.json")
    return 0 if write(path, bars, tables, asked) else 1


if __name__ == "__main__":
    sys.exit(main())
