"""The analysis of one canary: samples in, a verdict at each look out. Deterministic, and without a clock of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from specdecode.acceptance import explain
from specdecode.acceptance.arm import ArmWindow
from specdecode.acceptance.bounds import half_width
from specdecode.acceptance.counters import Counters
from specdecode.acceptance.dispersion import Array
from specdecode.acceptance.history import History
from specdecode.acceptance.kernel import SHARES, Finding, Kernel, Look, Settings, rates
from specdecode.acceptance.ladder import COLUMNS
from specdecode.acceptance.latency import Latency
from specdecode.acceptance.length import needed_information
from specdecode.acceptance.noise import Noises
from specdecode.acceptance.types import (
    Arm,
    ArmSummary,
    Evidence,
    Policy,
    Reason,
    Sample,
    ScrapeError,
    Split,
    Verdict,
    VerdictKind,
)
from specdecode.acceptance.waiting import more_seconds, no_data, unseen

# The weight at which stable no longer serves, so that only its last window is left to compare with.
_WHOLE = 100.0
# Increments kept while the other arm can't be scraped; beyond, the oldest are let go.
_MOST_PENDING = 4096
# Engines whose last counters are persisted, so that a restart loses not even one look; of more, one look is lost.
_MOST_ENGINES = 12
# Pods of an arm whose unfinished batches are persisted; of more, each scale loses the batch under way.
_MOST_PODS = 6
# Of the persisted evidence; another version's isn't read.
_VERSION = 4
_REASONS = {
    Finding.LENGTH: Reason.ACCEPTANCE_FELL,
    Finding.LATENCY: Reason.SLOWER_TOKENS,
    Finding.FLOOR: Reason.BELOW_FLOOR,
    Finding.COLLAPSE: Reason.ACCEPTANCE_COLLAPSED,
    Finding.ERRORS: Reason.REQUESTS_FAILING,
}


class Analysis:
    """One canary's evidence, from its first sample to promotion or rollback."""

    def __init__(
        self,
        policy: Policy,
        *,
        steps: int,
        split: Split,
        trust_connection: bool,
        now: float,
        history: History | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Start, or go on from ``state``.

        ``steps``: how many steps of the rollout are below weight 100, so that each needs a Pass; at least 1. Raises
        ValueError for a ``state`` that can't be read.
        """
        self.policy = policy
        self.split: Split = split
        self.trust_connection = trust_connection
        self._counters = Counters()
        self._latency = Latency()
        self._arms: dict[Arm, ArmWindow] = {"stable": ArmWindow("stable"), "canary": ArmWindow("canary")}
        self._history = history
        error = 1.0 - policy.confidence
        self._settings = Settings(
            margin=policy.margin,
            error=error,
            pass_error=error / max(1, steps),
            min_requests=policy.min_requests,
            positions=0,
            floor=policy.floor,
            collapse=policy.collapse,
            errors_tolerance=policy.errors_tolerance,
            errors_ratio=policy.errors_ratio,
        )
        self._step: tuple[int, float] | None = None
        self._passed = False
        self._held = False
        self._last: Look | None = None
        self._begin(now)
        if state:
            try:
                self._restore(state)
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise ValueError(f"the evidence saved can't be read: {error!r}; start without it") from error
            if self._merged_at > now + policy.stale_after:
                ahead = explain.duration(self._merged_at - now)
                raise ValueError(
                    f"the evidence saved is {ahead} ahead of the clock, which was set back: start without it"
                )

    def _begin(self, now: float) -> None:
        self._kernel = Kernel(self._settings, 1, now)
        self._merged_at = now
        self._running = 0.0
        self._noise = Noises(self.policy.interval, self._history, self._settings.positions)

    # -- what happens ----------------------------------------------------------------------------------------------

    def begin_step(self, step: int, weight: float, now: float) -> None:
        """The weight of ``step`` is reached (0 to 100): evidence for Pass starts afresh, evidence for Fail goes on.

        At weight 100 only errors, floor and collapse go on, against stable's last values. Saying the same step again
        changes nothing.
        """
        if self._step == (step, weight):
            return
        self._step = (step, weight)
        self._passed = self._held = False
        for arm in self._arms.values():
            arm.begin_step()
        if weight >= _WHOLE and self._settings.positions:
            self._kernel.compare_with_last(now)
        self._kernel.begin_step(now)

    def observe(self, items: Iterable[Sample | ScrapeError]) -> None:
        """Take what the scrapes since the last look brought, in any order."""
        for item in sorted(items, key=lambda i: i.t):
            arm = self._arms[item.arm]
            arm.known_pods[item.pod] = max(item.t, arm.known_pods.get(item.pod, item.t))
            if isinstance(item, ScrapeError):
                arm.last_error = (item.t, item.error)
                continue
            if item.source == "router":
                arm.has_router = True
                arm.known_pods.pop(item.pod)
            increment = self._counters.advance(item)
            if isinstance(increment, str):
                arm.last_error = (item.t, increment)
                continue
            if item.source == "engine":
                arm.last_sample = max(item.t, arm.last_sample or item.t)
            if increment is None:
                continue
            if item.source == "router":
                arm.routed.append(increment)
            else:
                arm.take(increment)
                del arm.pending[:-_MOST_PENDING]

    def look(self, now: float) -> Verdict:
        """Judge what is known at ``now``; at most once in ``policy.interval``."""
        look = self._judge(now)
        self._counters.forget(now - 3600.0)
        if look is not None:
            self._last = look
        return self._verdict(look, now)

    # -- sums ------------------------------------------------------------------------------------------------------

    def _judge(self, now: float) -> Look | None:
        """Merge what both arms have and run the tests; None if there is nothing new to judge."""
        row = dict.fromkeys(COLUMNS, 0.0)
        news = False
        for name, arm in self._arms.items():
            ended, failed = arm.failures()
            row[f"{name}_ended"], row[f"{name}_failed"] = ended, failed
            news = news or ended > 0.0
        stable, canary = self._arms["stable"], self._arms["canary"]
        alone = self._kernel.reference is not None
        if canary.pending and (stable.pending or alone):
            news = True
            self._agree_on_positions(now)
            for arm in self._arms.values():
                for i in arm.pending:
                    self._latency.add(arm.arm, i.running, i.tpot_sum, i.tpot_count)
            seconds = now - self._merged_at
            self._merged_at = now
            drafts: dict[Arm, Array] = {}
            accepted: dict[Arm, Array] = {}
            for name, arm in self._arms.items():
                drafts[name], accepted[name], sums = arm.drain(self._settings.positions, now)
                arm.seconds += seconds
                row[f"{name}_finished"] = sums["finished"]
                if name == "stable":
                    row["stable_busy"] = arm.in_flight(now, self.policy.stale_after) * seconds
                if self._settings.positions:
                    row[f"{name}_drafts"], row[f"{name}_accepted"] = (
                        float(taken[name].sum()) for taken in (drafts, accepted)
                    )
                    row[f"{name}_first"] = sums["first"]
            if self._settings.positions:
                self._noise.add(seconds, drafts, accepted)
        if not news:
            return None
        flying = canary.in_flight(now, self.policy.stale_after)
        row["canary_running"], self._running = flying - self._running, flying
        increments = np.array([[row[c]] for c in COLUMNS])
        noise = self._noise.measured(self._kernel.ladder.looks)
        look = self._kernel.look(now, increments, np.array([flying]), canary.counted, noise)
        if look.finding[0] == Finding.NOTHING and self._slower():
            return dataclasses.replace(look, finding=np.array([int(Finding.LATENCY)]), passed=np.array([False]))
        return look

    def _slower(self) -> bool:
        margin = self.policy.latency_margin
        if margin is None or self._kernel.reference is not None:
            return False
        error = SHARES["latency"] * self._settings.error
        return self._latency.fails(margin, error, self._kernel.ladder.looks)

    def _agree_on_positions(self, now: float) -> None:
        """Judge only positions that every draft of both arms proposed; fewer than before: start afresh with those."""
        depths = [arm.depth() for arm in self._arms.values()]
        known = [d for d in depths if d is not None]
        before = self._settings.positions
        if before == 0 and (len(known) < 2 or min(known) == 0):
            return
        positions = min([*known, before] if before else known)
        if positions == before or positions == 0:
            return
        self._settings = dataclasses.replace(self._settings, positions=positions)
        if before == 0:
            self._kernel.settings = self._settings
            kept = self._kernel, self._merged_at, self._running
            self._begin(now)
            self._kernel, self._merged_at, self._running = kept
        else:
            self._begin(now)

    # -- words -----------------------------------------------------------------------------------------------------

    def evidence(self, now: float) -> Evidence:
        """What the step has seen."""
        stale = self.policy.stale_after
        return Evidence(self._arms["stable"].evidence(now, stale), self._arms["canary"].evidence(now, stale))

    def _verdict(self, look: Look | None, now: float) -> Verdict:
        evidence = self.evidence(now)
        shown = self._last
        estimate = float(shown.change[0]) if shown is not None and shown.information[0] > 0.0 else None
        information = float(shown.information[0]) if shown is not None else 0.0
        interval = self._interval(estimate, information)

        def say(kind: VerdictKind, reason: Reason, message: str, more: float | None = None) -> Verdict:
            pace = self._latency.slowness() if self.policy.latency_margin is None else None
            if pace is not None and kind is not VerdictKind.NO_DATA:
                message += f" {explain.pace(pace)}"
            return Verdict(
                kind=kind,
                reason=reason,
                message=message,
                by_errors=reason is Reason.REQUESTS_FAILING,
                estimate=estimate,
                interval=interval,
                margin=self.policy.margin,
                evidence=evidence,
                more_seconds=more,
            )

        if look is not None and look.finding[0] != Finding.NOTHING:
            finding = Finding(int(look.finding[0]))
            if finding is Finding.LENGTH:
                estimate = float(look.fall[0])
                interval = self._interval(estimate, float(look.fall_information[0]))
                if interval is not None:
                    # What the test has shown the interval, made to hold at all looks at once, need not deny.
                    interval = min(interval[0], estimate), min(interval[1], -self.policy.margin)
            message = explain.failure(
                finding,
                self.policy,
                rates(look.window),
                self._latency.slowness(),
                estimate,
                interval,
                evidence,
                float(look.seconds[0]),
            )
            hearsay = finding in (Finding.LENGTH, Finding.LATENCY) and self.split == "connection"
            if hearsay and not self.trust_connection:
                self._held = True
                message += (
                    " The traffic is split by connection, so unlike clients may be the cause: it needs a gateway, "
                    "or connectionSplit: Trust."
                )
                return say(VerdictKind.INCONCLUSIVE, Reason.SPLIT_BY_CONNECTION, message)
            return say(VerdictKind.FAIL, _REASONS[finding], message)
        stale, canary = self.policy.stale_after, self._arms["canary"]
        # At weight 100 stable no longer serves, and its last values stand.
        compared = (canary, self._arms["stable"]) if self._kernel.reference is None else (canary,)
        nothing = no_data(compared, now, stale)
        if nothing is not None:
            return say(VerdictKind.NO_DATA, *nothing)
        if self._kernel.reference is not None:
            return say(
                VerdictKind.INCONCLUSIVE,
                Reason.NO_COMPARISON_LEFT,
                "The canary has all of the traffic: only errors, the floor and a collapse are watched, against "
                "stable's last values.",
            )
        if self._held:
            return say(
                VerdictKind.INCONCLUSIVE,
                Reason.SPLIT_BY_CONNECTION,
                "A fall was seen in this step, but the traffic is split by connection: promote or abort by hand.",
            )
        self._passed = self._passed or (look is not None and bool(look.passed[0]))
        if self._passed and interval is not None:
            interval = max(interval[0], -self.policy.margin), interval[1]
        if self._passed:
            quiet = unseen(canary, now, stale)
            if quiet:
                return say(
                    VerdictKind.INCONCLUSIVE,
                    Reason.PODS_UNSEEN,
                    f"Acceptance holds on what was seen, but {len(quiet)} of the canary's Pods drafted nothing yet, "
                    f"for example {quiet[0]}.",
                )
            message = explain.held(self.policy, estimate, interval, evidence)
            return say(VerdictKind.PASS, Reason.ACCEPTANCE_HELD, message)
        if not self._settings.positions:
            return say(
                VerdictKind.INCONCLUSIVE,
                Reason.NO_COMMON_POSITIONS,
                "The arms have drafted no common position yet, so there is nothing to compare.",
            )
        seen = evidence.canary
        requests = seen.requests if canary.counted else None
        noise = self._noise.awaited(seen.seconds)
        more = more_seconds(
            self.policy, self._settings.pass_error, estimate or 0.0, information, seen.seconds, requests, noise
        )
        message = explain.more(self.policy, estimate, evidence, more, noise)
        told = more if more is not None and more < np.inf else None
        return say(VerdictKind.INCONCLUSIVE, Reason.NOT_ENOUGH_EVIDENCE, message, told)

    def _interval(self, estimate: float | None, information: float) -> tuple[float, float] | None:
        if estimate is None or information <= 0.0:
            return None
        needed = needed_information(self.policy.margin, self._settings.pass_error)
        half = half_width(information, needed, 1.0 - self.policy.confidence)
        return (max(-1.0, estimate - half), estimate + half)

    def arm_summary(self, arm: Arm, now: float) -> ArmSummary:
        """An arm's acceptance since the step began, for status and metrics."""
        window = self._arms[arm]
        dispersion = None
        if window.seconds > 0.0 and self._settings.positions:
            dispersion = self._noise.at(arm, window.seconds, self._kernel.ladder.looks)
        return window.summary(now, self.policy.stale_after, dispersion)

    # -- persistence -----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """JSON from which ``Analysis(..., state=...)`` goes on."""
        return {
            "v": _VERSION,
            "positions": self._settings.positions,
            "step": self._step,
            "passed": self._passed,
            "held": self._held,
            "merged_at": self._merged_at,
            "running": self._running,
            "kernel": self._kernel.state(),
            "latency": self._latency.state(),
            "counters": self._counters.state() if len(self._counters) <= _MOST_ENGINES else [],
            **{name: self._arm_state(name) for name in self._arms},
        }

    def _arm_state(self, name: Arm) -> dict[str, Any]:
        arm = self._arms[name]
        pods = len(arm.columns) if len(arm.columns) <= _MOST_PODS else 0
        return arm.state() | self._noise.state(name, pods) | {"columns": arm.columns.state() if pods else {}}

    def _restore(self, state: Mapping[str, Any]) -> None:
        if state["v"] != _VERSION:
            raise ValueError(f"the evidence saved is of version {state['v']!r}, not {_VERSION}: start without it")
        self._settings = dataclasses.replace(self._settings, positions=int(state["positions"]))
        self._begin(float(state["merged_at"]))
        self._running = float(state["running"])
        self._kernel.restore(state["kernel"])
        self._latency.restore(state["latency"])
        self._counters.restore(state["counters"])
        step = state["step"]
        self._step = None if step is None else (int(step[0]), float(step[1]))
        self._passed, self._held = bool(state["passed"]), bool(state["held"])
        self._noise.restore({name: state[name] for name in self._arms})
        for name, arm in self._arms.items():
            arm.restore(state[name])
            arm.columns.restore(state[name]["columns"], self._merged_at)
