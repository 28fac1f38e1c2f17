"""The watch over a revision that serves alone: under the floor, or below what it was when it was promoted.

There is no second arm, and traffic changes by itself: what the guard finds is a suspicion, not a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from specdecode.acceptance import explain
from specdecode.acceptance.arm import ArmWindow
from specdecode.acceptance.bounds import entropy
from specdecode.acceptance.counters import Counters
from specdecode.acceptance.types import Baseline, Policy, Reason, Sample, ScrapeError, Suspicion

# Stretches of this many guard intervals are judged, each by itself.
_INTERVALS = 10
# The chance that one stretch of healthy traffic under an unchanged mean is suspected; an alert, not a rollback.
_ERROR = 1e-4


class Guard:
    """One revision's floor and its fall against the baseline."""

    def __init__(
        self,
        policy: Policy,
        *,
        now: float,
        baseline: Baseline | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Watch from ``now`` on, or go on from ``state``."""
        self.policy = policy
        self._counters = Counters()
        self._arm = ArmWindow("stable")
        self._began = now
        self._baseline = baseline
        self._last = Suspicion(False, Reason.NO_TRAFFIC, "Nothing has been drafted yet.", None, None)
        if state:
            self._restore(state)
            # The clock may have been set back since.
            self._began = min(self._began, now)

    def observe(self, items: Iterable[Sample | ScrapeError]) -> None:
        """Take one round of scrapes of the serving revision."""
        for item in sorted(items, key=lambda i: i.t):
            if isinstance(item, ScrapeError) or item.source != "engine":
                continue
            self._arm.known_pods[item.pod] = item.t
            increment = self._counters.advance(item)
            if increment is not None and not isinstance(increment, str):
                self._arm.take(increment)

    def look(self, now: float) -> Suspicion:
        """Judge the stretch since the last one once it is long enough and holds enough requests."""
        self._arm.drain(0, now)
        arm, policy = self._arm, self.policy
        stale = 2.0 * policy.guard_interval
        requests = arm.requests(now, stale)
        long_enough = now - self._began >= _INTERVALS * policy.guard_interval
        if arm.drafts > 0.0 and requests >= policy.min_requests and long_enough:
            summary = arm.summary(now, stale, None)
            self._last = self._judge(summary.positions, requests)
            if self._baseline is None and not self._last.suspected and summary.length is not None:
                self._baseline = Baseline(summary.positions, summary.length, summary.drafts)
            arm.begin_step()
            self._began = now
        elif arm.drafts > 0.0 and self._last.reason is Reason.NO_TRAFFIC:
            stretch = explain.duration(_INTERVALS * policy.guard_interval)
            self._last = Suspicion(
                False,
                Reason.NOT_ENOUGH_EVIDENCE,
                f"Watched; the first word comes after {stretch} with {policy.min_requests} requests.",
                None,
                None,
            )
        return self._last

    def baseline(self) -> Baseline | None:
        """The acceptance that later falls are measured against; the first healthy stretch unless one was given."""
        return self._baseline

    def _judge(self, positions: tuple[float, ...], requests: float) -> Suspicion:
        policy, base = self.policy, self._baseline
        length = 1.0 + sum(positions)
        known = None if base is None else base.length
        first = positions[0] if positions else 0.0
        if first < policy.floor and self._unlikely(first, policy.floor, requests):
            return Suspicion(
                True,
                Reason.BELOW_FLOOR,
                f"Acceptance at position 1 is {explain.percent(first)}, under the floor of "
                f"{explain.percent(policy.floor)}.",
                length,
                known,
            )
        if base is not None:
            width = min(len(positions), len(base.positions))
            found, before = sum(positions[:width]), sum(base.positions[:width])
            collapsed = found < policy.collapse * before
            fell = 1.0 + found < (1.0 - policy.guard_fall) * (1.0 + before)
            if (collapsed or fell) and self._unlikely(found / width, before / width, requests):
                return Suspicion(
                    True,
                    Reason.ACCEPTANCE_COLLAPSED if collapsed else Reason.ACCEPTANCE_FELL,
                    f"Acceptance length is {1.0 + found:.2f}, {explain.percent((before - found) / (1.0 + before))} "
                    f"under the {1.0 + before:.2f} of its baseline; the traffic or the revision has changed.",
                    length,
                    known,
                )
        return Suspicion(False, Reason.ACCEPTANCE_HELD, f"Acceptance length is {length:.2f}.", length, known)

    @staticmethod
    def _unlikely(found: float, expected: float, requests: float) -> bool:
        evidence = requests * entropy(np.array(found), np.array(expected))
        return bool(evidence >= np.log(1.0 / _ERROR))

    def state(self) -> dict[str, Any]:
        """JSON, restorable."""
        base = self._baseline
        return {
            "began": self._began,
            "arm": self._arm.state(),
            "baseline": None
            if base is None
            else {
                "positions": [round(p, 4) for p in base.positions],
                "length": round(base.length, 4),
                "drafts": round(base.drafts),
            },
            "last": {
                "suspected": self._last.suspected,
                "reason": str(self._last.reason),
                "message": self._last.message,
                "length": self._last.length,
                "baseline": self._last.baseline,
            },
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._began = float(state["began"])
        self._arm.restore(state["arm"])
        base, last = state["baseline"], state["last"]
        if base is not None:
            self._baseline = Baseline(tuple(base["positions"]), float(base["length"]), float(base["drafts"]))
        self._last = Suspicion(
            bool(last["suspected"]), Reason(last["reason"]), last["message"], last["length"], last["baseline"]
        )
