"""Cumulative counters to increments, by Pod UID and engine.

The first sample of an engine, and the first after a reset, is only an origin. A sample that can't be true (NaN,
negative, more accepted than drafted, ...) is a failed scrape: it moves nothing, and the next good one spans the gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdecode.acceptance.types import Arm, Sample, Source

# No engine drafts this often; a counter that jumps so far is garbage.
_MOST_DRAFTS_PER_SECOND = 1e6
# Counters are integers served as floats; sums over positions may differ by rounding only.
_SLACK = 1e-6
_MAX_DEPTH = 64
_SINGLES = (
    "drafts",
    "draft_tokens",
    "accepted",
    "generation_tokens",
    "tpot_sum",
    "tpot_count",
    "requests_running",
    "requests_finished",
    "requests_failed",
    "transfers_failed",
)
_LISTS = ("accepted_per_pos", "drafted_per_pos")


@dataclass(frozen=True, slots=True)
class Increment:
    """What one engine did between two good samples.

    ``drafts`` is free of empty first drafts where the sample said that it holds them. ``accepted[i]`` and
    ``drafted[i]`` belong to position i + 1; ``drafted`` has one entry for each position of which it is known that
    its drafts were counted (all of them at a fixed depth; the first alone where the depth varied unseen).
    ``started`` is requests that began, ``running`` the gauge at the end; both None where the series are absent.
    """

    t: float
    seconds: float
    arm: Arm
    pod: str
    engine: str
    source: Source
    drafts: float
    accepted: tuple[float, ...]
    drafted: tuple[float, ...]
    finished: float | None
    failed: float | None
    running: float | None
    tpot_sum: float | None
    tpot_count: float | None
    transfers_failed: float | None


def implausible(sample: Sample) -> str | None:
    """Say why a sample can't be true, or None if it can."""
    for field in _SINGLES:
        value = getattr(sample, field)
        if value is not None and not 0.0 <= value < math.inf:
            return f"{field} is {value}: a counter is a finite number of 0 or more"
    for field in _LISTS:
        for value in getattr(sample, field) or ():
            if not 0.0 <= value < math.inf:
                return f"{field} holds {value}: a counter is a finite number of 0 or more"
    if not 0 <= sample.depth <= _MAX_DEPTH:
        return f"depth is {sample.depth}: it lies between 0 and {_MAX_DEPTH}"
    slack = 0.5 + _SLACK * sample.draft_tokens
    if sample.accepted > sample.draft_tokens + slack:
        return f"accepted ({sample.accepted:g}) is above draft_tokens ({sample.draft_tokens:g})"
    if sample.accepted_per_pos and abs(sum(sample.accepted_per_pos) - sample.accepted) > slack:
        return f"accepted_per_pos adds up to {sum(sample.accepted_per_pos):g}, accepted is {sample.accepted:g}"
    if any(value > sample.drafts + slack for value in sample.accepted_per_pos):
        return f"a position accepted more often than there were drafts ({sample.drafts:g})"
    return None


