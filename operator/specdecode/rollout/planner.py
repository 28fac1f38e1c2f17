"""What should be now, from everything that is known: the state machine of a rollout.

The way of a revision::

    recorded ─► ComingUp ─► Moving ─► Analysing ─┬─► Moving (next step) … ─► Promoting ─► stable
                   │           │           │     │                              │
                   └───────────┴─────┬─────┴─────┴──────────────────────────────┘
                                     ├─► RollingBack ─► rejected     Fail, an abort, Pods that can't run
                                     └─► Dropping ─► gone            the spec moved on

- **ComingUp**: Pods start, no traffic. Ends when all that have room are ready, run one image and the tunings that they
  were told, and prefill and decode agree.
- **Moving**: weight and Pods go to the step's, each within its bounds (`arms`). Ends when the weight is reached.
- **Analysing**: ends on a Pass of this step's own evidence and after the step's pause.
- **Promoting**: weight 100; only errors, floor and collapse speak. Ends after the promotion delay.
- **RollingBack, Dropping**: traffic first, as far as stable carries it (all of it for errors), then Pods.

A Fail acts in every state. Pausing stops steps and promotion, never a Fail. Nothing here writes, waits or looks at a
clock; the machine's whole memory is `status`, so it goes on anywhere after a restart.
"""

from __future__ import annotations

from specdecode.acceptance.types import Reason, Verdict, VerdictKind
from specdecode.api import seconds, timestamp, unix
from specdecode.api.names import EngineRole
from specdecode.api.status import FailureStatus, RejectedRevision, RolloutStatus

from . import reasons, report, requests
from .arms import ROLES, Arm, Balance, Goal, alone, balance, retired
from .capacity import Capacity, Split, first_step_faults
from .draft import Draft, Word
from .identity import recognise
from .types import ArmObserved, EventNote, Plan, RevisionRecord, Snapshot
from .waiting import Waiting, waiting


def plan(snap: Snapshot) -> Plan:
    """The plan for a snapshot. Pure: the same snapshot gives the same plan."""
    status = snap.resource.status
    draft = Draft(
        snap=snap,
        stable=status.stable.revision if status.stable else None,
        canary=status.canary.revision if status.canary else None,
        rollout=status.rollout,
        rejected=list(status.rejected),
        served=bool(status.stable and status.stable.served),
        asked=requests.read(snap.resource.metadata.annotations),
    )
    _recognise(draft)
    if draft.create is None:
        _choose(draft)
        if draft.stable is not None and draft.canary is not None:
            _move(draft, draft.stable, draft.canary)
        elif draft.stable is not None:
            _serve(draft, draft.stable)
        _retire(draft)
    return report.finish(draft)


def _recognise(draft: Draft) -> None:
    """Find today's spec among the records, or have it recorded. A spec with faults is neither: what runs stays."""
    snap = draft.snap
    known = recognise(snap.resource.spec, snap.records, (draft.canary, draft.stable))
    errors = [f for f in snap.faults if f.severity == "error"]
    if errors:
        draft.stalled = Word(errors[0].reason, "; ".join(str(f) for f in errors))
        return
    if known is not None:
        draft.desired = known.number
        return
    number = max([r.number for r in snap.records] + [snap.resource.status.current_revision], default=0) + 1
    draft.create = RevisionRecord(number, snap.resource.spec, snap.rendering)
    draft.doing = Word(reasons.RECORDING, f"Recording revision {number}")


def _choose(draft: Draft) -> None:
    """Decide which revision is stable and which is on trial."""
    desired = draft.desired
    if draft.stable is not None and draft.record(draft.stable) is None and draft.canary is None:
        # Its record was deleted by hand: without it there is nothing to go back to, so today's spec takes its place.
        draft.stable, draft.served = desired, False
        return
    if desired is None:
        return
    if draft.stable is None or (not draft.served and draft.canary is None and draft.stable != desired):
        # The first roll-out, or a first one that never served and was mended: there is nothing to compare with.
        if draft.stable is not None:
            draft.events.append(
                EventNote(
                    "Normal", reasons.REPLACED, f"Revision {draft.stable} never served; {desired} takes its place"
                )
            )
        draft.stable, draft.served = desired, False
        draft.rollout = RolloutStatus(started_at=draft.timestamp, progress_at=draft.timestamp)
        return
    if draft.canary is None and desired != draft.stable and _may_start(draft, desired):
        draft.canary = desired
        draft.rollout = RolloutStatus(
            phase="ComingUp",
            step=1,
            steps=len(draft.steps),
            started_at=draft.timestamp,
            progress_at=draft.timestamp,
        )
        draft.events.append(EventNote("Normal", reasons.CANARY_STARTED, f"Revision {desired} starts as a canary"))


