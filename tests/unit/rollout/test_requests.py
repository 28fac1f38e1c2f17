"""What a person asks for by annotation acts on one try of its revision, and whoever wants it again can say so."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode.acceptance.types import Reason, VerdictKind
from specdecode.api import SpecDecodeDeploymentStatus
from specdecode.api.names import ANNOTATION_ABORT, ANNOTATION_PROMOTE, ANNOTATION_RETRY, GROUP
from specdecode.cli.explain import why
from specdecode.rollout import reasons
from specdecode.rollout.types import Plan

from .checks import ALL
from .test_properties import SLOW
from .world import T0, World, resource, serving, started, verdict

PASS, FAIL, NO_DATA, INCONCLUSIVE = VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.NO_DATA, VerdictKind.INCONCLUSIVE
STEPS = [{"weight": 10}, {"weight": 50}, {"weight": 100}]
WAITS = [{"weight": 10, "pause": {}}, {"weight": 100}]
KEYS = (ANNOTATION_RETRY, ANNOTATION_PROMOTE, ANNOTATION_ABORT)

Move = Callable[[World], object]
State = tuple[int, str, int, list[tuple[int, int]]]
"""Stable, phase, step, and what was rejected how often."""


def to(depth: int, **changes: Any) -> Move:
    """Another spec. Depth 3 is revision 1; the next depths are revisions 2, 3 … as they come."""
    fast = {"rollout__steps": STEPS, "rollout__promotionDelay": "0s"}
    return lambda world: world.edit(resource(**{**fast, **changes}, speculation__depth=depth))


def says(kind: VerdictKind, only: int = 0) -> Move:
    """What the analysis says from now on; with ``only``, of one step, and no data of the others."""

    def act(world: World) -> None:
        world.answer = lambda _, step: verdict(kind if only in (0, step) else NO_DATA, Reason.NO_TRAFFIC)

    return act


def ask(**requests: str | None) -> Move:
    def act(world: World) -> None:
        for kind, value in requests.items():
            world.annotate(f"{GROUP}/{kind}", value)

    return act


def upto(phase: str, step: int = 1) -> Move:
    return lambda world: world.run(lambda w: state(w)[1:3] == (phase, step))


def stable(revision: int) -> Move:
    return lambda world: world.run(lambda w: state(w)[0] == revision and serving(w) and len(w.arms) == 1)


def rejected(attempts: int = 1) -> Move:
    return lambda world: world.run(
        lambda w: [r.attempts for r in w.resource.status.rejected] == [attempts] and w.resource.status.canary is None
    )


def rest(world: World) -> None:
    for _ in range(40):
        world.step()


def lose_status(world: World) -> None:
    world.resource = world.resource.model_copy(update={"status": SpecDecodeDeploymentStatus()})


def state(world: World) -> State:
    status = world.resource.status
    rejections = [(r.revision, r.attempts) for r in status.rejected]
    return status.stable.revision if status.stable else 0, status.rollout.phase, status.rollout.step, rejections


PASSED_BY_HAND = (to(2), says(INCONCLUSIVE), upto("Analysing"), ask(promote="2/1"), upto("Analysing", 2))
PROMOTED_BY_HAND = (*PASSED_BY_HAND, says(PASS), stable(2))
FAILED = (says(FAIL), rejected())
TRIED_AGAIN = (says(NO_DATA), ask(retry="2/1"), upto("Analysing"))
ABORTED = (to(2), says(INCONCLUSIVE), upto("Analysing"), ask(abort="2"), rejected())
BACK = (says(PASS), to(3), stable(1), says(NO_DATA), to(2))

ON_TRIAL: State = (1, "Analysing", 1, [])
RETRIED: State = (1, "Analysing", 1, [(2, 1)])

# What is asked, and how it stands a while after.
OLD: dict[str, tuple[tuple[Move, ...], State]] = {
    "a promote, on a retry": ((*PASSED_BY_HAND, *FAILED, *TRIED_AGAIN), RETRIED),
    "a promote, on going back to what was promoted": ((*PROMOTED_BY_HAND, *BACK), ON_TRIAL),
    "a promote that came after its step, on a retry": (
        (to(2), says(PASS), upto("Analysing", 2), ask(promote="2/1"), *FAILED, *TRIED_AGAIN),
        RETRIED,
    ),
    "a promote that came after its try, while that was taken away, on a retry": (
        (to(2), says(FAIL), upto("RollingBack"), ask(promote="2/1"), *FAILED, *TRIED_AGAIN),
        RETRIED,
    ),
    "a promote of a step that its try never reached, on a retry": (
        (to(2), says(INCONCLUSIVE), upto("Analysing"), ask(promote="2/2"), *FAILED, *TRIED_AGAIN, says(PASS, 1)),
        (1, "Analysing", 2, [(2, 1)]),
    ),
    "a promote of a step that its try never reached, when the spec came back meanwhile": (
        (to(2), says(PASS, 1), upto("Moving"), ask(promote="2/2"), to(4), upto("Dropping"), to(2)),
        (1, "Analysing", 2, []),
    ),
    "a promote that came once its revision was stable": (
        (to(2), says(PASS), stable(2), ask(promote="2/1"), *BACK),
        ON_TRIAL,
    ),
    "a promote of a pause, on a retry": (
        (
            to(2, rollout__steps=WAITS),
            *(says(PASS), upto("Analysing"), ask(promote="2/1"), upto("Moving", 2), *FAILED),
            *(says(PASS), ask(retry="2/1"), upto("Analysing")),
        ),
        RETRIED,
    ),
    "a promote of a step whose weight was edited": (
        (
            *PASSED_BY_HAND,
            to(2, rollout__paused=True),
            *(ask(promote="2/2"), rest),
            to(2, rollout__steps=[{"weight": 10}, {"weight": 100}]),
        ),
        (1, "Promoting", 2, []),
    ),
    "a promote, when status was lost": ((*PASSED_BY_HAND, says(NO_DATA), lose_status), ON_TRIAL),
    "a retry, after a promotion": (
        (to(2), *FAILED, says(PASS), ask(retry="2/1"), stable(2), *BACK, *FAILED),
        (1, "Idle", 0, [(2, 1)]),
    ),
    "a retry that was asked for before there was a rejection, after a promotion": (
        (to(2), says(PASS), ask(retry="2/1"), stable(2), *BACK, *FAILED),
        (1, "Idle", 0, [(2, 1)]),
    ),
    "a retry whose try was dropped": (
        (to(2), *FAILED, *TRIED_AGAIN, to(3), stable(1), to(2)),
        (1, "Idle", 0, [(2, 1)]),
    ),
    "an abort, on going back to what was promoted": (
        (*ABORTED, says(PASS), ask(retry="2/1"), stable(2), *BACK),
        ON_TRIAL,
    ),
    "an abort, on a retry": ((*ABORTED, *TRIED_AGAIN), RETRIED),
    "an abort, on a retry after a Fail of another kind": (
        (*ABORTED, *TRIED_AGAIN, says(FAIL), rejected(2), says(NO_DATA), ask(retry="2/2"), upto("Analysing")),
        (1, "Analysing", 1, [(2, 2)]),
    ),
    "an abort that came once its revision was stable": (
        (to(2), says(PASS), stable(2), ask(abort="2"), *BACK),
        ON_TRIAL,
    ),
}
NEW: dict[str, tuple[tuple[Move, ...], State]] = {
    "a promote again": (
        (*PASSED_BY_HAND, *FAILED, *TRIED_AGAIN, rest, ask(promote="2/1/again")),
        (1, "Analysing", 2, [(2, 1)]),
    ),
    "a promote a third time": (
        (
            *(*PASSED_BY_HAND, *FAILED, *TRIED_AGAIN, ask(promote="2/1/again"), upto("Analysing", 2)),
            *(says(FAIL), rejected(2), says(NO_DATA), ask(retry="2/2"), upto("Analysing"), ask(promote="2/1")),
        ),
        (1, "Analysing", 2, [(2, 2)]),
    ),
    "a promote that was taken off and set anew": (
        (*PASSED_BY_HAND, *FAILED, ask(promote=None), *TRIED_AGAIN, ask(promote="2/1")),
        (1, "Analysing", 2, [(2, 1)]),
    ),
    "a promote after one of another step": (
        (*PASSED_BY_HAND, *FAILED, *TRIED_AGAIN, ask(promote="2/2"), rest, ask(promote="2/1")),
        (1, "Analysing", 2, [(2, 1)]),
    ),
    "a promote before its step is there": (
        (to(2), says(PASS, 1), upto("Analysing"), ask(promote="2/2"), stable(2)),
        (2, "Idle", 0, []),
    ),
    "a promote before its revision is there": (
        (says(NO_DATA), ask(promote="2/1"), rest, to(2)),
        (1, "Analysing", 2, []),
    ),
    "a promote together with the retry": (
        (to(2), *FAILED, says(NO_DATA), ask(retry="2/1", promote="2/1")),
        (1, "Analysing", 2, [(2, 1)]),
    ),
    "a promote while the steps are paused": (
        (to(2), says(NO_DATA), upto("Analysing"), to(2, rollout__paused=True), ask(promote="2/1"), rest, to(2)),
        (1, "Analysing", 2, []),
    ),
    "a retry before its rejection": (
        (to(2), says(FAIL), upto("RollingBack"), ask(retry="2/1"), rejected(), says(NO_DATA)),
        RETRIED,
    ),
    "a retry again": (
        (to(2), *FAILED, *TRIED_AGAIN, to(3), stable(1), to(2), rest, ask(retry="2/1/again")),
        RETRIED,
    ),
    "a retry whose try ends for want of data": (
        (
            to(2),
            *FAILED,
            to(2, rollout__analysis={"deadline": "10m", "onNoData": "Rollback"}),
            *(*TRIED_AGAIN, upto("Idle", 0), upto("Analysing")),
        ),
        RETRIED,
    ),
    "an abort of the next try": (
        (to(2), says(INCONCLUSIVE), upto("Analysing"), ask(abort="2/1"), *FAILED, says(PASS), ask(retry="2/1")),
        (1, "Idle", 0, [(2, 2)]),
    ),
    "an abort again": (
        (*ABORTED, *TRIED_AGAIN, ask(abort="2/1"), rejected(2), ask(retry="2/2"), upto("Analysing"), ask(abort="2")),
        (1, "Idle", 0, [(2, 3)]),
    ),
    "an abort with a suffix": (
        (to(2), says(NO_DATA), upto("Analysing"), ask(abort="2/0/really")),
        (1, "Idle", 0, [(2, 1)]),
    ),
}


def begin() -> World:
    world = started(rollout__steps=STEPS, rollout__promotionDelay="0s")
    world.checks = [*ALL, Watch()]
    return world


@dataclass
class Watch:
    """Notes what annotations act on, and asserts that each value acts on one try, and a promote on one step of the
    first try that it met."""

    tries: int = 0
    """Tries that have begun."""
    values: dict[str, str | None] = field(default_factory=dict)
    met: dict[str, set[int]] = field(default_factory=dict)
    """By annotation: tries of the revision that its value names which the value has met."""
    acted: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """By annotation: tries and steps on which its value has acted."""
    undecided: bool = False
    """The last try ended for want of data, so that the next one is the same retry's."""

    def __call__(self, world: World, made: Plan) -> None:
        old, new = world.resource.status, made.status
        for key in KEYS:
            value = world.resource.metadata.annotations.get(key)
            if self.values.get(key) != value:
                self.values[key], self.met[key], self.acted[key] = value, set(), set()
            named = re.match(r"(\d+)", value or "")
            if old.canary is not None and named and int(named[1]) == old.canary.revision:
                self.met[key].add(self.tries)
        events = {(e.reason, e.message.split(":")[0].split()[1].rstrip(",")) for e in made.events}
        began = any(reason == reasons.CANARY_STARTED for reason, _ in events)
        if began:
            retried = new.canary is not None and any(r.revision == new.canary.revision for r in old.rejected)
            if retried and not self.undecided:
                self.act(ANNOTATION_RETRY, self.tries + 1)
        began = began or (old.rollout.phase == "Dropping" and new.rollout.phase == "ComingUp")
        if any(reason == reasons.PROMOTED_BY_HAND for reason, _ in events):
            self.act(ANNOTATION_PROMOTE, self.tries, old.rollout.step)
            assert self.met[ANNOTATION_PROMOTE] <= {self.tries}, "a promote passes a step of a later try"
        waits = [s.pause is not None and s.pause.duration is None for s in world.resource.spec.rollout.steps]
        over = old.rollout.phase == "Analysing" and new.rollout.step == old.rollout.step + 1
        if over and waits[old.rollout.step - 1]:
            self.act(ANNOTATION_PROMOTE, self.tries, old.rollout.step)
            assert self.met[ANNOTATION_PROMOTE] <= {self.tries}, "a promote ends a pause of a later try"
        if old.rollout.failure is None and new.rollout.failure and new.rollout.failure.reason == reasons.ABORTED:
            self.act(ANNOTATION_ABORT, self.tries)
            late = self.met[ANNOTATION_ABORT] - {self.tries}
            assert not late or "/" in (self.values[ANNOTATION_ABORT] or ""), "an abort ends a later try"
        if old.canary is not None and new.canary is None:
            self.undecided = new.rollout.held_until is not None
        self.tries += began

    def act(self, key: str, number: int, step: int = 0) -> None:
        assert self.values[key] is not None, f"{key} isn't there and acts"
        self.acted[key].add((number, step))
        assert len(self.acted[key]) == 1, f"{key}={self.values[key]} acts on tries and steps {self.acted[key]}"


