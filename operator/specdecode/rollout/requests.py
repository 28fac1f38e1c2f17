"""What a person asked for, by annotations that name their target.

The annotations are level-triggered, so nothing is lost or done twice when an operator dies between acting and writing
its status, and one may stand there before its target does. Each is for one step or one try of its revision. When that
is over, status remembers the value as answered, and it asks for nothing more until it changes or was gone. So nobody
has to take it off, and none acts on a later try of the same revision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdecode.api.names import ANNOTATION_ABORT, ANNOTATION_PROMOTE, ANNOTATION_RETRY
from specdecode.api.status import LONGEST_REQUEST, AnsweredRequests, RolloutStatus, SpecDecodeDeploymentStatus


@dataclass(frozen=True, slots=True)
class Requests:
    """Parsed requests; None where there is none, or where it is answered or can't be read."""

    retry: tuple[int, int] | None = None
    """Revision, and how often it had been rejected when the person asked."""
    promote: tuple[int, int] | None = None
    """Revision and step whose analysis and pause the person takes as passed."""
    abort: tuple[int, int | None] | None = None
    """Revision to take away, and how often it had been rejected when the person asked; None where unsaid."""
    unreadable: tuple[str, ...] = ()
    """A sentence for each annotation that can't be read."""
    written: AnsweredRequests = field(default_factory=AnsweredRequests)
    """The annotations' values, of those that can be read."""
    answered: AnsweredRequests = field(default_factory=AnsweredRequests)
    """Values that are answered and still there."""


def read(annotations: Mapping[str, str], before: AnsweredRequests) -> Requests:
    """The requests that a resource's annotations hold. ``before``: what status knows as answered."""
    unreadable: list[str] = []
    written: dict[str, str] = {}
    answered: dict[str, str] = {}

    def numbers(kind: str, key: str, form: str, least: int) -> tuple[int, int | None] | None:
        if key not in annotations:
            return None
        value = annotations[key]
        parts = value.split("/", 2)[:2]
        if len(parts) < least or len(value) > LONGEST_REQUEST or not all(map(_is_number, parts)):
            unreadable.append(f"annotation {key} is {value!r}: write it as {form}")
            return None
        written[kind] = value
        if value == getattr(before, kind):
            answered[kind] = value
            return None
        return int(parts[0]), int(parts[1]) if len(parts) > 1 else None

    def pair(kind: str, key: str, form: str) -> tuple[int, int] | None:
        found = numbers(kind, key, form, 2)
        return None if found is None or found[1] is None else (found[0], found[1])

    return Requests(
        retry=pair("retry", ANNOTATION_RETRY, "<revision>/<times it was rejected>, such as 4/1"),
        promote=pair("promote", ANNOTATION_PROMOTE, "<revision>/<step>, such as 4/2"),
        abort=numbers(
            "abort",
            ANNOTATION_ABORT,
            "the revision's number, such as 4, or 4/1 for its next try after one rejection",
            1,
        ),
        unreadable=tuple(unreadable),
        written=AnsweredRequests(**written),
        answered=AnsweredRequests(**answered),
    )


def answered(
    asked: Requests,
    before: SpecDecodeDeploymentStatus,
    *,
    stable: int | None,
    canary: int | None,
    rollout: RolloutStatus,
) -> AnsweredRequests:
    """What asks for nothing more, now that ``before`` has become what the other arguments say.

    A request whose step or try is over is answered whether or not it was acted on: one that came too late for its try
    wasn't meant for the next. One that came between two tries is for the next.
    """
    old, was = before.rollout, before.canary.revision if before.canary else None
    times = next((r.attempts for r in before.rejected if r.revision == was), 0)
    step_over = old.step_started_at is not None and rollout.step_started_at != old.step_started_at
    try_over = (canary, rollout.started_at) != (was, old.started_at)
    # A rollback that rejected nothing is tried again by itself: the verdict that a retry asked for is still to come.
    undecided = old.failure is not None and not old.failure.reject
    # Status was lost, or never was: how old a request is can't be told, and no data never passes.
    unknown = before.stable is None

    def about(request: tuple[int, int | None] | None, revision: int | None) -> bool:
        return request is not None and request[0] == revision

    def tried(request: tuple[int, int | None] | None) -> bool:
        return try_over and request is not None and request[0] == was and (request[1] is None or request[1] <= times)

    # A revision that is stable has no step and no try left, and its rejections are counted anew.
    over = {
        "retry": about(asked.retry, stable) or (tried(asked.retry) and not undecided),
        "promote": about(asked.promote, stable)
        or (try_over and about(asked.promote, was))
        or (step_over and asked.promote == (was, old.step))
        or (unknown and asked.promote is not None),
        "abort": about(asked.abort, stable) or tried(asked.abort),
    }
    return asked.answered.model_copy(update={kind: getattr(asked.written, kind) for kind in over if over[kind]})


def fresh(value: str, answered: str) -> str:
    """A request as a person has to write it so that it is another than the one that is answered."""
    return f"{value}/again" if value == answered else value


def _is_number(text: str) -> bool:
    return len(text) <= 9 and text.isdecimal()