def _difference(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before


def _is_reset(now: Sample, before: Sample) -> bool:
    if now.created is not None and before.created is not None and now.created != before.created:
        return True
    pairs = [
        (now.drafts, before.drafts),
        (now.draft_tokens, before.draft_tokens),
        (now.accepted, before.accepted),
        (now.generation_tokens, before.generation_tokens),
        (now.requests_finished, before.requests_finished),
        (now.requests_failed, before.requests_failed),
        (now.tpot_count, before.tpot_count),
        *zip(now.accepted_per_pos, before.accepted_per_pos, strict=False),
        *zip(now.drafted_per_pos or (), before.drafted_per_pos or (), strict=False),
    ]
    return any(a is not None and b is not None and a < b for a, b in pairs)


class Counters:
    """The last good sample of every engine, and the increments since."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str], Sample] = {}

    def __len__(self) -> int:
        return len(self._last)

    def advance(self, sample: Sample) -> Increment | str | None:
        """Return the increment since the engine's last good sample.

        None: the sample is an origin, a duplicate or late. A string: it is garbage, and why.
        """
        wrong = implausible(sample)
        if wrong is not None:
            return wrong
        key = (sample.source, sample.pod, sample.engine)
        before = self._last.get(key)
        if before is not None and sample.t <= before.t:
            return None
        if before is None or sample.arm != before.arm or _is_reset(sample, before):
            self._last[key] = sample
            return None
        increment = _increment(sample, before)
        if isinstance(increment, Increment):
            self._last[key] = sample
        return increment

    def forget(self, older_than: float) -> None:
        """Drop engines whose last sample is older than this time (Unix seconds)."""
        self._last = {key: sample for key, sample in self._last.items() if sample.t >= older_than}

    def state(self) -> list[list[Any]]:
        """The origins, as JSON: a restarted operator counts on from them."""
        return [_pack(sample) for _, sample in sorted(self._last.items())]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Take the origins that ``state()`` gave."""
        for row in state:
            sample = _unpack(row)
            self._last[(sample.source, sample.pod, sample.engine)] = sample


def _increment(now: Sample, before: Sample) -> Increment | str:
    seconds = now.t - before.t
    drafts = now.drafts - before.drafts
    if drafts > _MOST_DRAFTS_PER_SECOND * seconds:
        return f"drafts rose by {drafts:g} in {seconds:g} s"
    width = min(len(now.accepted_per_pos), len(before.accepted_per_pos))
    accepted = tuple(now.accepted_per_pos[i] - before.accepted_per_pos[i] for i in range(width))
    if any(value > drafts + 0.5 for value in accepted):
        return f"a position accepted more often ({max(accepted):g}) than there were drafts ({drafts:g})"
    finished = _difference(now.requests_finished, before.requests_finished)
    failed = _difference(now.requests_failed, before.requests_failed)
    tokens = now.draft_tokens - before.draft_tokens
    empty = 0.0
    if now.empty_first_draft and finished is not None:
        running = _difference(now.requests_running, before.requests_running) or 0.0
        started = max(0.0, finished + (failed or 0.0) + running)
        # A draft that proposed nothing has accepted nothing, so position 1 can't have more than the rest.
        empty = min(started, max(0.0, drafts - (accepted[0] if accepted else 0.0)))
    drafted = _drafted(now, before, width, drafts, tokens, empty)
    return Increment(
        t=now.t,
        seconds=seconds,
        arm=now.arm,
        pod=now.pod,
        engine=now.engine,
        source=now.source,
        drafts=drafts - empty,
        accepted=accepted,
        drafted=drafted,
        finished=finished,
        failed=failed,
        running=now.requests_running,
        tpot_sum=_difference(now.tpot_sum, before.tpot_sum),
        tpot_count=_difference(now.tpot_count, before.tpot_count),
        transfers_failed=_difference(now.transfers_failed, before.transfers_failed),
    )


def _drafted(now: Sample, before: Sample, width: int, drafts: float, tokens: float, empty: float) -> tuple[float, ...]:
    """Drafts that proposed each position, for the positions where that is known."""
    if now.drafted_per_pos is not None and before.drafted_per_pos is not None:
        known = min(width, len(now.drafted_per_pos), len(before.drafted_per_pos))
        return tuple(now.drafted_per_pos[i] - before.drafted_per_pos[i] for i in range(known))
    depth = min(width, now.depth) if now.depth else width
    real = drafts - empty
    # Tokens short of depth times drafts: some drafts were shallower (dynamic depth), and which positions they had
    # isn't told, so only position 1 is sure. Two percent is the tail of requests near their length limit.
    if depth > 1 and real > 0 and tokens < 0.98 * depth * real:
        depth = 1
    return (real,) * depth


_PACKED = tuple(Sample.__dataclass_fields__)


def _pack(sample: Sample) -> list[Any]:
    """Values by field, whole numbers as such, without the trailing absent ones."""
    row: list[Any] = []
    for field in _PACKED:
        value = getattr(sample, field)
        if isinstance(value, tuple):
            row.append([_short(x) for x in value])
        else:
            row.append(_short(value) if isinstance(value, float) else value)
    return row


def _short(value: float) -> float:
    return int(value) if value == int(value) else value


def _unpack(row: Sequence[Any]) -> Sample:
    values: dict[str, Any] = {}
    for field, value in zip(_PACKED, row, strict=True):
        values[field] = tuple(value) if isinstance(value, list) else value
    return Sample(**values)
