"""What the planner believes of a snapshot.

Two things are put right here, once, so that nothing else has to think of them: times that a clock which was ahead has
written into status, and workloads that are missing from view while their Pods still serve.
"""

from __future__ import annotations

from dataclasses import replace

from specdecode.api import SpecDecodeDeploymentStatus, seconds, timestamp, unix
from specdecode.api.topology import MOST_REPLICAS

from .types import ArmObserved, RoleObserved, Snapshot


def believed(snap: Snapshot) -> Snapshot:
    """The snapshot to plan by."""
    hold = seconds(snap.resource.spec.rollout.analysis.deadline)
    status = _begun(snap.resource.status, snap.now, snap.now + hold)
    arms = {number: _standing(arm) for number, arm in snap.arms.items()}
    return replace(snap, resource=snap.resource.model_copy(update={"status": status}), arms=arms)


def _begun(status: SpecDecodeDeploymentStatus, now: float, latest: float) -> SpecDecodeDeploymentStatus:
    """Status with all that has happened no later than ``now``, and nothing held beyond ``latest``: else a rollout
    would stand still until a time that may be a year away."""

    def by(limit: float, written: str | None) -> str | None:
        return timestamp(limit) if written is not None and unix(written) > limit else written

    rollout, verdict = status.rollout, status.verdict
    failure = rollout.failure
    times: dict[str, object] = {
        name: by(now, getattr(rollout, name))
        for name in ("started_at", "step_started_at", "step_passed_at", "progress_at")
    }
    times["held_until"] = by(latest, rollout.held_until)
    times["failure"] = failure and failure.model_copy(update={"at": by(now, failure.at)})
    return status.model_copy(
        update={
            "rollout": rollout.model_copy(update=times),
            "rejected": [r.model_copy(update={"at": by(now, r.at)}) for r in status.rejected],
            "verdict": verdict and verdict.model_copy(update={"at": by(now, verdict.at)}),
            "conditions": [
                c.model_copy(update={"last_transition_time": by(now, c.last_transition_time)})
                for c in status.conditions
            ],
        }
    )


def _standing(arm: ArmObserved) -> ArmObserved:
    listed = [p.backends for p in arm.router.pods if p.backends]
    prefill, decode = (max((lists[role] for lists in listed), default=0) for role in (0, 1))
    return replace(
        arm, prefill=_asked(arm.prefill, prefill), decode=_asked(arm.decode, decode), router=_asked(arm.router)
    )


def _asked(of: RoleObserved, listed: int = 0) -> RoleObserved:
    """A workload that lost its label, or was deleted without its Pods, as its Pods tell: written again at any smaller
    size it would take serving Pods away. One that ends while routers still list it (``listed`` ordinals) is on its way
    back, not taken away."""
    pods = [p for p in of.pods if not p.terminating or (p.ordinal is not None and p.ordinal < listed)]
    if of.exists or not pods:
        return of
    ordinals = [p.ordinal for p in pods if p.ordinal is not None]
    size = max(ordinals) + 1 if ordinals else len(pods)
    backends = max((p.backends for p in pods if p.backends), default=None)
    return replace(of, replicas=min(size, MOST_REPLICAS), backends=backends)
