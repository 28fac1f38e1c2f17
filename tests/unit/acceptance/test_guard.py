"""The guard, and stable's history."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

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


def test_before_its_first_word_it_says_what_it_waits_for() -> None:
    fleet, guard = Fleet(1, Behaviour(), Behaviour()), Guard(Policy(), now=0.0)
    assert guard.look(0.0).reason is Reason.NO_TRAFFIC
    assert watch(guard, fleet, 9) == {Reason.NO_TRAFFIC, Reason.NOT_ENOUGH_EVIDENCE}
    waiting = guard.look(fleet.now)
    assert (waiting.suspected, waiting.reason) == (False, Reason.NOT_ENOUGH_EVIDENCE)
    assert "5 min" in waiting.message
    assert watch(guard, fleet, 1) == {Reason.ACCEPTANCE_HELD}


def test_a_collapse_after_promotion_is_a_suspicion_also_after_a_restart() -> None:
    fleet, guard = Fleet(2, Behaviour(), Behaviour()), Guard(Policy(), now=0.0)
    watch(guard, fleet, 30)
    guard = Guard(Policy(), now=fleet.now, state=json.loads(json.dumps(guard.state())))
    fleet.behaviour["stable"].keep = 0.05
    assert {Reason.ACCEPTANCE_COLLAPSED, Reason.BELOW_FLOOR} & watch(guard, fleet, 30)
    assert guard.look(fleet.now).suspected


@pytest.mark.parametrize(
    ("keep", "fall", "reason"),
    [
        (0.6, 0.2, Reason.ACCEPTANCE_FELL),
        (0.6, 0.6, Reason.ACCEPTANCE_HELD),
        (0.95, 0.2, Reason.ACCEPTANCE_HELD),
        (0.2, 0.2, Reason.ACCEPTANCE_COLLAPSED),
    ],
)
def test_a_fall_by_more_than_is_asked_for_is_a_suspicion(keep: float, fall: float, reason: Reason) -> None:
    fleet = Fleet(2, Behaviour(running=60), Behaviour())
    guard = Guard(Policy(guard_fall=fall), now=0.0)
    watch(guard, fleet, 30)
    base = guard.baseline()
    assert base is not None
    fleet.behaviour["stable"].keep = keep
    assert reason in watch(guard, fleet, 30)
    last = guard.look(fleet.now)
    assert (last.reason, last.suspected) == (reason, reason is not Reason.ACCEPTANCE_HELD)
    assert last.baseline == base.length
    assert last.suspected == ("of its baseline" in last.message)


def test_a_few_requests_that_are_accepted_worse_are_no_suspicion() -> None:
    for seed in range(20):
        fleet, guard = Fleet(seed, Behaviour(running=3), Behaviour()), Guard(Policy(guard_fall=0.0), now=0.0)
        assert not {Reason.ACCEPTANCE_FELL, Reason.ACCEPTANCE_COLLAPSED} & watch(guard, fleet, 120)


def watched(history: History, fleet: Fleet, *gaps: float) -> None:
    for gap in gaps:
        history.observe(s for s in fleet.step(gap) if s.arm == "stable")


def test_history_knows_each_depth_and_comes_back_from_json() -> None:
    fleet, history = Fleet(3, Behaviour(), Behaviour()), History(30.0)
    watched(history, fleet, *[30.0] * 60)
    curve = history.known(3, 30.0, 9)
    assert curve is not None
    assert curve.batches[0, 0] >= 150
    assert history.known(4, 30.0, 9) is None
    again = History(30.0, state=json.loads(json.dumps(history.state()))).known(2, 30.0, 9)
    known = history.known(2, 30.0, 9)
    assert again is not None
    assert known is not None
    assert abs(again.squares - known.squares).max() <= 0.01 * known.squares.max()


def test_scrapes_in_pairs_tell_the_noise_of_a_canary_s_first_looks() -> None:
    fleet, history = Fleet(3, Behaviour(), Behaviour()), History(30.0, 5.0)
    watched(history, fleet, *[5.0, 25.0] * 60)
    history = History(30.0, 5.0, json.loads(json.dumps(history.state())))
    known = history.known(3, 5.0, 11)
    assert known is not None
    # Scales of 5, 10, 20 and 40 seconds: what lies between the short batch and the long ones isn't measured.
    assert known.batches[0, 0] >= 150
    assert not known.batches[0, 1:3].any()
    assert known.batches[0, 3] >= 50
    other = History(30.0, 2.0, history.state()).known(3, 5.0, 11)
    assert other is not None
    assert not other.batches[0, 0]


def test_history_is_learning_until_the_noise_of_a_canary_s_first_looks_is_known() -> None:
    fleet, history = Fleet(3, Behaviour(), Behaviour()), History(30.0, 5.0)
    assert not history.learning
    rounds = 0
    watched(history, fleet, 5.0, 5.0)
    while history.learning:
        watched(history, fleet, 5.0)
        rounds += 1
    known = history.known(3, 5.0, 11)
    assert known is not None
    # Four Pods make three batches an interval; and the guard's own batches are as long as ever.
    assert 20 <= rounds <= 26
    assert known.batches[0, 0] >= 68.0
    assert 0 < known.batches[0, 3] <= 3 * (rounds + 2) / 8 + 3
    again = History(30.0, 5.0, json.loads(json.dumps(history.state())))
    watched(again, fleet, 5.0, 5.0)
    assert not again.learning
    # Without traffic, or where scrapes aren't much further apart than a canary's, there is nothing to learn sooner.
    idle, single = History(30.0, 5.0), History(30.0)
    watched(idle, Fleet(3, Behaviour(running=0), Behaviour()), 5.0, 5.0, 5.0)
    watched(single, fleet, 30.0, 30.0)
    # A pause is no end of it; traffic that stays away is.
    sparse = History(30.0, 5.0)
    watched(sparse, Fleet(3, Behaviour(), Behaviour()), 5.0, 5.0)
    samples = [s for s in fleet.step(5.0) if s.arm == "stable"]
    said = []
    for wait in (0.0, 60.0, 200.0):
        sparse.observe(replace(s, t=s.t + wait) for s in samples)
        sparse.observe(replace(s, t=s.t + wait + 1.0) for s in samples)
        said.append(sparse.learning)
    assert said == [True, True, False]
    assert not idle.learning
    assert not single.learning


def test_history_leaves_out_what_lies_on_both_sides_of_a_canary() -> None:
    fleet, history = Fleet(3, Behaviour(), Behaviour()), History(30.0)
    watched(history, fleet, *[30.0] * 20)
    before = history.known(3, 30.0, 9)
    watched(history, fleet, 1200.0)
    after = history.known(3, 30.0, 9)
    assert before is not None
    assert after is not None
    assert (after.squares == before.squares).all()
    watched(history, fleet, 30.0)
    later = history.known(3, 30.0, 9)
    assert later is not None
    assert later.batches[0, 0] > before.batches[0, 0]