def _may_start(draft: Draft, desired: int) -> bool:
    """Whether a revision may go on trial; if not, why."""
    entry = next((r for r in draft.rejected if r.revision == desired), None)
    if entry is not None and draft.asked.retry != (desired, entry.attempts):
        draft.stalled = Word(reasons.ROLLED_BACK, f"Revision {desired} was rolled back: {entry.message}")
        return False
    if draft.rollout.held_until and draft.now < unix(draft.rollout.held_until):
        draft.at(unix(draft.rollout.held_until))
        draft.stalled = Word(
            reasons.NO_DATA_AT_DEADLINE,
            f"Revision {desired} had no data at its deadline and was taken away; it's tried again at "
            f"{draft.rollout.held_until}",
        )
        return False
    numbers = {role: c.replicas for role, c in draft.capacities().items() if c.autoscaled}
    small = first_step_faults(draft.snap.resource.spec, numbers)
    if small:
        draft.stalled = Word(small[0].reason, "; ".join(str(f) for f in small))
        return False
    if draft.snap.resource.spec.rollout.paused:
        draft.doing = Word(reasons.PAUSED, f"Paused before revision {desired} starts")
        return False
    return True


def _serve(draft: Draft, stable: int) -> None:
    """One revision serves alone."""
    arm = draft.arm(stable)
    capacities = draft.capacities()
    wait = waiting(draft, arm, capacities)
    draft.targets.append(alone(arm, capacities, draft.entry, reserved=_reserved(draft), quiet=wait.quiet))
    draft.weights = {stable: 100}
    if not wait.ready:
        draft.doing = wait.word
        if wait.overdue:
            draft.stalled = draft.stalled or wait.word
    elif arm.observed.router.ready and all(arm.ready(r) for r in arm.roles):
        draft.served = True


def _move(draft: Draft, stable: int, canary: int) -> None:
    """Two revisions: judge the canary, move traffic and Pods, and see whether a phase is over."""
    _judge(draft, canary)
    _keep_step(draft)
    s, c = draft.arm(stable), draft.arm(canary)
    capacities = draft.capacities()
    wait = waiting(draft, c, capacities, partial=True)
    _stuck(draft, canary, wait)
    goal = _goal(draft, s, capacities)
    current, effective = splits(draft, s.observed, c.observed)
    gone = draft.snap.arms.get(canary, ArmObserved(canary)).gone
    moved = balance(
        s,
        c,
        capacities,
        draft.entry,
        goal,
        current,
        effective,
        reserved=_reserved(draft),
        quiet=wait.quiet,
    )
    leaving = draft.rollout.phase in ("RollingBack", "Dropping")
    draft.weight_asked = 0 if goal.hold_weight or leaving else draft.steps[draft.rollout.step - 1].weight
    draft.weight_reached = round(100 * moved.share)
    draft.weights = {stable: moved.split.stable, canary: moved.split.canary}
    draft.targets.append(moved.stable)
    if leaving:
        why = draft.rollout.failure.message if draft.rollout.failure else "the spec has moved on"
        draft.doing = Word(reasons.TAKING_AWAY, f"Revision {canary} is being taken away: {why}")
        if gone:
            _leave(draft, stable, canary)
            return
        if c.unrouted and not any(n for n in (moved.canary.prefill, moved.canary.decode)):
            draft.remove.append(canary)
            draft.weights = {stable: 100}
        else:
            draft.targets.append(moved.canary)
        return
    draft.targets.append(moved.canary)
    _advance(draft, stable, canary, moved, wait)


def _judge(draft: Draft, canary: int) -> None:
    """Take a decision against the canary, if there is one to take. The first one stands."""
    if draft.rollout.failure is not None:
        _sharpen(draft, canary)
        return
    verdict = draft.snap.verdict if draft.snap.verdict_of[0] == canary else None
    if verdict is not None and verdict.kind is VerdictKind.FAIL and draft.judged:
        _fail(draft, canary, str(verdict.reason), verdict.message, by_errors=verdict.by_errors)
    elif draft.desired is not None and canary != draft.desired:
        if draft.rollout.phase != "Dropping":
            draft.rollout = draft.rollout.model_copy(update={"phase": "Dropping"})
            draft.events.append(
                EventNote("Normal", reasons.CANARY_DROPPED, f"Revision {canary} is dropped: the spec has moved on")
            )
    elif draft.rollout.phase == "Dropping":
        # The spec came back to it while it was going: it starts again, from the first step.
        draft.rollout = draft.rollout.model_copy(
            update={
                "phase": "ComingUp",
                "step": 1,
                "step_started_at": None,
                "step_passed_at": None,
                "passes": 0,
                "started_at": draft.timestamp,
                "progress_at": draft.timestamp,
                "best_ready": 0,
            }
        )
    elif draft.asked.abort == canary:
        _fail(draft, canary, reasons.ABORTED, f"Revision {canary} was aborted by request")


