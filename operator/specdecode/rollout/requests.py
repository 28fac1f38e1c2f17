"""What a person asked for, by annotations that name their target.

The annotations are level-triggered: one that was acted on, or whose target is gone, asks for nothing. So nobody has
to take it off, and an operator that restarts doesn't act twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode.api.names import ANNOTATION_ABORT, ANNOTATION_PROMOTE, ANNOTATION_RETRY


@dataclass(frozen=True, slots=True)
class Requests:
    """Parsed requests; None where there is none, or where it can't be read."""

    retry: tuple[int, int] | None = None
    """Revision, and how often it had been rejected when the person asked."""
    promote: tuple[int, int] | None = None
    """Revision and step whose analysis and pause the person takes as passed."""
    abort: tuple[int, int | None] | None = None
    """Revision to take away, and how often it had been rejected when the person asked; None where unsaid."""
    unreadable: tuple[str, ...] = ()
    """A sentence for each annotation that can't be read."""


def read(annotations: Mapping[str, str]) -> Requests:
    """The requests that a resource's annotations hold."""
    unreadable: list[str] = []

    def pair(key: str, form: str) -> tuple[int, int] | None:
        if key not in annotations:
            return None
        first, _, second = annotations[key].partition("/")
        if _is_number(first) and _is_number(second):
            return int(first), int(second)
        unreadable.append(f"annotation {key} is {annotations[key]!r}: write it as {form}")
        return None

    retry = pair(ANNOTATION_RETRY, "<revision>/<times it was rejected>, such as 4/1")
    promote = pair(ANNOTATION_PROMOTE, "<revision>/<step>, such as 4/2")
    abort = None
    if (written := annotations.get(ANNOTATION_ABORT)) is not None:
        revision, slash, times = written.partition("/")
        if _is_number(revision) and (_is_number(times) or not slash):
            abort = int(revision), int(times) if slash else None
        else:
            unreadable.append(
                f"annotation {ANNOTATION_ABORT} is {written!r}: write the revision's number, such as 4, or 4/1 for its "
                "next try after one rejection"
            )
    return Requests(retry, promote, abort, tuple(unreadable))


def _is_number(text: str) -> bool:
    return len(text) <= 9 and text.isdecimal()
