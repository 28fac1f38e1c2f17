"""What stands in the cluster, read from raw Kubernetes objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from specdecode.api import SpecDecodeDeployment
from specdecode.api.names import ANNOTATION_BACKENDS, KIND, LABEL_REVISION, LABEL_ROLE, Role, child
from specdecode.rollout.types import ArmObserved, PodObserved, RevisionRecord, RoleObserved, RouteObserved

from . import engine, httproute, router
from .revision import record

NO_ROUTE: Final = RouteObserved()
_WORKLOADS: Final = ("StatefulSet", "Deployment")
_STARTING: Final = ("ContainerCreating", "PodInitializing")
_RESTARTS: Final = 3
"""Restarts after which a container that isn't ready counts as crash-looping between its crashes too."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One resource's objects as the planner sees them."""

    records: tuple[RevisionRecord, ...] = ()
    arms: Mapping[int, ArmObserved] = field(default_factory=dict)
    route: RouteObserved = NO_ROUTE
    conflicts: tuple[str, ...] = ()
    """Objects under names of ours that another owner has, and records that can't be read; each a sentence."""


def observe(
    resource: SpecDecodeDeployment,
    objects: Iterable[Mapping[str, Any]],
    *,
    lost_nodes: Collection[str] = (),
    now: float = 0.0,
) -> Observed:
    """Sort out the objects that carry the resource's label.

    Pods count by their labels whoever owns them: one that outlives its workload still takes up its place.
    ``lost_nodes`` names nodes that don't answer; a Pod there whose grace period is over at ``now`` (Unix seconds) is
    lost. ControllerRevisions that StatefulSets keep for themselves carry our labels too and are passed over.
    """
    records: list[RevisionRecord] = []
    roles: dict[tuple[int, Role], RoleObserved] = {}
    route = NO_ROUTE
    conflicts: list[str] = []
    for item in objects:
        kind, meta = item["kind"], item["metadata"]
        if kind == "Pod":
            key = _key(meta)
            if key is not None and item.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                role = roles.get(key, RoleObserved())
                workload = child(resource.metadata.name, *key)
                roles[key] = replace(role, pods=(*role.pods, _pod(item, key[1], workload, lost_nodes, now)))
            continue
        owner = _controller(meta)
        if kind == "ControllerRevision" and owner.get("kind") == "StatefulSet":
            continue
        if owner.get("uid") != resource.metadata.uid:
            conflicts.append(_conflict(kind, meta, owner))
        elif kind == "ControllerRevision":
            try:
                records.append(record(item))
            except ValueError as error:
                conflicts.append(str(error))
        elif kind in _WORKLOADS and (key := _key(meta)) is not None:
            role = roles.get(key, RoleObserved())
            wanted = item["spec"].get("replicas", 1)
            backends = _backends(item["spec"]["template"].get("metadata", {}))
            roles[key] = replace(role, exists=True, replicas=wanted, backends=backends)
        elif kind == "HTTPRoute":
            route = _route(resource, item)
    arms: dict[int, ArmObserved] = {}
    for (revision, name), role in sorted(roles.items()):
        sorted_pods = tuple(sorted(role.pods, key=lambda p: (p.ordinal if p.ordinal is not None else -1, p.name)))
        arms[revision] = _with_role(arms.get(revision, ArmObserved(revision)), name, replace(role, pods=sorted_pods))
    return Observed(tuple(sorted(records, key=lambda r: r.number)), arms, route, tuple(sorted(conflicts)))


def _with_role(arm: ArmObserved, name: Role, role: RoleObserved) -> ArmObserved:
    match name:
        case "prefill":
            return replace(arm, prefill=role)
        case "decode":
            return replace(arm, decode=role)
        case "router":
            return replace(arm, router=role)


def _key(metadata: Mapping[str, Any]) -> tuple[int, Role] | None:
    labels = metadata.get("labels") or {}
    number, role = labels.get(LABEL_REVISION, ""), labels.get(LABEL_ROLE)
    if not number.isdigit() or role not in ("prefill", "decode", "router"):
        return None
    return int(number), role