def _keep_step(draft: Draft) -> None:
    """An edit of the steps in mid-canary: the last step is the last one that there is, and only it promotes."""
    rollout, last = draft.rollout, len(draft.steps)
    step = min(rollout.step, last)
    astray = (rollout.phase == "Analysing" and step == last) or (rollout.phase == "Promoting" and step < last)
    if step != rollout.step or astray or rollout.steps != last:
        changes: dict[str, object] = {"step": step, "steps": last}
        if step != rollout.step or astray:
            changes |= {"step_started_at": None, "step_passed_at": None}
            if rollout.phase in ("Analysing", "Promoting"):
                changes["phase"] = "Moving"
        draft.rollout = rollout.model_copy(update=changes)


def _sharpen(draft: Draft, canary: int) -> None:
    """Errors that begin while a canary is being taken away take the rest of its traffic at once."""
    verdict, failure = draft.snap.verdict, draft.rollout.failure
    errors = verdict is not None and draft.snap.verdict_of[0] == canary and verdict.by_errors
    if failure is not None and errors and not failure.by_errors:
        sharper = failure.model_copy(update={"by_errors": True})
        draft.rollout = draft.rollout.model_copy(update={"failure": sharper})


def _fail(
    draft: Draft, canary: int, reason: str, message: str, *, by_errors: bool = False, reject: bool = True
) -> None:
    failure = FailureStatus(reason=reason, message=message, by_errors=by_errors, reject=reject, at=draft.timestamp)
    draft.rollout = draft.rollout.model_copy(update={"phase": "RollingBack", "failure": failure})
    draft.events.append(EventNote("Warning", reasons.ROLLING_BACK, f"Revision {canary}: {reason}: {message}"))
    draft.decided = True


def _stuck(draft: Draft, canary: int, wait: Waiting) -> None:
    """What waiting too long for the canary's Pods comes to."""
    if draft.rollout.phase in ("RollingBack", "Dropping") or wait.ready:
        return
    if not wait.overdue:
        return
    if wait.broken:
        _fail(draft, canary, wait.word.reason, wait.word.message)
    else:
        draft.stalled = wait.word


def _goal(draft: Draft, stable: Arm, capacities: dict[EngineRole, Capacity]) -> Goal:
    phase, failure = draft.rollout.phase, draft.rollout.failure
    together = all(c.coexists for c in capacities.values())
    if phase in ("RollingBack", "Dropping"):
        return Goal(0, rising=False, at_once=not together or (failure is not None and failure.by_errors))
    weight = draft.steps[min(draft.rollout.step, len(draft.steps)) - 1].weight
    dead = draft.served and not all(stable.ready(role) for role in stable.roles)
    if dead or not together:
        # Stable has no Pod to answer with, or two revisions can't have one each: whatever comes up is all there is.
        weight = 100
    return Goal(weight, rising=True, hold_weight=phase == "ComingUp")


def splits(draft: Draft, stable: ArmObserved, canary: ArmObserved) -> tuple[Split, Split]:
    """The split asked for by the objects as they are, and the one in effect."""
    if draft.entry.gateway:
        route = draft.snap.route
        asked = Split(route.weights.get(stable.revision, 100), route.weights.get(canary.revision, 0))
        if asked.stable + asked.canary == 0:
            asked = Split(100, 0)
        # A route that isn't accepted has no effect that we know of; only Split() itself equals nothing asked for.
        return asked, asked if route.accepted else Split(-1, 0)
    asked = Split(stable.router.replicas, canary.router.replicas)
    # A router that replaces another counts once, though both take traffic for a moment: else every change of a list
    # would look like a change of the weight, and undo itself.
    return asked, Split(min(asked.stable, stable.router.ready), min(asked.canary, canary.router.ready))


