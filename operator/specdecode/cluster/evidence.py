"""What is known of one resource's acceptance: whom to scrape, and what the scrapes said.

No input or output and no clock: rounds of scrapes come in, verdicts and summaries are read off. The controller plans
by them; `state` lets a restarted operator go on.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from specdecode.acceptance import (
    Analysis,
    Arm,
    Baseline,
    Guard,
    History,
    Policy,
    Sample,
    ScrapeError,
    Suspicion,
    Verdict,
    VerdictKind,
)
from specdecode.api import SpecDecodeDeployment
from specdecode.api.names import ENGINE_PORT, PROXY_METRICS_PORT, EngineRole, Role
from specdecode.rollout.types import AnalysisTarget, ArmObserved
from specdecode.scrape import Scraped, Target

from .recent import Recent

T = TypeVar("T")
log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Aim:
    """A Pod to scrape, and what it is to us."""

    target: Target
    revision: int
    role: Role
    pod: str
    """The Pod's name."""


class Evidence:
    """One resource's evidence, from rounds of scrapes.

    Args:
        saved: ``status.evidence``, as `state` gave it.
    """

    def __init__(self, saved: Mapping[str, Any]) -> None:
        self._saved = dict(saved)
        self._analysis: Analysis | None = None
        self._of: AnalysisTarget | None = None
        self._begun: tuple[int, float] | None = None
        self._history: History | None = None
        # Whether it was learning at the last look.
        self._learning = False
        self._guard: Guard | None = None
        self._guarded: int | None = None
        self._recent: dict[int, Recent] = {}
        self._newest: dict[tuple[str, str], tuple[int, Sample]] = {}
        # By UID of every Pod that has answered; None where it has no info metric.
        self._info: dict[str, Mapping[str, str] | None] = {}
        self.verdict: Verdict | None = None
        self.suspicion: Suspicion | None = None

    # -- whom to scrape --------------------------------------------------------------------------------------------

    def aims(self, arms: Mapping[int, ArmObserved], stable: int | None, canary: int | None) -> list[Aim]:
        """Pods of the serving revision and of the canary that can be scraped, each once a round.

        Prefill Pods draft next to nothing: they are asked only for the tunings that they run, once.
        """
        found = []
        both: tuple[tuple[int | None, Arm], ...] = ((stable, "stable"), (canary, "canary"))
        for revision, arm in both:
            observed = arms.get(revision) if revision is not None else None
            if revision is not None and observed is not None:
                found += self._of_arm(observed, revision, arm, canary is not None)
        self._info = {pod: info for pod, info in self._info.items() if _present(arms, pod)}
        return found

    def _of_arm(self, observed: ArmObserved, revision: int, arm: Arm, judging: bool) -> list[Aim]:
        apart = observed.prefill.exists or bool(observed.prefill.pods)
        roles: tuple[Role, ...] = ("prefill", "decode", "router") if judging else ("prefill", "decode")
        found = []
        for role in roles:
            for pod in observed.role(role).pods:
                if not pod.ready or pod.terminating or not pod.ip:
                    self._info.pop(pod.uid, None)
                elif role == "router":
                    found.append(
                        Aim(Target(arm, pod.uid, pod.ip, PROXY_METRICS_PORT, "router"), revision, role, pod.name)
                    )
                elif role == "decode" or pod.uid not in self._info:
                    found.append(
                        Aim(Target(arm, pod.uid, pod.ip, ENGINE_PORT, "engine", apart), revision, role, pod.name)
                    )
        return found

    def unseen(self, aims: Iterable[Aim]) -> list[Aim]:
        """Those that have never answered: counting begins with the first sample, so it should come before traffic."""
        return [aim for aim in aims if aim.target.pod not in self._info]

    # -- what the analysis looks at --------------------------------------------------------------------------------

    def aim_at(self, target: AnalysisTarget | None, resource: SpecDecodeDeployment, policy: Policy, now: float) -> None:
        """Follow the plan: begin an analysis, tell it of a step, or drop it."""
        if target is None:
            self._analysis = self._of = self._begun = None
            return
        if self._of is None or (self._of.canary, self._of.started_at) != (target.canary, target.started_at):
            self._begin(target, resource, policy, now)
        self._of = target
        begun = (target.step, target.began_at)
        if target.began_at and begun != self._begun and self._analysis is not None:
            # The weight may waver when a router restarts; the step is the same all the while.
            self._analysis.begin_step(target.step, float(target.weight), now)
            self._begun = begun
            if self.verdict is not None and self.verdict.kind is not VerdictKind.FAIL:
                # What was said of the step before is no word on this one.
                self.verdict = None

    def _begin(self, target: AnalysisTarget, resource: SpecDecodeDeployment, policy: Policy, now: float) -> None:
        saved = self._saved.get("analysis")
        same = isinstance(saved, dict) and (saved.get("canary"), saved.get("startedAt")) == (
            target.canary,
            target.started_at,
        )
        gateway = resource.spec.traffic.gateway is not None

        def start(state: Mapping[str, Any] | None) -> Analysis:
            return Analysis(
                policy,
                steps=max(1, target.steps - 1),
                split="request" if gateway else "connection",
                trust_connection=resource.spec.rollout.analysis.connection_split == "Trust",
                now=now,
                history=self._history,
                state=state,
            )

        self.verdict, self._begun = None, None
        self._analysis = _resumed("evidence", start, saved.get("state") if same and isinstance(saved, dict) else None)
        # What was scraped before the canary had an analysis is where its counters begin.
        arms: dict[int | None, Arm] = {target.stable: "stable", target.canary: "canary"}
        origins = [_in_arm(sample, arms[revision]) for revision, sample in self._newest.values() if revision in arms]
        self._analysis.observe(origins)

    def watch_over(self, stable: int | None, resource: SpecDecodeDeployment, policy: Policy, now: float) -> None:
        """Follow which revision serves alone: the guard and the history are about that one."""
        cadence = (policy.guard_interval, policy.short_interval)
        if self._history is None or (self._history.interval, self._history.short) != cadence:
            past = self._history.state() if self._history is not None else self._read("history", None)
            self._history = _resumed("history", lambda state: History(*cadence, state=state), past)
        if stable == self._guarded or stable is None:
            self._guarded = stable
            return
        saved = self._read("guard", stable)
        first = self._guarded is None
        self._guarded = stable
        baseline = resource.status.baseline
        known = None
        if baseline is not None and baseline.revision == stable and baseline.length:
            known = Baseline(tuple(map(float, baseline.positions)), float(baseline.length), float(baseline.drafts))
        self.suspicion = None

        def start(state: Mapping[str, Any] | None) -> Guard:
            guard = Guard(policy, now=now, baseline=known, state=state)
            if state is not None:
                self.suspicion = guard.look(now)
            return guard

        self._guard = _resumed("guard", start, saved if first else None)

    def _read(self, name: str, revision: int | None) -> Mapping[str, Any] | None:
        saved = self._saved.get(name)
        if not isinstance(saved, dict) or (revision is not None and saved.get("revision") != revision):
            return None
        state = saved.get("state")
        return state if isinstance(state, dict) else None

    # -- what scrapes say ------------------------------------------------------------------------------------------

    def take(self, aims: Iterable[Aim], scraped: Iterable[Scraped]) -> None:
        """Take in a round, in any order; judge nothing."""
        items: list[Sample | ScrapeError] = []
        for aim, got in zip(aims, scraped, strict=True):
            if got.error is not None:
                if aim.role != "prefill":
                    items.append(got.error)
                continue
            # Engines of one Pod are started with one command, so the first one speaks for all.
            self._info[aim.target.pod] = next(iter(got.info.values()), None)
            if aim.role == "decode":
                self._recent.setdefault(aim.revision, Recent()).observe(got.samples)
                for sample in got.samples:
                    self._newest[(sample.pod, sample.engine)] = (aim.revision, sample)
            if aim.role != "prefill":
                items += got.samples
        if self._analysis is not None:
            self._analysis.observe(items)
        else:
            stable = [item for item in items if item.arm == "stable"]
            if self._history is not None:
                self._history.observe(stable)
            if self._guard is not None:
                self._guard.observe(stable)

    def look(self, now: float) -> bool:
        """Judge what is known; whether the answer is another than before."""
        self._newest = {key: held for key, held in self._newest.items() if now - held[1].t < 600.0}
        if self._analysis is not None:
            before, said = self.verdict, self._analysis.look(now)
            # A Fail stands until the canary is gone: the look after it may find nothing, before it was acted on. Only
            # failing requests make it graver.
            if before is not None and before.kind is VerdictKind.FAIL and not said.by_errors:
                return False
            self.verdict = said
            return before is None or (before.kind, before.reason) != (said.kind, said.reason)
        before_learning, self._learning = self._learning, self.learning
        news = before_learning != self._learning
        if self._guard is not None:
            known = self.suspicion
            self.suspicion = self._guard.look(now)
            news |= known is None or (known.suspected, known.reason) != (
                self.suspicion.suspected,
                self.suspicion.reason,
            )
        return news

    # -- what is read off ------------------------------------------------------------------------------------------

    @property
    def judging(self) -> bool:
        """Whether a canary is being analysed."""
        return self._analysis is not None

    @property
    def learning(self) -> bool:
        """Whether more frequent scrapes would soon tell how noisy the serving revision is."""
        return self._history is not None and self._history.learning

    @property
    def verdict_of(self) -> tuple[int, int]:
        """Revision and step that the verdict is about; step 0 before its first step has begun."""
        if self._of is None:
            return 0, 0
        return self._of.canary, self._begun[0] if self._begun is not None else 0

    def infos(self, observed: ArmObserved) -> dict[EngineRole, dict[str, Mapping[str, str] | None]]:
        """Labels of the info metric by role and Pod; None for a Pod that answered without one."""
        roles: tuple[EngineRole, ...] = ("prefill", "decode")
        return {
            role: {pod.name: self._info[pod.uid] for pod in observed.role(role).pods if pod.uid in self._info}
            for role in roles
            if observed.role(role).exists or observed.role(role).pods
        }

    def summaries(self, now: float) -> dict[int, dict[str, Any]]:
        """Acceptance by revision, for status and metrics."""
        found = {}
        for revision, recent in self._recent.items():
            summary = recent.summary(now)
            if summary is not None:
                found[revision] = summary
        if self._analysis is not None and self._of is not None:
            arms: tuple[tuple[int | None, Arm], ...] = ((self._of.canary, "canary"), (self._of.stable, "stable"))
            for number, arm in arms:
                of_step = self._analysis.arm_summary(arm, now)
                if number is not None and of_step.length is not None:
                    found[number] = {
                        "positions": of_step.positions,
                        "length": of_step.length,
                        "drafts": of_step.drafts,
                        "requests": of_step.requests,
                        "interval": of_step.interval,
                    }
        return found

    def drafts(self) -> dict[int, float]:
        """Drafts counted since this process began, by revision."""
        return {revision: recent.total for revision, recent in self._recent.items()}

    def forget(self, revisions: Iterable[int]) -> None:
        """Drop what is kept of all revisions but these."""
        keep = set(revisions)
        self._recent = {revision: recent for revision, recent in self._recent.items() if revision in keep}

    def state(self) -> dict[str, Any]:
        """JSON for ``status.evidence``."""
        saved: dict[str, Any] = {}
        if self._analysis is not None and self._of is not None:
            saved["analysis"] = {
                "canary": self._of.canary,
                "startedAt": self._of.started_at,
                "state": self._analysis.state(),
            }
        if self._history is not None:
            saved["history"] = {"state": self._history.state()}
        if self._guard is not None and self._guarded is not None:
            saved["guard"] = {"revision": self._guarded, "state": self._guard.state()}
        return saved


def _resumed(what: str, start: Callable[[Mapping[str, Any] | None], T], state: Mapping[str, Any] | None) -> T:
    """What ``start`` makes of a saved state, or of none where that can't be read."""
    try:
        return start(state)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        log.warning("the saved %s can't be read, it starts afresh: %r", what, error)
        return start(None)


def _present(arms: Mapping[int, ArmObserved], uid: str) -> bool:
    roles: tuple[Role, ...] = ("prefill", "decode", "router")
    return any(pod.uid == uid for arm in arms.values() for role in roles for pod in arm.role(role).pods)


def _in_arm(sample: Sample, arm: Arm) -> Sample:
    return sample if sample.arm == arm else dataclasses.replace(sample, arm=arm)
