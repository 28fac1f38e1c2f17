"""The plan's last part: status, conditions, and the one sentence that says what is going on.

Conditions follow kstatus, so that `kubectl wait`, Flux and Argo CD understand them. Ready means that *this* generation
serves: after a rollback Available is True, Ready False, and Stalled True with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from specdecode.api import unix
from specdecode.api.names import LABEL_DEPLOYMENT, LABEL_ROLE
from specdecode.api.status import (
    LONGEST_MESSAGE,
    MOST_REJECTED,
    ArmAcceptance,
    Condition,
    RejectedRevision,
    RevisionStatus,
    RolloutStatus,
    SpecDecodeDeploymentStatus,
    SummaryStatus,
    TuningStatus,
    VerdictStatus,
    WeightStatus,
)

from . import reasons
from .arms import ROLES
from .draft import Draft, Word
from .types import AnalysisTarget, ArmObserved, EventNote, Plan

Status = Literal["True", "False", "Unknown"]


def finish(draft: Draft) -> Plan:
    """The plan that a draft has come to."""
    stalled = _stalled(draft)
    status = _status(draft, stalled)
    events = list(draft.events)
    if draft.create is not None:
        events.append(EventNote("Normal", reasons.REVISION_RECORDED, f"Revision {draft.create.number} is recorded"))
    living = {n for n in (draft.stable, draft.canary, draft.desired) if n is not None}
    past = sorted((r.number for r in draft.snap.records if r.number not in living), reverse=True)
    keep = draft.snap.resource.spec.rollout.revision_history_limit
    forget = [n for n in past[keep:] if draft.snap.arms.get(n, ArmObserved(n)).gone]
    lost = [
        pod
        for arm in draft.snap.arms.values()
        for workload in (arm.prefill, arm.decode, arm.router)
        for pod in workload.pods
        if pod.lost
    ]
    return Plan(
        status=status,
        create=draft.create,
        arms=tuple(draft.targets),
        remove=tuple(draft.remove),
        forget=tuple(forget),
        weights=draft.weights if draft.entry.gateway else None,
        gateway=(draft.snap.resource.spec.traffic.gateway or draft.snap.route.gateway) if draft.entry.gateway else None,
        analysis=analysis_target(draft),
        events=tuple(events),
        status_first=draft.decided,
        force_delete=tuple(lost),
        requeue_after=max(min(draft.due) - draft.now, 0.0) if draft.due else None,
        reason=(stalled or draft.doing).reason,
        message=(stalled or draft.doing).message,
    )


def _stalled(draft: Draft) -> Word | None:
    """The first thing in the way, the gravest first."""
    snap = draft.snap
    if snap.conflicts:
        return Word(
            reasons.NAME_TAKEN,
            f"{'; '.join(snap.conflicts)}: an object of this name belongs to somebody else; delete it, or choose "
            "another name for this resource",
        )
    if snap.write_errors:
        return Word(reasons.WRITE_REFUSED, "; ".join(snap.write_errors))
    if draft.stalled is not None:
        return draft.stalled
    if draft.entry.gateway and snap.route.refused:
        return Word(reasons.ROUTE_NOT_ACCEPTED, snap.route.message)
    return None


def _status(draft: Draft, stalled: Word | None) -> SpecDecodeDeploymentStatus:
    snap, old = draft.snap, draft.snap.resource.status
    stable = _revision(draft, draft.stable, served=draft.served) if draft.stable is not None else None
    canary = _revision(draft, draft.canary, served=False) if draft.canary is not None else None
    acceptance = [
        _acceptance(number, snap.acceptance[number])
        for number in (draft.stable, draft.canary)
        if number is not None and number in snap.acceptance
    ]
    baseline = old.baseline
    if draft.promoted and draft.stable is not None and draft.stable in snap.acceptance:
        baseline = _acceptance(draft.stable, snap.acceptance[draft.stable])
    elif stable is None or (baseline is not None and baseline.revision != stable.revision):
        baseline = None
    verdict = old.verdict
    if snap.verdict is not None and snap.verdict_of[0]:
        said = (snap.verdict_of[0], str(snap.verdict.kind), str(snap.verdict.reason))
        if verdict is None or (verdict.revision, verdict.verdict, verdict.reason) != said:
            verdict = VerdictStatus(
                revision=snap.verdict_of[0],
                verdict=snap.verdict.kind.value,
                reason=str(snap.verdict.reason),
                message=snap.verdict.message,
                at=draft.timestamp,
            )
    stable_arm = snap.arms.get(draft.stable or 0, ArmObserved(0))
    return old.model_copy(
        update={
            "observed_generation": snap.resource.metadata.generation,
            "current_revision": draft.desired or old.current_revision,
            "stable": stable,
            "canary": canary,
            "rejected": _rejected(draft),
            "rollout": draft.rollout if draft.canary is not None else _idle(draft.rollout),
            "weight": WeightStatus(asked=draft.weight_asked, reached=draft.weight_reached),
            "split": "Request" if draft.entry.gateway else "Connection",
            "acceptance": acceptance,
            "baseline": baseline,
            "verdict": verdict,
            "tunings": _tunings(draft),
            "decode_replicas": stable_arm.decode.replicas,
            "selector": f"{LABEL_DEPLOYMENT}={snap.resource.metadata.name},{LABEL_ROLE}=decode",
            "conditions": _conditions(draft, stalled),
            "summary": _summary(draft, stalled, acceptance),
        }
    )


def _rejected(draft: Draft) -> list[RejectedRevision]:
    """Rejections of revisions that are still recorded, the newest: a spec whose record is gone is a new revision."""
    recorded = {record.number for record in draft.snap.records}
    return [r for r in draft.rejected if r.revision in recorded][-MOST_REJECTED:]


def _idle(rollout: RolloutStatus) -> RolloutStatus:
    """Outside a canary only progress and a held start are worth keeping."""
    return RolloutStatus(
        started_at=rollout.started_at,
        progress_at=rollout.progress_at,
        best_ready=rollout.best_ready,
        held_until=rollout.held_until,
    )


def _revision(draft: Draft, number: int, *, served: bool) -> RevisionStatus:
    arm = draft.snap.arms.get(number, ArmObserved(number))
    record = draft.record(number)
    return RevisionStatus(
        revision=number,
        prefill=arm.prefill.ready,
        decode=arm.decode.ready,
        router=arm.router.ready,
        depth=record.spec.speculation.depth if record else 0,
        image=record.spec.engine.image if record else "",
        served=served,
    )


def _acceptance(number: int, summary: Mapping[str, Any]) -> ArmAcceptance:
    """Rounded: three digits say all that a person reads, and keep status from changing all the time."""
    interval = summary.get("interval")
    length = summary.get("length")
    return ArmAcceptance(
        revision=number,
        length="" if length is None else f"{length:.2f}",
        interval=[f"{bound:.2f}" for bound in interval] if interval else [],
        positions=[f"{p:.3f}" for p in summary.get("positions", ())],
        drafts=int(summary.get("drafts", 0)),
        requests=int(summary.get("requests", 0)),
    )


def _tunings(draft: Draft) -> list[TuningStatus]:
    found: list[TuningStatus] = []
    for number in (draft.stable, draft.canary):
        report = draft.snap.tunings.get(number) if number is not None else None
        if report is None:
            continue
        found.extend(
            TuningStatus.model_validate({"role": role, "revision": number, **report.effective[role]})
            for role in ROLES
            if role in report.effective
        )
    return found


def _conditions(draft: Draft, stalled: Word | None) -> list[Condition]:
    snap = draft.snap
    generation = snap.resource.metadata.generation
    old = {c.type: c for c in snap.resource.status.conditions}
    found: list[Condition] = []

    def put(kind: str, status: Status, reason: str, message: str) -> None:
        before = old.get(kind)
        since = before.last_transition_time if before and before.status == status else draft.timestamp
        found.append(
            Condition(
                type=kind,
                status=status,
                reason=reason,
                message=message[:LONGEST_MESSAGE],
                last_transition_time=since,
                observed_generation=generation,
            )
        )

    available = _available(draft)
    serves = f"Revision {draft.stable} serves" if available else "No revision has ready Pods of every role and a router"
    put("Available", "True" if available else "False", "Serving" if available else reasons.WAITING_FOR_PODS, serves)
    current = draft.desired is not None and draft.desired == draft.stable and draft.canary is None
    ready = available and current and draft.doing.reason == reasons.UP_TO_DATE and stalled is None
    doing = draft.doing
    why = stalled or doing
    put(
        "Ready",
        "True" if ready else "False",
        reasons.UP_TO_DATE if ready else why.reason,
        f"Revision {draft.stable} is what the spec asks for, and all of it serves" if ready else why.message,
    )
    moving = draft.create is not None or draft.canary is not None or doing.reason != reasons.UP_TO_DATE
    put(
        "Reconciling",
        "True" if moving else "False",
        (reasons.RECORDING if draft.create is not None else doing.reason),
        doing.message,
    )
    put(
        "Stalled",
        "True" if stalled else "False",
        stalled.reason if stalled else "NothingInTheWay",
        stalled.message if stalled else "",
    )
    put("TuningsEffective", *_tunings_effective(draft))
    put("AcceptanceHealthy", *_acceptance_healthy(draft))
    put("InputsMutable", *_inputs(snap.mutable_inputs))
    idle = [a for a in snap.resource.spec.guard.on_fall if a != "Alert"]
    if idle:
        put("GuardLimited", "True", "NotInThisVersion", f"guard.onFall: {', '.join(idle)} does nothing in this version")
    warnings = [f for f in snap.faults if f.severity == "warning"]
    notes = [str(f) for f in warnings] + list(draft.asked.unreadable)
    if notes:
        reason = warnings[0].reason if warnings else "UnreadableRequest"
        put("Warnings", "True", reason, "; ".join(notes))
    return found


def _available(draft: Draft) -> bool:
    """Whether a revision that has traffic can answer."""
    for number in (draft.stable, draft.canary):
        if number is None:
            continue
        arm = draft.arm(number)
        if arm.observed.router.ready and all(arm.ready(role) for role in arm.roles):
            return True
    return False


def _tunings_effective(draft: Draft) -> tuple[Status, str, str]:
    living = [n for n in (draft.stable, draft.canary) if n is not None]
    reports = [draft.snap.tunings[n] for n in living if n in draft.snap.tunings]
    wrong = [w for r in reports for w in r.wrong]
    if wrong:
        return "False", reasons.TUNINGS_WRONG, "; ".join(wrong)
    unhonoured = sorted({u for r in reports for u in r.unhonoured})
    if not reports or not all(r.complete for r in reports):
        return "Unknown", reasons.TUNINGS_UNSEEN, "Not every Pod has said yet what it runs"
    if unhonoured:
        return "Unknown", "NotHonoured", f"The image can't set or show: {'; '.join(unhonoured)}"
    return "True", "AsTold", "Every Pod runs the tunings that it was told"


def _acceptance_healthy(draft: Draft) -> tuple[Status, str, str]:
    guard = draft.snap.guard
    if guard is None or not draft.snap.resource.spec.guard.enabled:
        return "Unknown", "NotWatched", "No evidence on the serving revision yet"
    if guard.suspected:
        return "False", str(guard.reason), guard.message
    return ("True" if guard.length is not None else "Unknown"), str(guard.reason), guard.message


def _inputs(mutable: tuple[str, ...]) -> tuple[Status, str, str]:
    if mutable:
        return "True", "Mutable", f"May change under a running revision: {'; '.join(mutable)}"
    return "False", "Pinned", "Images and weights are named by what they are"


def _summary(draft: Draft, stalled: Word | None, acceptance: list[ArmAcceptance]) -> SummaryStatus:
    capacities = draft.capacities() if draft.snap.records else {}
    serving = draft.snap.arms.get(draft.stable or 0, ArmObserved(0))

    def of(role: Literal["prefill", "decode"]) -> str:
        if role not in capacities:
            return "-"
        return f"{serving.role(role).ready}/{capacities[role].replicas}"

    if draft.canary is not None:
        phase = draft.rollout.phase
        rollout = f"Canary {draft.weight_reached}% {draft.rollout.step}/{len(draft.steps)}"
        if phase in ("RollingBack", "Dropping", "ComingUp", "Promoting"):
            rollout = f"{phase} {draft.weight_reached}%"
    else:
        rollout = stalled.reason if stalled else ("Ready" if draft.doing.reason == reasons.UP_TO_DATE else "ComingUp")
    length = next((a.length for a in acceptance if a.revision == draft.stable), "")
    return SummaryStatus(prefill=of("prefill"), decode=of("decode"), rollout=rollout, acceptance=length)


def analysis_target(draft: Draft) -> AnalysisTarget | None:
    """What the analysis should look at; nothing outside a judged canary."""
    if draft.canary is None or not draft.judged or not draft.rollout.started_at:
        return None
    started = draft.rollout.step_started_at
    return AnalysisTarget(
        canary=draft.canary,
        stable=draft.stable,
        started_at=unix(draft.rollout.started_at),
        step=draft.rollout.step,
        steps=len(draft.steps),
        weight=draft.weight_reached,
        began_at=unix(started) if started else 0.0,
    )
