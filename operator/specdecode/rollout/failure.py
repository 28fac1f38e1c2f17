"""Decisions against the canary, and what it comes to in the end. The first decision stands."""

from __future__ import annotations

from specdecode.acceptance.types import VerdictKind
from specdecode.api import seconds, timestamp
from specdecode.api.status import FailureStatus, RejectedRevision, RolloutStatus

from . import reasons
from .draft import Draft, Word
from .types import EventNote
from .waiting import Waiting


def judge(draft: Draft, canary: int) -> None:
    """Take a decision against the canary, if there is one to take. The first one stands."""
    if draft.rollout.failure is not None:
        _sharpen(draft, canary)
        return
    verdict = draft.snap.verdict if draft.snap.verdict_of[0] == canary else None
    if verdict is not None and verdict.kind is VerdictKind.FAIL and draft.judged:
        fail(draft, canary, str(verdict.reason), verdict.message, by_errors=verdict.by_errors)
    elif draft.desired is not None and canary != draft.desired:
        if draft.rollout.phase != "Dropping":
            draft.rollout = draft.rollout.model_copy(update={"phase": "Dropping"})
            draft.events.append(
                EventNote("Normal", reasons.CANARY_DROPPED, f"Revision {canary} is dropped: the spec has moved on")
            )
    elif draft.rollout.phase == "Dropping" and draft.desired == canary:
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
    elif _aborted(draft, canary):
        fail(draft, canary, reasons.ABORTED, f"Revision {canary} was aborted by request")


def _aborted(draft: Draft, canary: int) -> bool:
    """Whether a person asks for the end of this try."""
    before = next((r.attempts for r in draft.rejected if r.revision == canary), 0)
    return draft.asked.abort in ((canary, None), (canary, before))


def _sharpen(draft: Draft, canary: int) -> None:
    """Errors that begin while a canary is being taken away take the rest of its traffic at once."""
    verdict, failure = draft.snap.verdict, draft.rollout.failure
    errors = verdict is not None and draft.snap.verdict_of[0] == canary and verdict.by_errors
    if failure is not None and errors and not failure.by_errors:
        sharper = failure.model_copy(update={"by_errors": True})
        draft.rollout = draft.rollout.model_copy(update={"failure": sharper})


def fail(draft: Draft, canary: int, reason: str, message: str, *, by_errors: bool = False, reject: bool = True) -> None:
    failure = FailureStatus(reason=reason, message=message, by_errors=by_errors, reject=reject, at=draft.timestamp)
    draft.rollout = draft.rollout.model_copy(update={"phase": "RollingBack", "failure": failure})
    draft.events.append(EventNote("Warning", reasons.ROLLING_BACK, f"Revision {canary}: {reason}: {message}"))
    draft.decided = True


def stuck(draft: Draft, canary: int, wait: Waiting) -> None:
    """What waiting too long for the canary's Pods comes to."""
    if draft.rollout.phase in ("RollingBack", "Dropping") or wait.ready:
        return
    if not wait.overdue:
        return
    if wait.broken:
        fail(draft, canary, wait.word.reason, wait.word.message)
    else:
        draft.stalled = wait.word


def leave(draft: Draft, stable: int, canary: int) -> None:
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
        if failure.reject and draft.desired == canary:
            # Said with the rejection itself, so that nobody reads one without the other.
            draft.stalled = Word(reasons.ROLLED_BACK, f"Revision {canary} was rolled back: {failure.message}")
    draft.canary = None
    draft.rollout = RolloutStatus(progress_at=draft.timestamp, held_until=held_until)
    draft.weights = {stable: 100}
    draft.weight_asked = draft.weight_reached = 0
    draft.at(draft.now + 0.001)
