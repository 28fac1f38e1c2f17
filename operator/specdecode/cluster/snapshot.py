"""From what is known to what the planner sees."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specdecode.acceptance import Policy
from specdecode.api import SpecDecodeDeployment
from specdecode.api.faults import Fault
from specdecode.api.names import EngineRole
from specdecode.engine.checks import check
from specdecode.engine.inputs import mutable_inputs
from specdecode.engine.report import TuningReport
from specdecode.engine.tunings import report
from specdecode.rollout.policy import policy, policy_faults
from specdecode.rollout.types import Snapshot
from specdecode.workload import Observed, observe, render

from .evidence import Evidence
from .kinds import Object


@dataclass(frozen=True, slots=True)
class Today:
    """What follows from a resource's spec alone, so that it is worked out once a generation."""

    faults: tuple[Fault, ...]
    mutable_inputs: tuple[str, ...]
    rendering: Mapping[str, Any]
    policy: Policy | None
    """None where the spec's analysis can't be worked with; a fault says why."""


def today(resource: SpecDecodeDeployment, router_image: str) -> Today:
    """Faults, rendering and policy of today's spec. A spec with errors isn't rendered: nothing will be made of it."""
    spec = resource.spec
    unusable = policy_faults(spec)
    faults = (*check(spec), *unusable)
    sound = not any(fault.severity == "error" for fault in faults)
    return Today(
        faults=faults,
        mutable_inputs=tuple(mutable_inputs(spec)),
        rendering=render(resource, router_image=router_image) if sound else {},
        policy=None if unusable else policy(spec),
    )


def snapshot(
    resource: SpecDecodeDeployment,
    known: Today,
    objects: Iterable[Object],
    evidence: Evidence,
    *,
    now: float,
    lost_nodes: Collection[str] = (),
    write_errors: tuple[str, ...] = (),
) -> Snapshot:
    """Everything that is known of a resource at ``now`` (Unix seconds)."""
    observed = observe(resource, objects, lost_nodes=lost_nodes, now=now)
    return Snapshot(
        resource=resource,
        now=now,
        records=observed.records,
        arms=observed.arms,
        route=observed.route,
        verdict=evidence.verdict,
        verdict_of=evidence.verdict_of,
        tunings=_tunings(observed, evidence),
        faults=known.faults,
        mutable_inputs=known.mutable_inputs,
        conflicts=observed.conflicts,
        write_errors=write_errors,
        acceptance=_remembered(resource) | evidence.summaries(now),
        guard=evidence.suspicion,
        rendering=known.rendering,
    )


def working_policy(known: Today, snap: Snapshot) -> Policy | None:
    """Today's policy, or else the one that the newest revision was recorded with.

    An analysis that became unusable in mid-canary must not leave the canary unjudged.
    """
    if known.policy is not None:
        return known.policy
    recorded = sorted(snap.records, key=lambda record: record.number, reverse=True)
    return next((policy(record.spec) for record in recorded if not policy_faults(record.spec)), None)


def _tunings(observed: Observed, evidence: Evidence) -> dict[int, TuningReport]:
    """What the Pods of each living revision say of their tunings, against what the revision was told."""
    found = {}
    for record in observed.records:
        arm = observed.arms.get(record.number)
        if arm is None:
            continue
        expected: dict[EngineRole, list[str]] = {
            role: [pod.name for pod in arm.role(role).pods if pod.ready and not pod.terminating]
            for role in record.spec.topology.roles
        }
        found[record.number] = report(record.number, record.spec, evidence.infos(arm), expected)
    return found


def _remembered(resource: SpecDecodeDeployment) -> dict[int, dict[str, Any]]:
    """Acceptance as status has it: the last that was known, where nothing was drafted since."""
    return {
        arm.revision: {
            "positions": tuple(map(float, arm.positions)),
            "length": float(arm.length),
            "drafts": arm.drafts,
            "requests": arm.requests,
            "interval": tuple(map(float, arm.interval)) or None,
        }
        for arm in resource.status.acceptance
        if arm.length
    }
