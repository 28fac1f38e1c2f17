"""The guard, and stable's history."""

from __future__ import annotations

import json

from specdecode.acceptance import Guard, History, Policy, Reason
from tests.sim.fleet import Behaviour, Fleet


def watch(guard: Guard, fleet: Fleet, looks: int) -> set[Reason]:
    seen = set()
    for _ in range(looks):
        guard.observe(s for s in fleet.step(30.0) if s.arm == "stable")
        seen.add(guard.look(fleet.now).reason)
    return seen


def test_a_steady_revision_is_not_suspected_and_sets_a_baseline() -> None:
    fleet, guard = Fleet(1, Behaviour(), Behaviour()), Guard(Policy(), now=0.0)
    watch(guard, fleet, 40)
    assert not guard.look(fleet.now).suspected
    base = guard.baseline()
    assert base is not None
    assert len(base.positions) == 3


def test_a_collapse_after_promotion_is_a_suspicion_also_after_a_restart() -> None:
    fleet, guard = Fleet(2, Behaviour(), Behaviour()), Guard(Policy(), now=0.0)
    watch(guard, fleet, 30)
    guard = Guard(Policy(), now=fleet.now, state=json.loads(json.dumps(guard.state())))
    fleet.behaviour["stable"].keep = 0.05
    assert {Reason.ACCEPTANCE_COLLAPSED, Reason.BELOW_FLOOR} & watch(guard, fleet, 30)
    assert guard.look(fleet.now).suspected


def test_history_knows_each_depth_and_comes_back_from_json() -> None:
    fleet, history = Fleet(3, Behaviour(), Behaviour()), History(30.0)
    for _ in range(60):
        history.observe(s for s in fleet.step(30.0) if s.arm == "stable")
    curve = history.of_positions(3)
    assert curve is not None
    assert curve.batches[0, 0] >= 150
    assert history.of_positions(4) is None
    again = History(30.0, state=json.loads(json.dumps(history.state()))).of_positions(2)
    known = history.of_positions(2)
    assert again is not None
    assert known is not None
    assert abs(again.squares - known.squares).max() <= 0.01 * known.squares.max()
