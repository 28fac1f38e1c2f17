"""One arm's increments between two looks, and its sums since the step began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from specdecode.acceptance.counters import Increment
from specdecode.acceptance.dispersion import Array
from specdecode.acceptance.types import Arm, ArmEvidence, ArmSummary

# Pods told apart within an arm; further ones share columns, which only makes groups of requests larger.
MAX_PODS = 64
TRIES = 5
"""Times that the proxy of a router Pod sends a request before it is failed: once, and its retries."""


class Columns:
    """A column for each Pod UID, the longest unseen reused first."""

    def __init__(self) -> None:
        self._column: dict[str, int] = {}
        self._seen: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._column)

    def state(self) -> dict[str, int]:
        """JSON."""
        return dict(self._column)

    def restore(self, state: Mapping[str, int], now: float) -> None:
        """Take what ``state()`` gave."""
        self._column = {pod: int(column) for pod, column in state.items()}
        self._seen = dict.fromkeys(self._column, now)

    def of(self, pod: str, now: float) -> int:
        """The Pod's column, given one if it has none."""
        self._seen[pod] = now
        if pod not in self._column:
            if len(self._column) < MAX_PODS:
                free = set(range(MAX_PODS)) - set(self._column.values())
                self._column[pod] = min(free)
            else:
                oldest = min(self._column, key=lambda p: (self._seen[p], p))
                self._column[pod] = self._column.pop(oldest)
                del self._seen[oldest]
        return self._column[pod]


