"""What the main job must show, in short: the measures of tests/bench, each run once or twice."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator

import pytest

from tests.bed.control_plane import OPERATOR, Bed
from tests.bed.fleet import Fleet
from tests.bed.recorder import Recorder
from tests.bench.kills import measure_kills
from tests.bench.lab import Lab, Measured
from tests.bench.latency import measure_collapse, measure_failing
from tests.bench.outcomes import measure_idle
from tests.bench.quiet import measure_quiet

pytestmark = pytest.mark.needs_bed


@pytest.fixture
def lab(bed: Bed, fleet: Fleet, recorder: Recorder) -> Iterator[Lab]:
    """A lab in the session's bed; no write of the operator may break an invariant while it is used."""
    yield Lab(bed, fleet, random.Random(1), tag=secrets.token_hex(3))
    assert recorder.breaches(OPERATOR) == []


def failed(measured: Measured) -> list[str]:
    return [bar.line() for bar in measured.bars if not bar.holds]


def test_a_collapse_loses_its_traffic_within_seconds(lab: Lab) -> None:
    measured = measure_collapse(lab, runs=2, rates=())
    assert failed(measured) == []
    for row in measured.table["runs"]:
        assert row["reason"] == "AcceptanceCollapsed"
        assert max(row["steps_reached"]) == 10.0


def test_failing_requests_lose_their_traffic_within_seconds(lab: Lab) -> None:
    measured = measure_failing(lab, runs=1)
    assert failed(measured) == []
    assert measured.table[0]["reason"] == "RequestsFailing"


def test_an_idle_canary_is_held_and_promoted_once_used(lab: Lab) -> None:
    measured = measure_idle(lab, seconds=30.0)
    assert failed(measured) == [], measured.table


def test_quiet_while_nothing_changes(lab: Lab) -> None:
    measured = measure_quiet(lab, resources=6, seconds=60.0, settle=40.0)
    assert failed(measured) == [], measured.table


def test_killed_at_random_moments_it_ends_as_without(lab: Lab) -> None:
    measured = measure_kills(lab, kills=3, together=3)
    assert failed(measured) == [], measured.table
