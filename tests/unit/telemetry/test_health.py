from __future__ import annotations

from specdecode.telemetry import Health


def test_a_heartbeat_is_dead_once_it_is_older_than_its_bound() -> None:
    health = Health()
    health.expect("Lease", 30.0, 100.0)
    assert health.dead(130.0) == []
    assert health.dead(131.0) == ["Lease: nothing for 31 s, at most 30 s are usual"]
    health.beat("Lease", 131.0)
    assert health.dead(131.0) == []


def test_expecting_again_changes_the_bound_and_makes_nothing_young() -> None:
    health = Health()
    health.expect("a", 30.0, 0.0)
    health.expect("a", 10.0, 20.0)
    assert len(health.dead(20.0)) == 1


def test_beats_that_nobody_expects_are_no_matter() -> None:
    health = Health()
    health.beat("a", 0.0)
    assert health.dead(1e9) == []


def test_a_heartbeat_that_is_dropped_is_no_longer_expected() -> None:
    health = Health()
    health.expect("a", 1.0, 0.0)
    health.drop("a")
    assert health.dead(1e9) == []


def test_readiness_says_what_it_waits_for() -> None:
    health = Health()
    health.wait("caches", "not filled yet")
    health.wait("CRD", "missing")
    assert health.unready() == ["CRD: missing", "caches: not filled yet"]
    health.done("CRD")
    health.done("CRD")
    health.done("caches")
    assert health.unready() == []