class ArmWindow:
    """Collects one arm's increments."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm
        self.columns = Columns()
        # Since the last merged look.
        self.pending: list[Increment] = []
        self.routed: list[Increment] = []
        self._unjudged: list[Increment] = []
        # Since the step began.
        self.accepted: list[float] = []
        self.drafted: list[float] = []
        self.drafts = 0.0
        self.finished = 0.0
        self.pods: set[str] = set()
        self.seconds = 0.0
        # Since the beginning.
        self.running: dict[tuple[str, str], float] = {}
        self.counted = False
        self.engines: set[tuple[str, str]] = set()
        self.has_router = False
        self.last_sample: float | None = None
        self.last_error: tuple[float, str] | None = None
        self.last_drafts: float | None = None
        self.known_pods: dict[str, float] = {}

    def begin_step(self) -> None:
        """Forget what the step's evidence was."""
        self.accepted, self.drafted = [], []
        self.drafts = self.finished = self.seconds = 0.0
        self.pods = set()

    def take(self, increment: Increment) -> None:
        """Add an engine's increment; it waits until both arms have some."""
        if increment.drafts > 0.0:
            self.last_drafts = increment.t
            self.engines.add((increment.pod, increment.engine))
        if increment.finished is not None or increment.running is not None:
            self.counted = True
        self.running[(increment.pod, increment.engine)] = increment.running or 0.0
        self.pending.append(increment)
        self._unjudged.append(increment)

    def failures(self) -> tuple[float, float]:
        """Requests that ended and that failed since the last call.

        The proxies' counts where the arm has any, else the engines'. A failed KV transfer is a failed request, also
        where the request was healed; a proxy has tried those that failed `TRIES` times, each of which may be one.
        """
        counted = self.routed if self.has_router else self._unjudged
        failed = sum(i.failed or 0.0 for i in counted)
        ended = sum(i.finished or 0.0 for i in counted) + failed
        transfers = sum(i.transfers_failed or 0.0 for i in self._unjudged)
        self.routed, self._unjudged = [], []
        if self.has_router:
            transfers = max(0.0, transfers - TRIES * failed)
        else:
            ended = max(ended, transfers)
        return ended, failed + min(transfers, ended - failed)

    def in_flight(self, now: float, stale_after: float) -> float:
        """Requests running on engines seen of late; without request counts, one for each engine that drafted."""
        if not self.counted:
            return float(len(self.engines))
        alive = {pod for pod, t in self.known_pods.items() if now - t <= stale_after}
        return sum(value for (pod, _), value in self.running.items() if pod in alive)

    def depth(self) -> int | None:
        """Positions whose drafts are all counted, over everything pending; None if nothing was drafted."""
        depths = [len(i.drafted) for i in self.pending if i.drafts > 0.0]
        return min(depths) if depths else None

    def drain(self, positions: int, now: float) -> tuple[Array, Array, dict[str, float]]:
        """The pending increments as (drafts, accepted) by Pod, each of shape (MAX_PODS,), and the arm's sums."""
        drafts, accepted = np.zeros(MAX_PODS), np.zeros(MAX_PODS)
        sums = {"first": 0.0, "finished": 0.0}
        for increment in self.pending:
            column = self.columns.of(increment.pod, now)
            self._add_to_step(increment)
            per_draft = self._per_draft(increment, positions)
            drafts[column] += increment.drafts
            accepted[column] += increment.drafts * sum(per_draft)
            sums["first"] += increment.drafts * per_draft[0] if per_draft else 0.0
            sums["finished"] += (increment.finished or 0.0) + (increment.failed or 0.0)
        self.pending = []
        return drafts, accepted, sums

    def _per_draft(self, increment: Increment, positions: int) -> list[float]:
        """Acceptance of each common position per draft that proposed it."""
        rates: list[float] = []
        if increment.drafts <= 0.0:
            return rates
        for i in range(min(positions, len(increment.accepted))):
            drafted = increment.drafted[i] if i < len(increment.drafted) else 0.0
            if drafted > 0.0:
                rates.append(increment.accepted[i] / drafted)
            elif i < len(self.drafted) and self.drafted[i] > 0.0:
                # No draft went so deep in this stretch: the arm's rate so far neither helps nor harms.
                rates.append(self.accepted[i] / self.drafted[i])
            else:
                rates.append(rates[-1] if rates else 0.0)
        return rates

    def _add_to_step(self, increment: Increment) -> None:
        width = max(len(self.accepted), len(increment.drafted))
        self.accepted += [0.0] * (width - len(self.accepted))
        self.drafted += [0.0] * (width - len(self.drafted))
        for i, drafted in enumerate(increment.drafted):
            self.drafted[i] += drafted
            self.accepted[i] += increment.accepted[i] if i < len(increment.accepted) else 0.0
        self.drafts += increment.drafts
        self.finished += (increment.finished or 0.0) + (increment.failed or 0.0)
        if increment.drafts > 0.0:
            self.pods.add(increment.pod)

    def requests(self, now: float, stale_after: float) -> float:
        """Distinct requests since the step began: those that ended and those in flight."""
        return self.finished + self.in_flight(now, stale_after) if self.drafts > 0.0 else self.finished

    def evidence(self, now: float, stale_after: float) -> ArmEvidence:
        """What the step has seen of this arm."""
        return ArmEvidence(
            drafts=self.drafts, requests=self.requests(now, stale_after), pods=len(self.pods), seconds=self.seconds
        )

    def summary(self, now: float, stale_after: float, dispersion: float | None) -> ArmSummary:
        """Acceptance by position; ``dispersion`` is kappa of a window as long as the step."""
        positions = tuple(a / d if d > 0.0 else 0.0 for a, d in zip(self.accepted, self.drafted, strict=True))
        length = 1.0 + sum(positions) if self.drafts > 0.0 else None
        interval = None
        if length is not None and dispersion is not None:
            half = 1.96 * float(np.sqrt(dispersion / self.drafts))
            interval = (max(1.0, length - half), length + half)
        return ArmSummary(positions, length, self.drafts, self.requests(now, stale_after), interval)

    def state(self) -> dict[str, Any]:
        """JSON."""
        return {
            "accepted": [round(x, 2) for x in self.accepted],
            "drafted": [round(x, 2) for x in self.drafted],
            "drafts": round(self.drafts, 2),
            "finished": self.finished,
            "pods": sorted(self.pods),
            "seconds": round(self.seconds, 3),
            "counted": self.counted,
            "router": self.has_router,
            "engines": sorted(list(e) for e in self.engines) if not self.counted else [],
            "last_sample": self.last_sample,
            "last_drafts": self.last_drafts,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what ``state()`` gave."""
        self.accepted, self.drafted = list(state["accepted"]), list(state["drafted"])
        self.drafts, self.finished = float(state["drafts"]), float(state["finished"])
        self.pods, self.seconds = set(state["pods"]), float(state["seconds"])
        self.counted, self.has_router = bool(state["counted"]), bool(state["router"])
        self.engines = {(e[0], e[1]) for e in state["engines"]}
        self.last_sample, self.last_drafts = state["last_sample"], state["last_drafts"]
