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

from dataclasses import replace

from specdecode.api import unix
from specdecode.api.names import EngineRole
from specdecode.api.status import RolloutStatus

from . import failure, reasons, report, requests, steps
from .arms import ROLES, Arm, Goal, alone, balance, retired
from .belief import believed
from .capacity import Capacity, Split, first_step_faults
from .draft import Draft, Word
from .identity import recognise
from .types import ArmObserved, EventNote, Plan, RevisionRecord, Snapshot
from .waiting import settling, waiting

_SETTLED = (reasons.UP_TO_DATE, reasons.MOVING)


def plan(snap: Snapshot) -> Plan:
    """The plan for a snapshot. Pure: the same snapshot gives the same plan."""
    snap = believed(snap)
    status = snap.resource.status
    draft = Draft(
        snap=snap,
        stable=status.stable.revision if status.stable else None,
        canary=status.canary.revision if status.canary else None,
        rollout=status.rollout,
        rejected=list(status.rejected),
        served=bool(status.stable and status.stable.served),
        asked=requests.read(snap.resource.metadata.annotations, status.answered),
    )
    _recognise(draft)
    if draft.create is None:
        _choose(draft)
        if draft.stable is not None and draft.canary is not None:
            _move(draft, draft.stable, draft.canary)
        elif draft.stable is not None:
            _serve(draft, draft.stable)
        _retire(draft)
        _leave_unrecorded(draft)
        route = snap.route
        if draft.entry.gateway and route.exists and not route.accepted and draft.doing.reason in _SETTLED:
            draft.doing = Word(reasons.ROUTE_NOT_ACCEPTED, route.message)
    made = report.finish(draft)
    answered = requests.answered(draft.asked, status, stable=draft.stable, canary=draft.canary, rollout=draft.rollout)
    return replace(made, status=made.status.model_copy(update={"answered": answered}))


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
    if draft.stable is None:
        _adopt(draft)
    if desired is None:
        return
    lost = draft.stable is not None and draft.record(draft.stable) is None and draft.canary is None
    if lost and not any(r.revision == desired for r in draft.rejected):
        # Its record was deleted by hand: without it there is nothing to go back to, so today's spec takes its place.
        draft.stable, draft.served = desired, False
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


def _adopt(draft: Draft) -> None:
    """Status knows of no revision: it is the first look, or status was lost. Then what has most of the traffic, of
    equals the oldest, is stable; all else would take a serving revision's Pods away."""
    found = []
    for record in draft.snap.records:
        arm = draft.arm(record.number)
        if arm.observed.router.ready and all(arm.ready(role) for role in arm.roles):
            weight = (
                draft.snap.route.weights.get(record.number, 0) if draft.entry.gateway else arm.observed.router.ready
            )
            found.append((weight, -record.number))
    if found:
        draft.stable, draft.canary, draft.served = -max(found)[1], None, True
        draft.rollout = RolloutStatus(started_at=draft.timestamp, progress_at=draft.timestamp)


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
    target = alone(arm, capacities, draft.entry, reserved=_reserved(draft), quiet=wait.quiet)
    draft.targets.append(target)
    draft.weights = {stable: 100}
    if not wait.ready:
        draft.doing = wait.word
        if wait.overdue:
            draft.stalled = draft.stalled or wait.word
        return
    if arm.observed.router.ready and all(arm.ready(r) for r in arm.roles):
        draft.served = True
    draft.doing = settling(draft, arm, target) or draft.doing


def _move(draft: Draft, stable: int, canary: int) -> None:
    """Two revisions: judge the canary, move traffic and Pods, and see whether a phase is over."""
    failure.judge(draft, canary)
    steps.keep(draft)
    s, c = draft.arm(stable), draft.arm(canary)
    capacities = draft.capacities()
    wait = waiting(draft, c, capacities, partial=True)
    failure.stuck(draft, canary, wait)
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
            failure.leave(draft, stable, canary)
            return
        if c.unrouted and not any(n for n in (moved.canary.prefill, moved.canary.decode)):
            draft.remove.append(canary)
            draft.weights = {stable: 100}
        else:
            draft.targets.append(moved.canary)
        return
    draft.targets.append(moved.canary)
    steps.advance(draft, stable, canary, moved, wait)


def _goal(draft: Draft, stable: Arm, capacities: dict[EngineRole, Capacity]) -> Goal:
    phase, fallen = draft.rollout.phase, draft.rollout.failure
    together = all(c.coexists for c in capacities.values())
    if phase in ("RollingBack", "Dropping"):
        return Goal(0, rising=False, at_once=not together or (fallen is not None and fallen.by_errors))
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


def _leave_unrecorded(draft: Draft) -> None:
    """A revision whose record was deleted by hand can't be written any more: it stays as it stands, and is removed
    whole once another one answers, or where another one has no room beside it."""
    lost = [target.revision for target in draft.targets if draft.record(target.revision) is None]
    # A canary that has lost its record gives way to stable even where stable has lost its own too.
    able = (n for n in (draft.stable, draft.canary) if n is not None and (n not in lost or n == draft.stable))
    arms = [draft.arm(n) for n in able]
    answers = any(a.observed.router.ready and all(a.ready(role) for role in a.roles) for a in arms)
    room = all(c.surge > 0 for c in draft.capacities().values())
    draft.targets = [target for target in draft.targets if target.revision not in lost]
    if answers or not room:
        draft.remove += [number for number in lost if number != draft.stable]