@pytest.mark.parametrize(("moves", "after"), [*OLD.values(), *NEW.values()], ids=[*OLD, *NEW])
def test_a_request_acts_on_one_try(moves: tuple[Move, ...], after: State) -> None:
    world = begin()
    for move in moves:
        move(world)
    rest(world)
    assert state(world) == after


@pytest.mark.parametrize(
    ("moves", "key", "then"),
    [
        ((*PASSED_BY_HAND, *FAILED, *TRIED_AGAIN), "promote", upto("Analysing", 2)),
        ((*PROMOTED_BY_HAND, *BACK, upto("Analysing")), "promote", upto("Analysing", 2)),
        ((*OLD["a retry, after a promotion"][0], rest), "retry", rejected(2)),
        (OLD["a promote of a pause, on a retry"][0], "promote", stable(2)),
    ],
)
def test_the_line_that_why_prints_asks_for_it_again(moves: tuple[Move, ...], key: str, then: Move) -> None:
    world = begin()
    for move in moves:
        move(world)
    for _ in range(800):  # past the deadline of a step without data
        world.step()
    told = "\n".join(why(world.resource, [], T0 + world.t * world.tick_seconds))
    found = re.search(rf"{GROUP}/{key}=(\S+)", told)
    assert found is not None, told
    ask(**{key: found[1]})(world)
    then(world)


