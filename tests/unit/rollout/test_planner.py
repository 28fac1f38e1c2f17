"""What the planner does with edits, requests, deadlines and Pods that can't run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from specdecode.acceptance.types import ArmEvidence, Evidence, Reason, Verdict, VerdictKind
from specdecode.api import SpecDecodeDeploymentStatus, timestamp
from specdecode.api.faults import Fault
from specdecode.api.names import ANNOTATION_ABORT, ANNOTATION_PROMOTE, ANNOTATION_RETRY
from specdecode.api.status import LONGEST_MESSAGE, MOST_REJECTED, RejectedRevision, RolloutStatus
from specdecode.engine.report import TuningReport
from specdecode.rollout import reasons
from specdecode.rollout.planner import plan

from .checks import ALL
from .world import GATEWAY, World, always, resource, serving, started, verdict

FAST = {"rollout__promotionDelay": "0s"}


def condition(world: World, kind: str) -> tuple[str, str]:
    found = next(c for c in world.resource.status.conditions if c.type == kind)
    return found.status, found.reason


def canary(world: World, **changes: object) -> World:
    world.checks = list(ALL)
    world.edit(resource(**{"speculation__depth": 2, **FAST, **changes}))
    return world


def at(phase: str, step: int = 1) -> Callable[[World], bool]:
    return lambda w: w.resource.status.rollout.phase == phase and w.resource.status.rollout.step == step


def test_the_first_roll_out_has_no_steps() -> None:
    world = World(resource())
    world.run(serving)
    status = world.resource.status
    assert status.stable is not None
    assert (status.stable.revision, status.stable.served, status.canary) == (1, True, None)
    assert condition(world, "Available") == ("True", "Serving")


def test_a_first_revision_that_never_served_is_replaced_by_the_one_that_mends_it() -> None:
    world = World(resource(), broken=lambda n: "ImagePullBackOff" if n == 1 else "")
    for _ in range(5):
        world.step()
    assert condition(world, "Available")[0] == "False"
    world.edit(resource(engine__image="specdecode/vllm:0.33.0-mended"))
    world.run(lambda w: serving(w) and len(w.arms) == 1)
    assert world.resource.status.stable is not None
    assert world.resource.status.stable.revision == 2
    assert not world.resource.status.rejected


def test_a_live_field_makes_no_revision() -> None:
    world = started()
    world.edit(resource(topology__decode__replicas=6))
    world.run(lambda w: serving(w) and w.row() == "2/6/2")
    assert len(world.records) == 1


def test_back_to_the_first_spec_drops_the_canary_and_rejects_nothing() -> None:
    world = canary(started())
    world.answer = always(VerdictKind.INCONCLUSIVE)
    world.run(at("Analysing"))
    world.edit(resource(**FAST))
    world.run(lambda w: serving(w) and len(w.arms) == 1)
    assert world.resource.status.stable is not None
    assert world.resource.status.stable.revision == 1
    assert not world.resource.status.rejected
    world.edit(resource(speculation__depth=2, **FAST))
    world.answer = always(VerdictKind.PASS)
    world.run(lambda w: serving(w) and len(w.arms) == 1)
    assert world.resource.status.stable.revision == 2
    assert len(world.records) == 2


def test_another_spec_in_mid_canary_starts_from_the_first_step() -> None:
    world = canary(started())
    world.answer = always(VerdictKind.INCONCLUSIVE)
    world.run(at("Analysing"))
    canary(world, speculation__depth=4)
    world.run(lambda w: w.resource.status.canary is not None and w.resource.status.canary.revision == 3)
    assert world.resource.status.rollout.step == 1
    assert set(world.arms) == {1, 3}
    assert not world.resource.status.rejected


def test_a_rejected_revision_is_tried_again_only_when_asked_and_once_an_asking() -> None:
    world = canary(started())
    world.answer = always(VerdictKind.FAIL, Reason.ACCEPTANCE_FELL)
    world.run(lambda w: bool(w.resource.status.rejected))
    for _ in range(20):
        world.step()
    assert condition(world, "Stalled") == ("True", reasons.ROLLED_BACK)
    assert condition(world, "Available")[0] == "True"
    assert condition(world, "Ready")[0] == "False"
    assert set(world.arms) == {1}
    world.annotate(ANNOTATION_RETRY, "2/1")
    world.run(lambda w: w.resource.status.rejected[0].attempts == 2)
    for _ in range(20):
        world.step()
    assert set(world.arms) == {1}
    assert world.resource.status.canary is None


def test_a_person_passes_a_step_that_waits_for_one() -> None:
    steps = [{"weight": 10, "pause": {}}, {"weight": 100}]
    world = canary(started(rollout__steps=steps), rollout__steps=steps)
    world.run(at("Analysing"))
    for _ in range(30):
        plan = world.step()
    assert plan.reason == reasons.WAITING_FOR_PERSON
    world.annotate(ANNOTATION_PROMOTE, "2/1")
    world.run(lambda w: serving(w) and len(w.arms) == 1)
    assert world.resource.status.stable is not None
    assert world.resource.status.stable.revision == 2


def test_promoting_by_hand_never_overrides_a_fail() -> None:
    world = canary(started())
    world.answer = always(VerdictKind.FAIL, Reason.BELOW_FLOOR)
    world.annotate(ANNOTATION_PROMOTE, "2/1")
    world.run(lambda w: bool(w.resource.status.rejected))
    assert world.resource.status.rejected[0].reason == "BelowFloor"


def test_an_abort_rolls_back_and_rejects() -> None:
    world = canary(started())
    world.answer = always(VerdictKind.INCONCLUSIVE)
    world.run(at("Analysing"))
    world.annotate(ANNOTATION_ABORT, "2")
    world.run(lambda w: bool(w.resource.status.rejected))
    assert world.resource.status.rejected[0].reason == reasons.ABORTED


def test_paused_stops_steps_and_promotion_but_never_a_fail() -> None:
    world = canary(started(), rollout__paused=False)
    world.run(at("Analysing"))
    canary(world, rollout__paused=True)
    for _ in range(30):
        world.step()
    assert world.resource.status.rollout.step == 1
    world.answer = always(VerdictKind.FAIL, Reason.ACCEPTANCE_FELL)
    world.run(lambda w: bool(w.resource.status.rejected))


@pytest.mark.parametrize(
    ("answer", "reason"), [("CrashLoopBackOff", reasons.CRASH_LOOPING), ("ErrImagePull", reasons.IMAGE_PULL_FAILING)]
)
def test_a_canary_that_can_t_run_is_rejected_after_the_progress_deadline(answer: str, reason: str) -> None:
    world = canary(started(), rollout__progressDeadline="5m")
    world.broken = lambda n: answer if n == 2 else ""
    for _ in range(20):
        world.step()
    assert not world.resource.status.rejected
    world.run(lambda w: bool(w.resource.status.rejected))
    assert world.resource.status.rejected[0].reason == reason
    assert world.row() == "2/4/2"


def test_an_unschedulable_canary_is_held_with_the_scarce_resource_named() -> None:
    world = canary(started(), rollout__progressDeadline="5m")
    world.room = 6
    for _ in range(60):
        world.step()
    assert condition(world, "Stalled") == ("True", reasons.UNSCHEDULABLE)
    message = next(c.message for c in world.resource.status.conditions if c.type == "Stalled")
    assert "nvidia.com/gpu" in message
    assert not world.resource.status.rejected
    assert world.resource.status.canary is not None
    assert world.row().startswith("2/4/2")


def test_pods_that_run_other_tunings_than_told_get_no_traffic() -> None:
    world = canary(started())
    wrong = "Pod 2-decode-0: depth: told 2, runs 3"
    world.tunings = lambda n: TuningReport(n, wrong=(wrong,) if n == 2 else (), complete=True)
    for _ in range(40):
        world.step()
    assert world.resource.status.rollout.phase == "ComingUp"
    assert world.row() == "2/4/2 1/1/0"
    assert condition(world, "TuningsEffective") == ("False", reasons.TUNINGS_WRONG)
    assert wrong in next(c.message for c in world.resource.status.conditions if c.type == "Stalled")


def test_pods_that_have_not_said_what_they_run_get_no_traffic() -> None:
    world = canary(started())
    world.tunings = lambda n: TuningReport(n, complete=n != 2)
    for _ in range(40):
        world.step()
    assert world.row() == "2/4/2 1/1/0"
    assert condition(world, "TuningsEffective")[0] == "Unknown"
    assert condition(world, "Stalled")[0] == "False"


def test_pods_whose_metrics_never_answer_are_held_and_said_to_be_stuck_at_the_progress_deadline() -> None:
    world = canary(started(), rollout__progressDeadline="5m")
    world.tunings = lambda n: TuningReport(n, complete=n != 2)
    for _ in range(60):
        world.step()
    assert condition(world, "Stalled") == ("True", reasons.TUNINGS_UNSEEN)
    assert world.row() == "2/4/2 1/1/0"
    assert not world.resource.status.rejected
    world.tunings = lambda n: TuningReport(n, complete=True)
    for _ in range(3):
        world.step()
    assert condition(world, "Stalled")[0] == "False"
    assert world.resource.status.rollout.phase != "ComingUp"


@pytest.mark.parametrize(
    ("kind", "field", "answer", "ends"),
    [
        (VerdictKind.INCONCLUSIVE, "onDeadline", "Rollback", "rejected"),
        (VerdictKind.INCONCLUSIVE, "onDeadline", "Promote", "promoted"),
        (VerdictKind.INCONCLUSIVE, "onDeadline", "Hold", "held"),
        (VerdictKind.NO_DATA, "onNoData", "Rollback", "gone"),
        (VerdictKind.NO_DATA, "onNoData", "Promote", "promoted"),
        (VerdictKind.NO_DATA, "onNoData", "Hold", "held"),
    ],
)
def test_a_step_s_deadline_is_answered_as_asked(kind: VerdictKind, field: str, answer: str, ends: str) -> None:
    analysis = {"deadline": "10m", field: answer}
    world = canary(started(), rollout__analysis=analysis)
    world.answer = always(kind, Reason.NO_TRAFFIC)
    world.run(at("Analysing"))
    for _ in range(55):
        world.step()
    assert world.resource.status.rollout.step == 1
    if ends == "promoted":
        world.run(lambda w: serving(w) and len(w.arms) == 1)
        assert world.resource.status.stable is not None
        assert world.resource.status.stable.revision == 2
    elif ends == "held":
        for _ in range(60):
            world.step()
        assert world.resource.status.canary is not None
        assert condition(world, "Stalled")[0] == "True"
    else:
        world.run(lambda w: w.resource.status.canary is None)
        assert bool(world.resource.status.rejected) == (ends == "rejected")
        if ends == "gone":
            # Nothing is known against it, so it's tried again, but not at once.
            world.run(lambda w: w.resource.status.canary is not None, limit=70)


def test_one_step_to_everything_needs_requests_without_a_fail() -> None:
    steps = [{"weight": 100}]
    world = canary(started(rollout__steps=steps), rollout__steps=steps)
    few, enough = ArmEvidence(10, 5, 1, 10), ArmEvidence(1000, 50, 1, 10)
    said = replace(verdict(VerdictKind.INCONCLUSIVE, Reason.NO_COMPARISON_LEFT), evidence=Evidence(few, few))
    answers: dict[str, Verdict] = {"now": said}
    world.answer = lambda _, __: answers["now"]
    world.run(at("Promoting"))
    for _ in range(20):
        world.step()
    assert world.resource.status.canary is not None
    answers["now"] = replace(said, evidence=Evidence(few, enough))
    world.run(lambda w: serving(w) and len(w.arms) == 1)


def test_immediate_replaces_within_capacity_and_judges_nothing() -> None:
    world = started(rollout__strategy="Immediate")
    world.answer = always(VerdictKind.FAIL, Reason.ACCEPTANCE_FELL)
    canary(world, rollout__strategy="Immediate")
    world.run(lambda w: serving(w) and len(w.arms) == 1)
    assert world.resource.status.stable is not None
    assert world.resource.status.stable.revision == 2
    assert all(plan.analysis is None for plan in world.log)


def test_a_canary_that_is_dropped_doesn_t_come_back_by_a_spec_with_faults() -> None:
    world = canary(started())
    world.answer = always(VerdictKind.INCONCLUSIVE)
    world.run(lambda w: w.resource.status.rollout.phase == "Analysing")
    world.edit(resource(speculation__depth=1))
    world.step()
    world.step()
    assert world.resource.status.rollout.phase == "Dropping"
    world.edit(resource(speculation__depth=7))
    world.faults = (Fault("spec.engine.args", "x", "remove it"),)
    world.answer = always(VerdictKind.PASS)
    world.run(lambda w: w.resource.status.canary is None)
    for _ in range(50):
        world.step()
    assert world.resource.status.stable is not None
    assert (world.resource.status.stable.revision, world.row()) == (1, "2/4/2")


def test_a_spec_with_faults_harms_nothing_that_runs() -> None:
    world = started()
    world.faults = (Fault("spec.engine.args", "x", "remove it"),)
    canary(world, speculation__depth=4)
    before = world.asked()
    for _ in range(10):
        world.step()
    assert world.asked() == before
    assert condition(world, "Stalled") == ("True", "InvalidSpec")
    assert condition(world, "Available")[0] == "True"
    assert len(world.records) == 1


def test_history_is_kept_to_its_limit() -> None:
    world = started(rollout__revisionHistoryLimit=2)
    for depth in (2, 4, 5, 6, 7):
        canary(world, speculation__depth=depth, rollout__revisionHistoryLimit=2)
        world.run(lambda w: serving(w) and len(w.arms) == 1)
    world.step()
    assert [r.number for r in world.records] == [4, 5, 6]


def test_a_guard_that_can_only_alert_says_so() -> None:
    world = started(guard={"onFall": ["Alert", "Rollback"]})
    assert condition(world, "GuardLimited")[0] == "True"
    assert all(c.type != "GuardLimited" for c in started().resource.status.conditions)


def test_a_lost_pod_is_force_deleted() -> None:
    world = started()
    snapshot = world.snapshot()
    arm = snapshot.arms[1]
    lost = replace(arm.decode.pods[0], ready=False, terminating=True, lost=True)
    decode = replace(arm.decode, pods=(lost, *arm.decode.pods[1:]))
    from specdecode.rollout.planner import plan

    made = plan(replace(snapshot, arms={1: replace(arm, decode=decode)}))
    assert made.force_delete == (lost,)


@pytest.mark.parametrize("surge", [1, 0])
def test_a_revision_without_its_record_stands_until_another_answers(surge: int) -> None:
    """Its record was deleted by hand: nothing of it can be rendered, so nothing of it is written again."""
    capacity = {"maxSurge": surge, "maxUnavailable": 1 - surge}
    world = started(rollout__capacity={"prefill": capacity, "decode": capacity})
    world.records.clear()
    while not (serving(world) and list(world.arms) == [2]):
        made = world.step()
        assert {target.revision for target in made.arms} <= {record.number for record in world.records}
        if surge and 1 in made.remove:
            arm = world.observed()[2]
            assert all((arm.prefill.ready, arm.decode.ready, arm.router.ready))
        assert world.t < 200
    assert world.resource.status.stable is not None
    assert world.resource.status.stable.revision == 2


def test_a_canary_without_its_record_is_removed_and_made_anew() -> None:
    world = canary(started())
    world.run(at("Analysing"))
    world.checks.clear()  # a canary that can't be written goes at once, routers and Pods together
    world.records = [record for record in world.records if record.number == 1]
    world.run(lambda w: serving(w) and len(w.arms) == 1)
    assert world.resource.status.stable is not None
    assert world.resource.status.stable.revision == 3
    assert not world.resource.status.rejected


BY_GATEWAY = {"traffic__gateway": {"parentRefs": [{"name": "g"}]}}


def lose_status(world: World) -> None:
    world.resource = world.resource.model_copy(update={"status": SpecDecodeDeploymentStatus()})


@pytest.mark.parametrize("entry", [{}, BY_GATEWAY], ids=["routers", "gateway"])
@pytest.mark.parametrize(("phase", "step"), [("ComingUp", 1), ("Moving", 1), ("Analysing", 1), ("Analysing", 2)])
def test_a_lost_status_is_found_again_in_what_serves(phase: str, step: int, entry: dict[str, object]) -> None:
    world = canary(started(**entry), **entry)
    world.run(at(phase, step))
    lose_status(world)
    world.run(lambda w: w.resource.status.canary is not None)
    status = world.resource.status
    assert status.stable is not None
    assert (status.stable.revision, status.stable.served) == (1, True)
    world.run(lambda w: serving(w) and len(w.arms) == 1)
    assert list(world.arms) == [2]


def test_a_status_lost_after_a_rollback_tries_the_canary_anew_beside_what_serves() -> None:
    world = canary(started())
    world.answer = always(VerdictKind.FAIL, Reason.ACCEPTANCE_COLLAPSED)
    world.run(lambda w: bool(w.resource.status.rejected) and len(w.arms) == 1)
    lose_status(world)
    world.run(lambda w: bool(w.resource.status.rejected) and len(w.arms) == 1)
    assert list(world.arms) == [1]


def test_a_lost_status_without_anything_that_serves_is_a_first_look() -> None:
    world = World(resource(), broken=lambda _: "ImagePullBackOff")
    for _ in range(5):
        world.step()
    lose_status(world)
    world.step()
    status = world.resource.status
    assert status.stable is not None
    assert (status.stable.revision, status.stable.served) == (1, False)


def test_rejections_are_kept_as_long_as_their_revisions_and_within_what_status_holds() -> None:
    world = started(rollout__revisionHistoryLimit=100)
    many = [RejectedRevision(revision=n, reason="Fell", at="2026-01-01T00:00:00Z") for n in range(2, 150)]
    world.resource = world.resource.model_copy(
        update={"status": world.resource.status.model_copy(update={"rejected": many})}
    )
    first = world.records[0]
    world.records += [replace(first, number=n, spec=resource(speculation__depth=2).spec) for n in range(20, 150)]
    world.step()
    kept = [r.revision for r in world.resource.status.rejected]
    assert kept == list(range(150 - MOST_REJECTED, 150))
    world.records = [first, world.records[-1]]
    world.step()
    assert [r.revision for r in world.resource.status.rejected] == [149]


def test_a_message_is_cut_to_what_status_holds() -> None:
    world = started()
    world.faults = (Fault("spec.engine.args", "x", "y" * 2 * LONGEST_MESSAGE),)
    world.step()
    stalled = next(c for c in world.resource.status.conditions if c.type == "Stalled")
    assert len(stalled.message) == LONGEST_MESSAGE


@pytest.mark.parametrize("key", [ANNOTATION_ABORT, ANNOTATION_PROMOTE, ANNOTATION_RETRY])
def test_a_number_without_end_is_no_request(key: str) -> None:
    world = started()
    world.annotate(key, "9" * 5000 + "/1" * (key != ANNOTATION_ABORT))
    world.step()
    assert condition(world, "Warnings") == ("True", "UnreadableRequest")


def test_both_records_lost_in_mid_canary_it_still_ends() -> None:
    world = canary(started())
    world.answer = always(VerdictKind.INCONCLUSIVE)
    world.run(at("Analysing"))
    world.records.clear()
    world.checks = []
    world.answer = always(VerdictKind.PASS)
    world.run(lambda w: serving(w) and len(w.arms) == 1)
    assert list(world.arms) == [3]


@pytest.mark.parametrize("fails", [True, False])
def test_a_gateway_taken_off_the_spec_in_mid_canary_is_used_to_the_end(fails: bool) -> None:
    world = canary(started(**BY_GATEWAY), **BY_GATEWAY)
    world.answer = always(VerdictKind.INCONCLUSIVE)
    world.run(at("Analysing"))
    world.edit(resource(speculation__depth=2, **FAST))
    made = world.step()
    assert (made.weights, made.gateway) == ({1: 90, 2: 10}, GATEWAY)
    world.answer = always(VerdictKind.FAIL if fails else VerdictKind.PASS, Reason.ACCEPTANCE_COLLAPSED)
    world.run(lambda w: len(w.arms) == 1 and w.resource.status.canary is None)
    assert world.route == {1: 100} if fails else {2: 100}
    made = world.step()
    assert (made.weights, made.gateway) == (None, None)


def test_a_route_that_is_gone_holds_up_no_switch_to_routers() -> None:
    world = canary(started(**BY_GATEWAY), **BY_GATEWAY)
    world.answer = always(VerdictKind.INCONCLUSIVE)
    world.run(at("Analysing"))
    world.edit(resource(speculation__depth=2, **FAST))
    world.route.clear()
    world.answer = always(VerdictKind.PASS)
    world.checks = []
    world.run(lambda w: serving(w) and len(w.arms) == 1)


def test_an_abort_that_was_acted_on_leaves_the_retry_alone() -> None:
    """Nobody has to take the annotation off."""
    world = canary(started())
    world.answer = always(VerdictKind.INCONCLUSIVE)
    world.run(at("Analysing"))
    world.annotate(ANNOTATION_ABORT, "2")
    world.run(lambda w: bool(w.resource.status.rejected) and len(w.arms) == 1)
    world.annotate(ANNOTATION_RETRY, "2/1")
    world.run(at("Analysing"))
    for _ in range(20):
        world.step()
    assert at("Analysing")(world)
    world.annotate(ANNOTATION_ABORT, "2/1")
    world.run(lambda w: [(r.reason, r.attempts) for r in w.resource.status.rejected] == [(reasons.ABORTED, 2)])


@pytest.mark.parametrize("written", ["x", "2/", "2/x", "/1", ""])
def test_an_abort_that_can_t_be_read_is_told(written: str) -> None:
    world = canary(started())
    world.answer = always(VerdictKind.INCONCLUSIVE)
    world.run(at("Analysing"))
    world.annotate(ANNOTATION_ABORT, written)
    world.step()
    assert condition(world, "Warnings") == ("True", "UnreadableRequest")
    assert at("Analysing")(world)


def test_pods_that_the_cluster_does_not_make_are_told() -> None:
    """A quota, say: the StatefulSet stands, and its Pods don't come."""
    world = started()
    snap = world.snapshot()
    decode = replace(snap.arms[1].decode, pods=snap.arms[1].decode.pods[:3])
    since = world.resource.status.model_copy(
        update={"rollout": RolloutStatus(progress_at=timestamp(snap.now - 31.0), best_ready=9)}
    )
    late = replace(
        snap,
        arms={1: replace(snap.arms[1], decode=decode)},
        resource=world.resource.model_copy(update={"status": since}),
    )
    made = plan(late)
    assert made.reason == reasons.WAITING_FOR_PODS
    assert "3 of 4 decode Pods exist" in made.message
    assert "kubectl describe statefulset demo-1-decode" in made.message
    soon = since.model_copy(update={"rollout": RolloutStatus(progress_at=timestamp(snap.now), best_ready=9)})
    made = plan(replace(late, resource=world.resource.model_copy(update={"status": soon})))
    assert "exist" not in made.message
