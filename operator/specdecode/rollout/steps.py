"""Whether a phase of the canary is over, and what comes next: reaching a weight, a Pass, a pause, promotion."""

from __future__ import annotations

from specdecode.acceptance.types import Reason, Verdict, VerdictKind
from specdecode.api import seconds, timestamp, unix
from specdecode.api.status import RolloutStatus

from . import reasons
from .arms import Balance
from .draft import Draft, Word
from .failure import fail
from .requests import fresh
from .types import EventNote
from .waiting import Waiting, waiting


def keep(draft: Draft) -> None:
    """An edit of the steps in mid-canary: the last step is the last one that there is, and only it promotes."""
    rollout, last = draft.rollout, len(draft.steps)
    step = max(min(rollout.step, last), 1)
    astray = (rollout.phase == "Analysing" and step == last) or (rollout.phase == "Promoting" and step < last)
    if step != rollout.step or astray or rollout.steps != last:
        changes: dict[str, object] = {"step": step, "steps": last}
        if step != rollout.step or astray:
            changes |= {"step_started_at": None, "step_passed_at": None}
            if rollout.phase in ("Analysing", "Promoting"):
                changes["phase"] = "Moving"
        draft.rollout = rollout.model_copy(update=changes)


def advance(draft: Draft, stable: int, canary: int, moved: Balance, wait: Waiting) -> None:
    """Whether the phase is over, and what comes next."""
    rollout = draft.rollout
    held = wait.tunings or wait.images
    if rollout.phase == "ComingUp":
        if not wait.ready or moved.growing:
            draft.doing = wait.word
        elif held is not None:
            draft.doing = held
            if held.reason != reasons.TUNINGS_UNSEEN or _unseen_too_long(draft):
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


def _unseen_too_long(draft: Draft) -> bool:
    """Whether Pods have been ready for the progress deadline and their metrics have never answered."""
    since = unix(draft.rollout.progress_at) if draft.rollout.progress_at else draft.now
    due = since + seconds(draft.snap.resource.spec.rollout.progress_deadline)
    draft.at(due)
    return draft.now >= due


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
        fail(draft, canary, reason, message, reject=not idle)
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
                f"specdecode.dev/promote={fresh(f'{canary}/{rollout.step}', draft.asked.answered.promote)}",
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