def test_what_is_answered_is_forgotten_when_the_annotation_changes_or_goes() -> None:
    world = begin()
    for move in (*PASSED_BY_HAND, *FAILED):
        move(world)
    assert world.resource.status.answered.promote == "2/1"
    ask(promote="2/2")(world)
    world.step()
    assert world.resource.status.answered.promote == ""


@pytest.mark.parametrize("key", ["retry", "promote", "abort"])
def test_a_suffix_without_end_is_told(key: str) -> None:
    world = begin()
    ask(**{key: "2/1/" + "x" * 100})(world)
    world.step()
    assert next(c.reason for c in world.resource.status.conditions if c.type == "Warnings") == "UnreadableRequest"


DOINGS = ["go on", "crash", "fail", "fail", "pass", "edit", "retry", "promote", "promote", "abort", "take off"]


@SLOW
@given(st.data())
def test_no_value_acts_on_two_tries(data: st.DataObject) -> None:
    """Whatever is asked and edited in whatever order, and wherever the operator dies before it has written down what
    it did."""
    world = begin()
    watch = next(check for check in world.checks if isinstance(check, Watch))
    steps = data.draw(st.sampled_from([STEPS, WAITS]))
    to(2, rollout__steps=steps)(world)
    for _ in range(data.draw(st.integers(5, 20))):
        match data.draw(st.sampled_from(DOINGS)):
            case "edit":
                to(data.draw(st.sampled_from([2, 3])), rollout__steps=steps)(world)
            case "pass":
                says(PASS)(world)
            case "fail":
                says(FAIL)(world)
                for _ in range(15):
                    world.step()
                says(NO_DATA)(world)
                times = max((r.attempts for r in world.resource.status.rejected), default=1)
                ask(retry=f"2/{times}")(world)
            case "take off":
                world.annotate(data.draw(st.sampled_from(KEYS)), None)
            case "retry" | "promote" | "abort" as kind:
                ask(**{kind: data.draw(st.sampled_from(["2/1", "2/1", "2/2", "2/1/again"]))})(world)
                if kind == "abort" and data.draw(st.booleans()):
                    ask(abort="2")(world)
            case "crash":
                before = world.resource.status
                world.checks.remove(watch)
                world.step()
                world.checks.append(watch)
                world.resource = world.resource.model_copy(update={"status": before})
        for _ in range(data.draw(st.sampled_from([0, 1, 10, 20]))):
            world.step()
