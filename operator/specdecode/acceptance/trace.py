"""Traces: JSON Lines of scrapes, replayed through the same analysis as the controller's.

One line is one scrape of one engine, in order of time; docs/analysis.md lists the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specdecode.acceptance.analysis import Analysis
from specdecode.acceptance.types import Policy, Sample, ScrapeError, Split, Verdict, VerdictKind

_COUNTERS = ("drafts", "draft_tokens", "accepted")
_OPTIONAL = (
    "generation_tokens",
    "tpot_sum",
    "tpot_count",
    "requests_running",
    "requests_finished",
    "requests_failed",
    "transfers_failed",
    "created",
)


class TraceError(ValueError):
    """A trace that can't be read; the message names the line."""


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One scrape; ``weight`` is the canary's (0 to 100) where the trace tells it, ``split`` likewise."""

    item: Sample | ScrapeError
    weight: float | None
    split: Split | None


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the rollout: its weight (0 to 100) and the least time (seconds) that it lasts.

    ``pause`` is infinite where a person promotes.
    """

    weight: float
    pause: float = 0.0


def read_trace(lines: Iterable[str]) -> Iterator[TraceLine]:
    """Read a trace line by line; empty lines are passed over.

    Raises TraceError, naming line, field and value, at the first line that is malformed or goes back in time.
    """
    before: float | None = None
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = _parse(text)
            if before is not None and line.item.t < before:
                raise TraceError(f"t is {line.item.t:g}, before the line above ({before:g}): sort the lines by t")
        except TraceError as error:
            raise TraceError(f"line {number}: {error}") from None
        before = line.item.t
        yield line


def _parse(text: str) -> TraceLine:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"not JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(row, dict):
        raise TraceError(f"a line is a JSON object, this is {type(row).__name__}")
    t = _number(row, "t")
    if t is None or t != t or abs(t) == float("inf"):
        raise TraceError(f"t is {row.get('t')!r}: give seconds as a finite number")
    arm = row.get("arm")
    if arm not in ("stable", "canary"):
        raise TraceError(f"arm is {arm!r}: give 'stable' or 'canary'")
    pod = _text(row, "pod")
    weight = _number(row, "weight")
    if weight is not None and not 0.0 <= weight <= 100.0:
        raise TraceError(f"weight is {weight!r}: give a number from 0 to 100")
    split = row.get("split")
    if split not in (None, "request", "connection"):
        raise TraceError(f"split is {split!r}: give 'request' or 'connection'")
    if "error" in row:
        return TraceLine(ScrapeError(t, arm, pod, _text(row, "error")), weight, split)
    return TraceLine(_sample(row, t, arm, pod), weight, split)


def _sample(row: dict[str, Any], t: float, arm: Any, pod: str) -> Sample:
    source = row.get("source", "engine")
    if source not in ("engine", "router"):
        raise TraceError(f"source is {source!r}: give 'engine' or 'router'")
    engine = row.get("engine", "0" if source == "router" else None)
    if not isinstance(engine, str | int) or isinstance(engine, bool):
        raise TraceError(f"engine is {engine!r}: give the engine label as text")
    optional: dict[str, Any] = {field: _number(row, field) for field in _OPTIONAL}
    if source == "router":
        return Sample(t, arm, pod, str(engine), 0, 0.0, 0.0, 0.0, (), source="router", **optional)
    depth = _number(row, "depth")
    if depth is None or depth != int(depth) or not 1 <= depth <= 64:
        raise TraceError(f"depth is {row.get('depth')!r}: give a whole number from 1 to 64")
    values = []
    for field in _COUNTERS:
        value = _number(row, field)
        if value is None:
            raise TraceError(f"{field} is missing: give the cumulative counter")
        values.append(value)
    empty = row.get("empty_first_draft", False)
    if not isinstance(empty, bool):
        raise TraceError(f"empty_first_draft is {empty!r}: give true or false")
    if empty and optional["requests_finished"] is None:
        raise TraceError("empty_first_draft needs requests_finished to count the empty drafts")
    accepted = _numbers(row, "accepted_per_pos")
    if accepted is None:
        raise TraceError("accepted_per_pos is missing: give a list of cumulative counters, one for each position")
    return Sample(
        t,
        arm,
        pod,
        str(engine),
        int(depth),
        values[0],
        values[1],
        values[2],
        accepted,
        drafted_per_pos=_numbers(row, "drafted_per_pos"),
        empty_first_draft=empty,
        source="engine",
        **optional,
    )


def _number(row: dict[str, Any], field: str) -> float | None:
    value = row.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TraceError(f"{field} is {value!r}: give a number")
    return float(value)


def _numbers(row: dict[str, Any], field: str) -> tuple[float, ...] | None:
    values = row.get(field)
    if values is None:
        return None
    if not isinstance(values, list) or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise TraceError(f"{field} is {values!r}: give a list of numbers")
    return tuple(float(v) for v in values)


def _text(row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value:
        raise TraceError(f"{field} is {value!r}: give text")
    return value


def replay(
    policy: Policy,
    steps: Sequence[Step],
    trace: Iterable[TraceLine],
    *,
    split: Split = "request",
    trust_connection: bool = False,
) -> dict[str, Any]:
    """Run a whole trace through the analysis, looking once in ``policy.interval``.

    ``split``: of the traffic, where the trace doesn't tell.

    Returns ``verdict``, ``reason``, ``message``, ``at``, ``timeline`` (one entry a look) and ``passes``: the verdict
    is the first Fail, else the Pass that ends the last step before the whole traffic, else the last look's. Without
    ``weight`` in the trace it is one step, over as soon as it passes. A trace's steps are taken in turn as its weight
    reaches theirs. Raises TraceError if the trace is empty or malformed, ValueError if there are no steps.
    """
    if not steps:
        raise ValueError("steps is empty: give at least one step with its weight")
    run: _Replay | None = None
    for line in trace:
        if run is None:
            run = _Replay(policy, steps, line, split, trust_connection)
        run.take(line)
        if run.over:
            break
    if run is None:
        raise TraceError("the trace holds no line")
    return run.result()


class _Replay:
    def __init__(self, policy: Policy, steps: Sequence[Step], first: TraceLine, split: Split, trust: bool) -> None:
        self._policy = policy
        weighted = first.weight is not None
        judged = [s for s in steps if s.weight < 100.0] or list(steps[:1])
        self._steps = list(steps) if weighted else [Step(100.0 if not judged else judged[0].weight, 0.0)]
        self._needed = len(judged) if weighted else 1
        self._analysis = Analysis(
            policy,
            steps=self._needed,
            split=first.split or split,
            trust_connection=trust,
            now=first.item.t,
        )
        self._step = -1
        self._weighted = weighted
        self._began = first.item.t
        self._next = first.item.t + policy.interval
        self._items: list[Sample | ScrapeError] = []
        self._passed_steps: set[int] = set()
        self._last: tuple[float, Verdict] | None = None
        self._end: tuple[float, Verdict] | None = None
        self.timeline: list[dict[str, Any]] = []
        self.passes: list[dict[str, Any]] = []
        self.over = False

    def take(self, line: TraceLine) -> None:
        t = line.item.t
        # A look comes after everything scraped at its own time.
        while t > self._next - 1e-9 and not self.over and self._items and t > self._items[-1].t:
            self._look(self._items[-1].t if self._items[-1].t >= self._next - 1e-9 else self._next)
        self._advance(line.weight, t)
        self._items.append(line.item)

    def _advance(self, weight: float | None, t: float) -> None:
        step = self._step
        if not self._weighted:
            step = 0
        elif weight is not None:
            while step + 1 < len(self._steps) and weight >= self._steps[step + 1].weight - 1e-9:
                step += 1
        if step > self._step:
            self._step, self._began = step, t
            self._analysis.begin_step(step, self._steps[step].weight, t)

    def _look(self, now: float) -> None:
        self._analysis.observe(self._items)
        self._items = []
        verdict = self._analysis.look(now)
        self._next = now + self._policy.interval
        self._last = (now, verdict)
        self.timeline.append(_entry(now, verdict))
        if verdict.kind is VerdictKind.FAIL:
            self._end = (now, verdict)
            self.over = True
        elif verdict.kind is VerdictKind.PASS and self._step not in self._passed_steps:
            step = self._steps[self._step]
            if now - self._began >= step.pause - 1e-9:
                self._passed_steps.add(self._step)
                self.passes.append({"step": self._step + 1, "at": now})
                if len(self._passed_steps) >= self._needed:
                    self._end = (now, verdict)
                    self.over = not self._weighted

    def result(self) -> dict[str, Any]:
        if self._items and not self.over:
            self._look(max(self._items[-1].t, self._next - self._policy.interval))
        end = self._end or self._last
        assert end is not None
        at, verdict = end
        return {
            "verdict": str(verdict.kind),
            "reason": str(verdict.reason),
            "message": verdict.message,
            "at": at,
            "timeline": self.timeline,
            "passes": self.passes,
        }


def _entry(now: float, verdict: Verdict) -> dict[str, Any]:
    return {
        "at": now,
        "verdict": str(verdict.kind),
        "reason": str(verdict.reason),
        "message": verdict.message,
        "estimate": verdict.estimate,
        "interval": list(verdict.interval) if verdict.interval is not None else None,
    }
