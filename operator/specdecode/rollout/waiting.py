"""What a revision's Pods are waited for, and whether that has taken too long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specdecode.api import seconds, unix
from specdecode.api.names import EngineRole, Role, child

from . import reasons
from .arms import Arm
from .capacity import Capacity
from .draft import Draft, Word
from .types import ArmTarget, PodObserved

ROUTER: Role = "router"
QUIET_SECONDS = 30.0
"""Without a Pod becoming ready for so long, routers are given the Pods that there are."""

KNOWN_SECONDS = 3.0
"""From a router's being ready until nodes and gateways send it requests; kube-proxy alone writes its rules once a
second at most."""

# Waiting reasons of the kubelet, by what they mean. Each is retried by the kubelet for ever.
_BROKEN = {
    "CrashLoopBackOff": reasons.CRASH_LOOPING,
    "RunContainerError": reasons.CRASH_LOOPING,
    "ErrImagePull": reasons.IMAGE_PULL_FAILING,
    "ImagePullBackOff": reasons.IMAGE_PULL_FAILING,
    "InvalidImageName": reasons.IMAGE_PULL_FAILING,
    "ErrImageNeverPull": reasons.IMAGE_PULL_FAILING,
    "CreateContainerConfigError": reasons.CONTAINER_CONFIG,
    "CreateContainerError": reasons.CONTAINER_CONFIG,
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a revision waits for."""

    ready: bool
    """Every Pod that it is asked for is ready, and there is one of each role."""
    word: Word
    quiet: bool
    """No Pod has become ready for a while."""
    overdue: bool
    """Longer than the progress deadline."""
    broken: bool
    """A Pod can't run, however long one waits: it crashes, or its image can't be had."""
    images: Word | None
    """Set where Pods of the revision run different images."""
    tunings: Word | None
    """Set where Pods run something else than they were told, or haven't said yet."""


def waiting(draft: Draft, arm: Arm, capacities: Mapping[EngineRole, Capacity], *, partial: bool = False) -> Waiting:
    """Look at a revision's Pods. ``partial``: it needs what it is asked for, not yet all replicas."""
    missing: list[str] = []
    pods: list[PodObserved] = list(arm.observed.router.pods)
    ready_now = arm.observed.router.ready
    for role in arm.roles:
        of = arm.observed.role(role)
        pods.extend(of.pods)
        ready_now += of.ready
        wanted = max(of.replicas, 1) if partial or capacities[role].autoscaled else capacities[role].replicas
        if of.ready < wanted:
            missing.append(f"{of.ready} of {wanted} {role} Pods are ready")
    if not partial and arm.observed.router.ready < draft.entry.routers:
        missing.append(f"{arm.observed.router.ready} of {draft.entry.routers} router Pods are ready")
    elif partial and arm.observed.router.ready < arm.observed.router.replicas:
        missing.append(f"{arm.observed.router.ready} of {arm.observed.router.replicas} router Pods are ready")

    _note_progress(draft, ready_now)
    since = unix(draft.rollout.progress_at) if draft.rollout.progress_at else draft.now
    deadline = seconds(draft.snap.resource.spec.rollout.progress_deadline)
    quiet = draft.now - since >= QUIET_SECONDS
    if missing:
        draft.at(since + deadline)
        draft.at(since + QUIET_SECONDS)
    reason, detail = _why(pods)
    if quiet and not detail:
        detail = _unmade(draft, arm)
    message = f"Revision {arm.observed.revision}: {', '.join(missing)}" + (f"; {detail}" if detail else "")
    return Waiting(
        ready=not missing,
        word=Word(reason, message if missing else ""),
        quiet=quiet,
        overdue=bool(missing) and draft.now - since >= deadline,
        broken=reason in _BROKEN.values(),
        images=_images(arm, pods),
        tunings=_tunings(draft, arm),
    )


def settling(draft: Draft, arm: Arm, target: ArmTarget) -> Word | None:
    """What is still on its way while every Pod is ready already; None once all that is asked for serves.

    Routers that list all the Pods may still be coming, and those who send them requests may not know them yet.
    """
    routers = [p for p in arm.observed.router.pods if p.ready and not p.terminating]
    listing = [p for p in routers if p.backends == target.backends]
    revision = f"Revision {arm.observed.revision}"
    if len(listing) < max(len(routers), draft.entry.routers):
        message = f"{revision}: {len(listing)} of {draft.entry.routers} router Pods list all its engines"
        return Word(reasons.WAITING_FOR_PODS, message)
    known = max((p.ready_since for p in listing), default=0.0) + KNOWN_SECONDS
    if draft.now >= known:
        return None
    draft.at(known)
    return Word(reasons.WAITING_FOR_PODS, f"{revision}: its routers have been ready for less than {KNOWN_SECONDS:g} s")


def _note_progress(draft: Draft, ready: int) -> None:
    """Progress is a Pod more than ever since the rollout began."""
    if draft.rollout.progress_at is None or ready > draft.rollout.best_ready:
        draft.rollout = draft.rollout.model_copy(
            update={"best_ready": max(ready, draft.rollout.best_ready), "progress_at": draft.timestamp}
        )


def _why(pods: Iterable[PodObserved]) -> tuple[str, str]:
    """The worst reason that a Pod isn't ready, with its own sentence. One that can't ever run comes first."""
    late = [p for p in pods if not p.ready and not p.terminating]
    for pod in late:
        if pod.waiting in _BROKEN:
            return _BROKEN[pod.waiting], f"Pod {pod.name}: {pod.waiting}" + (f": {pod.message}" if pod.message else "")
    for pod in late:
        if pod.unschedulable:
            return reasons.UNSCHEDULABLE, f"Pod {pod.name} can't be scheduled: {pod.message}"
    return reasons.WAITING_FOR_PODS, ""


def _unmade(draft: Draft, arm: Arm) -> str:
    """Pods that are asked for and that the cluster doesn't make; who refuses them is told by Events only."""
    for role in (*arm.roles, ROUTER):
        of = arm.observed.role(role)
        if of.exists and of.total < of.replicas:
            kind = "Deployment" if role == ROUTER else "StatefulSet"
            name = child(draft.snap.resource.metadata.name, arm.observed.revision, role)
            return (
                f"{of.total} of {of.replicas} {role} Pods exist: a quota or an admission policy may refuse them, see "
                f"kubectl describe {kind.lower()} {name}"
            )
    return ""


def _images(arm: Arm, pods: Iterable[PodObserved]) -> Word | None:
    """Engine Pods of one revision that run different images: a tag has moved between their starts."""
    routers = {p.uid for p in arm.observed.router.pods}
    found = sorted({i for p in pods if p.uid not in routers and not p.terminating for i in p.image_ids if i})
    if len(found) < 2:
        return None
    return Word(
        reasons.IMAGES_DIFFER,
        f"Pods of revision {arm.observed.revision} run different images, so a tag has moved: {', '.join(found)}; "
        "name the image by digest",
    )


def _tunings(draft: Draft, arm: Arm) -> Word | None:
    report = draft.snap.tunings.get(arm.observed.revision)
    if report is None or not report.complete:
        return Word(
            reasons.TUNINGS_UNSEEN,
            f"Revision {arm.observed.revision}: not every Pod's /metrics has answered yet, so its tunings are unknown",
        )
    if report.wrong:
        return Word(reasons.TUNINGS_WRONG, f"Revision {arm.observed.revision}: {'; '.join(report.wrong)}")
    return None