def _advance(draft: Draft, stable: int, canary: int, moved: Balance, wait: Waiting) -> None:
    """Whether the phase is over, and what comes next."""
    rollout = draft.rollout
    held = wait.tunings or wait.images
    if rollout.phase == "ComingUp":
        if not wait.ready or moved.growing:
            draft.doing = wait.word
        elif held is not None:
            draft.doing = held
            if held.reason != reasons.TUNINGS_UNSEEN:
                draft.stalled = held
        elif draft.snap.resource.spec.rollout.paused:
            draft.doing = Word(reasons.PAUSED, "Paused before the first step")
        else:
            draft.rollout = rollout.model_copy(update={"phase": "Moving"})
            draft.at(draft.now + 0.001)
            draft.doing = Word(reasons.MOVING, f"Moving to weight {draft.steps[0].weight}")
        return
    last = rollout.step >= len(draft.steps)
    weight = draft.steps[rollout.step - 1].weight
    if rollout.phase == "Moving":
        draft.doing = (
            wait.word
            if not wait.ready
            else Word(reasons.MOVING, f"Moving to weight {weight}; reached {draft.weight_reached}")
        )
        if moved.reached:
            phase = "Promoting" if last else "Analysing"
            draft.rollout = rollout.model_copy(
                update={"phase": phase, "step_started_at": draft.timestamp, "step_passed_at": None}
            )
            draft.events.append(
                EventNote(
                    "Normal",
                    reasons.STEP_REACHED,
                    f"Revision {canary} reached weight {draft.weight_reached} (step {rollout.step} of "
                    f"{len(draft.steps)})",
                )
            )
            if last and _promotable(draft, canary):
                _promote(draft, stable, canary)
        return
    _analyse(draft, canary)
    if last and _promotable(draft, canary):
        _promote(draft, stable, canary)
    elif not last and _step_over(draft, canary) and not draft.snap.resource.spec.rollout.paused and held is None:
        draft.rollout = draft.rollout.model_copy(
            update={
                "phase": "Moving",
                "step": rollout.step + 1,
                "step_started_at": None,
                "step_passed_at": None,
            }
        )
        draft.at(draft.now + 0.001)
        draft.doing = Word(
            reasons.MOVING, f"Step {rollout.step} passed; moving to weight {draft.steps[rollout.step].weight}"
        )
    elif held is not None:
        draft.doing = held


def _analyse(draft: Draft, canary: int) -> None:
    """Note a Pass of this step, and answer a deadline that went by without one."""
    rollout = draft.rollout
    started = unix(rollout.step_started_at or draft.timestamp)
    policy = draft.snap.resource.spec.rollout
    verdict = draft.snap.verdict if draft.snap.verdict_of == (canary, rollout.step) else None
    said = f"{verdict.reason}: {verdict.message}" if verdict else "no look at the evidence yet"
    draft.doing = Word(reasons.ANALYSING, f"Step {rollout.step} of {len(draft.steps)}: {said}")
    if rollout.step_passed_at is not None or not draft.judged:
        return
    if verdict is not None and _passes(verdict, policy.analysis.min_requests):
        draft.rollout = rollout.model_copy(update={"step_passed_at": draft.timestamp, "passes": rollout.passes + 1})
        draft.events.append(
            EventNote("Normal", reasons.STEP_PASSED, f"Revision {canary}, step {rollout.step}: {verdict.message}")
        )
        return
    if draft.asked.promote == (canary, rollout.step):
        draft.rollout = rollout.model_copy(update={"step_passed_at": draft.timestamp})
        draft.events.append(
            EventNote("Normal", reasons.PROMOTED_BY_HAND, f"Revision {canary}, step {rollout.step}: passed by request")
        )
        return
    if rollout.phase == "Promoting" and rollout.passes:
        return
    due = started + seconds(policy.analysis.deadline)
    if draft.now < due:
        draft.at(due)
        return
    idle = verdict is None or verdict.kind is VerdictKind.NO_DATA
    answer = policy.analysis.on_no_data if idle else policy.analysis.on_deadline
    reason = reasons.NO_DATA_AT_DEADLINE if idle else reasons.INCONCLUSIVE_AT_DEADLINE
    message = f"Step {rollout.step} has no Pass after {policy.analysis.deadline}: {said}"
    if answer == "Rollback":
        _fail(draft, canary, reason, message, reject=not idle)
    elif answer == "Promote":
        draft.rollout = rollout.model_copy(update={"step_passed_at": draft.timestamp})
        draft.events.append(EventNote("Warning", reason, f"{message}; it goes on, as onDeadline or onNoData asks"))
    else:
        draft.stalled = Word(reason, message)


def _passes(verdict: Verdict, requests: int) -> bool:
    """Whether a verdict ends a step. With all the traffic on the canary there is nothing left to compare its acceptance
    length with; then enough requests without a Fail do."""
    whole = verdict.reason is Reason.NO_COMPARISON_LEFT and verdict.evidence.canary.requests >= requests
    return verdict.kind is VerdictKind.PASS or (verdict.kind is VerdictKind.INCONCLUSIVE and whole)


