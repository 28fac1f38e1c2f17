"""Every object that a plan asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdecode.api import SpecDecodeDeployment, SpecDecodeDeploymentStatus
from specdecode.api.names import EngineRole
from specdecode.rollout.types import ArmTarget, Plan, RevisionRecord

from . import httproute, networkpolicy, pdb, router, service, statefulset
from .networkpolicy import Access
from .render import render
from .revision import controller_revision

_ENGINE_ROLES: Final[tuple[EngineRole, ...]] = ("prefill", "decode")
ANYWHERE: Final = Access()
"""For a look without a cluster: the operator in the namespace that the documentation installs it into."""


def arm(
    resource: SpecDecodeDeployment, target: ArmTarget, rendering: Mapping[str, Any], access: Access | None
) -> list[dict[str, Any]]:
    """Objects of one revision: what Pods need first comes first."""
    revision = target.revision
    found = []
    if access is not None:
        roles = [role for role in _ENGINE_ROLES if role in rendering]
        found += [networkpolicy.engine(resource, revision, role, access, split=len(roles) > 1) for role in roles]
        found.append(networkpolicy.router(resource, revision, access))
    for role, replicas in zip(_ENGINE_ROLES, (target.prefill, target.decode), strict=True):
        if role in rendering:
            found.append(service.headless(resource, revision, role))
            found.append(statefulset.stateful_set(resource, revision, role, replicas, rendering))
            found.append(pdb.disruption_budget(resource, revision, role))
    found.append(router.config_map(resource, revision, rendering))
    found.append(service.revision_routers(resource, revision))
    found.append(router.deployment(resource, target, rendering))
    found.append(pdb.disruption_budget(resource, revision, "router"))
    return found


def entry(resource: SpecDecodeDeployment, plan: Plan) -> list[dict[str, Any]]:
    """The way in: an HTTPRoute with a gateway, else one Service. Both while a canary that began with a gateway ends
    without; none where the route has nothing to point at yet."""
    found = []
    if plan.gateway is not None and plan.weights:
        found.append(httproute.http_route(resource, plan.gateway, plan.weights))
    if resource.spec.traffic.gateway is None or plan.status.split == "Connection":
        found.append(service.entry(resource))
    return found


def desired(
    resource: SpecDecodeDeployment,
    plan: Plan,
    records: Mapping[int, RevisionRecord],
    access: Access | None = None,
) -> list[dict[str, Any]]:
    """Bodies for server-side apply of every object that the plan asks for; the ControllerRevision that it creates is
    not among them (see `revision.controller_revision`).

    Args:
        resource: the resource.
        plan: what it should have.
        records: each arm's revision.
        access: who may scrape its Pods; None for no NetworkPolicies.

    Raises:
        KeyError: the plan has an arm whose revision is not in ``records``.
    """
    found = []
    for target in plan.arms:
        found += arm(resource, target, records[target.revision].rendering, access)
    return found + entry(resource, plan)


def preview(
    resource: SpecDecodeDeployment, *, router_image: str, access: Access | None = ANYWHERE
) -> list[dict[str, Any]]:
    """All objects of the resource's first revision at its full size, for a look without a cluster."""
    topology = resource.spec.topology
    prefill = topology.prefill
    backends = (
        (prefill.replicas or prefill.max_replicas or 1) if prefill is not None else 0,
        topology.decode.replicas or topology.decode.max_replicas or 1,
    )
    target = ArmTarget(
        revision=1,
        prefill=prefill.replicas if prefill is not None else None,
        decode=topology.decode.replicas,
        router=topology.router.replicas,
        backends=backends,
        router_surge=True,
    )
    record = RevisionRecord(1, resource.spec, render(resource, router_image=router_image))
    gateway = resource.spec.traffic.gateway
    plan = Plan(status=SpecDecodeDeploymentStatus(), arms=(target,), weights={1: 100}, gateway=gateway)
    return [controller_revision(resource, record), *desired(resource, plan, {1: record}, access)]