def _controller(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    for reference in metadata.get("ownerReferences", []):
        if reference.get("controller"):
            found: Mapping[str, Any] = reference
            return found
    return {}


def _conflict(kind: str, metadata: Mapping[str, Any], owner: Mapping[str, Any]) -> str:
    name = metadata["name"]
    if not owner:
        return f"{kind} {name} exists and belongs to nobody: delete it, or rename the {KIND}"
    whose = f"{owner.get('kind')} {owner.get('name')}"
    if owner.get("kind") == KIND:
        return f"{kind} {name} still belongs to a former {whose} (uid {owner.get('uid')}), whose deletion is under way"
    return f"{kind} {name} belongs to {whose}: delete it, or rename the {KIND}"


def _backends(metadata: Mapping[str, Any]) -> tuple[int, int] | None:
    prefill, slash, decode = (metadata.get("annotations") or {}).get(ANNOTATION_BACKENDS, "").partition("/")
    numbers = all(len(number) <= 9 and number.isdecimal() for number in (prefill, decode))
    return (int(prefill), int(decode)) if slash and numbers else None


def _pod(pod: Mapping[str, Any], role: Role, workload: str, lost_nodes: Collection[str], now: float) -> PodObserved:
    meta, status = pod["metadata"], pod.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    scheduled, readiness = conditions.get("PodScheduled", {}), conditions.get("Ready", {})
    unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    waiting, message = _trouble(status)
    ours = (router.PROXY, router.ROUTER) if role == "router" else (engine.CONTAINER,)
    images = tuple(
        c["imageID"]
        for c in sorted(status.get("containerStatuses", []), key=lambda c: str(c["name"]))
        if c["name"] in ours and c.get("imageID")
    )
    name = meta["name"]
    head, _, suffix = name.rpartition("-")
    return PodObserved(
        name=name,
        uid=meta.get("uid", ""),
        ready=readiness.get("status") == "True",
        ready_since=_unix(readiness.get("lastTransitionTime")),
        terminating=bool(meta.get("deletionTimestamp")),
        # A Pod with our labels and another name was made by hand; routers don't know it.
        ordinal=int(suffix) if role != "router" and head == workload and suffix.isdigit() else None,
        ip=status.get("podIP", ""),
        image_ids=images,
        backends=_backends(meta),
        waiting=waiting,
        message=scheduled.get("message", "") if unschedulable else message,
        unschedulable=unschedulable,
        lost=pod.get("spec", {}).get("nodeName") in lost_nodes and _grace_is_over(meta, now),
    )


def _grace_is_over(metadata: Mapping[str, Any], now: float) -> bool:
    """A deletionTimestamp is the moment at which the grace period ends."""
    stamp = metadata.get("deletionTimestamp")
    return stamp is not None and _unix(stamp) <= now


def _unix(stamp: str | None) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def _trouble(status: Mapping[str, Any]) -> tuple[str, str]:
    """Why a container waits, and the kubelet's sentence; ("", "") where none is in trouble.

    Between two crashes a container runs for a while; it is still crash-looping then.
    """
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        name, state = container["name"], container.get("state", {})
        waiting = state.get("waiting", {})
        reason = waiting.get("reason", "")
        if not reason and container.get("restartCount", 0) >= _RESTARTS and not container.get("ready"):
            reason = "CrashLoopBackOff"
        if not reason or reason in _STARTING:
            continue
        parts = [f"container {name}: {waiting.get('message', '') or reason}"]
        last = container.get("lastState", {}).get("terminated", {})
        if last:
            end = f"last exit code {last.get('exitCode')} ({last.get('reason', 'unknown')})"
            parts.append(f"{end}, {container.get('restartCount', 0)} restarts")
        return reason, "; ".join(parts)
    return "", ""


_UNANSWERED: Final = "has not answered"


def _route(resource: SpecDecodeDeployment, item: Mapping[str, Any]) -> RouteObserved:
    prefix = f"{resource.metadata.name}-"
    weights: dict[int, int] = {}
    for rule in item["spec"].get("rules", []):
        for backend in rule.get("backendRefs", []):
            number = backend["name"].removeprefix(prefix)
            if backend["name"].startswith(prefix) and number.isdigit():
                weights[int(number)] = backend.get("weight", 1)
    problems = [_parent_problem(item, parent) for parent in item["spec"].get("parentRefs", [])]
    wrong = [problem for problem in problems if problem]
    return RouteObserved(
        exists=True,
        weights=weights,
        accepted=bool(problems) and not wrong,
        refused=any(_UNANSWERED not in problem for problem in wrong),
        message="; ".join(wrong),
        gateway=httproute.gateway_of(item),
    )


def _parent_problem(item: Mapping[str, Any], parent: Mapping[str, Any]) -> str:
    """Why a parent doesn't serve this generation of the route yet; empty where it does."""
    shown = f"Gateway {parent.get('namespace', item['metadata'].get('namespace'))}/{parent['name']}"
    identity = ("name", "namespace", "sectionName", "port")
    default = {"namespace": item["metadata"].get("namespace")}

    def same(other: Mapping[str, Any]) -> bool:
        return all(other.get(k, default.get(k)) == parent.get(k, default.get(k)) for k in identity)

    said = [s for s in item.get("status", {}).get("parents", []) if same(s.get("parentRef", {}))]
    if not said:
        return f"{shown} {_UNANSWERED}"
    problems = []
    for status in said:
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        for kind in ("Accepted", "ResolvedRefs"):
            condition = conditions.get(kind, {})
            if condition.get("observedGeneration", 0) < item["metadata"].get("generation", 0):
                problems.append(f"{shown} {_UNANSWERED} to this generation")
            elif condition.get("status") != "True":
                problems.append(f"{shown}: {kind} is {condition.get('status')}: {condition.get('message', '')}")
    return problems[0] if problems else ""