def _step_over(draft: Draft, canary: int) -> bool:
    """Whether the step has passed and its pause is over."""
    rollout = draft.rollout
    if rollout.phase != "Analysing" or (draft.judged and rollout.step_passed_at is None):
        return False
    return _pause_over(draft, canary, 0.0)


def _pause_over(draft: Draft, canary: int, least: float) -> bool:
    """Whether the step's pause, at least ``least`` seconds, is over; if not, when or how it will be."""
    rollout = draft.rollout
    step = draft.steps[rollout.step - 1]
    wait = least
    if step.pause is not None:
        if step.pause.duration is None and draft.asked.promote != (canary, rollout.step):
            draft.doing = Word(
                reasons.WAITING_FOR_PERSON,
                f"Step {rollout.step} waits to be promoted by hand: annotate with "
                f"specdecode.dev/promote={canary}/{rollout.step}",
            )
            return False
        wait = max(wait, seconds(step.pause.duration) if step.pause.duration else 0.0)
    over = unix(rollout.step_started_at or draft.timestamp) + wait
    if draft.now < over:
        draft.at(over)
        draft.doing = Word(reasons.PAUSING, f"Step {rollout.step} goes on until {timestamp(over)}")
        return False
    return True


def _promotable(draft: Draft, canary: int) -> bool:
    """Whether the canary, at weight 100, may become stable now."""
    rollout, policy = draft.rollout, draft.snap.resource.spec.rollout
    if rollout.phase != "Promoting" or policy.paused:
        return False
    whole = waiting(draft, draft.arm(canary), draft.capacities())
    if not whole.ready or whole.tunings is not None or whole.images is not None:
        draft.doing = whole.tunings or whole.images or whole.word
        return False
    if draft.judged and not rollout.passes and rollout.step_passed_at is None:
        return False
    return _pause_over(draft, canary, seconds(policy.promotion_delay) if draft.judged else 0.0)


def _promote(draft: Draft, stable: int, canary: int) -> None:
    draft.events.append(
        EventNote("Normal", reasons.PROMOTED, f"Revision {canary} is promoted; {stable} is kept as history")
    )
    draft.stable, draft.canary, draft.served = canary, None, True
    draft.rollout = RolloutStatus(progress_at=draft.timestamp)
    draft.rejected = [r for r in draft.rejected if r.revision != canary]
    draft.promoted = draft.decided = True
    draft.weight_asked = draft.weight_reached = 0
    draft.doing = Word(reasons.UP_TO_DATE, "")
    draft.at(draft.now + 0.001)


def _leave(draft: Draft, stable: int, canary: int) -> None:
    """The canary is gone: write down what it came to."""
    failure = draft.rollout.failure
    held_until = None
    if failure is not None:
        if failure.reject:
            before = next((r.attempts for r in draft.rejected if r.revision == canary), 0)
            draft.rejected = [r for r in draft.rejected if r.revision != canary]
            draft.rejected.append(
                RejectedRevision(
                    revision=canary,
                    reason=failure.reason,
                    message=failure.message,
                    at=failure.at,
                    attempts=before + 1,
                )
            )
        else:
            held_until = timestamp(draft.now + seconds(draft.snap.resource.spec.rollout.analysis.deadline))
        draft.events.append(
            EventNote("Warning", reasons.ROLLED_BACK, f"Revision {canary} is gone; {stable} serves: {failure.message}")
        )
    draft.canary = None
    draft.rollout = RolloutStatus(progress_at=draft.timestamp, held_until=held_until)
    draft.weights = {stable: 100}
    draft.weight_asked = draft.weight_reached = 0
    draft.at(draft.now + 0.001)


def _reserved(draft: Draft) -> dict[EngineRole, int]:
    """Pods of revisions that are neither stable nor canary and still there."""
    others = [a for n, a in draft.snap.arms.items() if n not in (draft.stable, draft.canary)]
    return {role: sum(max(a.role(role).replicas, a.role(role).total) for a in others) for role in ROLES}


def _retire(draft: Draft) -> None:
    """Take away what is left of revisions that are neither stable nor canary: routers, then Pods."""
    capacities = draft.capacities()
    # While nothing has served yet, nothing that is left over has to stay until something else does.
    serving = [draft.arm(n) for n in (draft.stable, draft.canary) if n is not None] if draft.served else []
    for number, observed in draft.snap.arms.items():
        if number in (draft.stable, draft.canary) or observed.gone:
            continue
        target = retired(draft.arm(number), serving, capacities)
        if target is None:
            draft.remove.append(number)
        else:
            draft.targets.append(target)
