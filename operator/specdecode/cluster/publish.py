"""A resource's gauges, from its last plan and its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdecode.api import SpecDecodeDeploymentStatus
from specdecode.api.names import Role
from specdecode.rollout.types import Plan, Snapshot
from specdecode.telemetry import Metrics
from specdecode.telemetry.metrics import VERDICTS

ROLES: Final[tuple[Role, ...]] = ("prefill", "decode", "router")
_STATUSES: Final = ("True", "False", "Unknown")


def publish(
    metrics: Metrics,
    snap: Snapshot,
    plan: Plan,
    summaries: Mapping[int, Mapping[str, Any]],
    drafts: Mapping[int, float],
) -> None:
    """Set all gauges of one resource; those that no longer apply vanish.

    Args:
        metrics: where.
        snap: what was seen.
        plan: what was made of it.
        summaries: acceptance by revision, as it is now.
        drafts: drafts counted by revision since this process began.
    """
    status = plan.status
    meta = snap.resource.metadata
    r = metrics.of(meta.namespace, meta.name)
    arms = arms_of(status)
    for revision, arm in arms.items():
        if (drafted := drafts.get(revision)) is not None:
            r.set(metrics.drafts_total, drafted, str(revision), arm)
        summary = summaries.get(revision)
        if summary is None:
            continue
        labels = (str(revision), arm)
        r.set(metrics.acceptance_length, summary["length"], *labels)
        r.set(metrics.drafts, summary["drafts"], *labels)
        if summary["interval"] is not None:
            low, high = summary["interval"]
            r.set(metrics.acceptance_length_low, low, *labels)
            r.set(metrics.acceptance_length_high, high, *labels)
        for position, acceptance in enumerate(summary["positions"], start=1):
            r.set(metrics.position_acceptance, acceptance, *labels, str(position))
    if status.verdict is not None:
        r.one_of(metrics.verdict, status.verdict.verdict, VERDICTS)
    # A first revision was never promoted: its baseline is the guard's own.
    if snap.guard is not None and snap.guard.baseline is not None:
        r.set(metrics.baseline, snap.guard.baseline)
    elif status.baseline is not None and status.baseline.length:
        r.set(metrics.baseline, float(status.baseline.length))
    r.set(metrics.weight_asked, status.weight.asked / 100.0)
    r.set(metrics.weight_reached, status.weight.reached / 100.0)
    for revision, arm in arms.items():
        observed = snap.arms.get(revision)
        for role in ROLES:
            if observed is not None and observed.role(role).exists:
                r.set(metrics.ready_pods, observed.role(role).ready, role, arm)
    topology = snap.resource.spec.topology
    wanted = {role: spec.replicas for role, spec in topology.roles.items()} | {"router": topology.router.replicas}
    for name, replicas in wanted.items():
        if replicas is not None:
            r.set(metrics.wanted_pods, replicas, name)
    for tuning in status.tunings:
        if status.stable is not None and tuning.revision == status.stable.revision:
            for field in ("depth", "lookahead_backoff", "host_copy", "top_k_sharing"):
                r.set(metrics.tunings, 1.0, tuning.role, field, getattr(tuning, field))
    for condition in status.conditions:
        r.one_of(metrics.condition, condition.status, _STATUSES, condition.type)
    r.close()


def arms_of(status: SpecDecodeDeploymentStatus) -> dict[int, str]:
    """The arm of each living revision."""
    arms = {}
    if status.stable is not None:
        arms[status.stable.revision] = "stable"
    if status.canary is not None:
        arms[status.canary.revision] = "canary"
    return arms
