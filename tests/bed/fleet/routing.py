"""Who serves whom now, as the objects say: a pure view of Pods, Services and HTTPRoutes.

A request reaches a router Pod that is Ready, not terminating and matched by the entry Service's selector; where an
HTTPRoute has weighted backends of per-revision Services, these weights decide instead. Behind a router stand the
ready decode Pods of its own revision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from specdecode.api.names import (
    ENGINE_PORT,
    LABEL_DEPLOYMENT,
    LABEL_REVISION,
    LABEL_ROLE,
    PROXY_METRICS_PORT,
)
from tests.bed.api import Json
from tests.bed.fleet.scenario import Subject, depth_of, flags

Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True)
class Pod:
    """What the fleet knows of a Pod.

    Attributes:
        uid: of the object, which names the Pod in the simulation.
        deployment: namespace and name of the resource that it belongs to.
        address: its own, "" while it has none.
        started: whether its process listens: it was Ready once in the life of this container.
        ready: Ready and not terminating.
    """

    uid: str
    name: str
    deployment: Key
    revision: int
    role: str
    address: str
    started: bool
    ready: bool
    labels: Mapping[str, str]
    subject: Subject
    model: str

    @property
    def port(self) -> int:
        return PROXY_METRICS_PORT if self.role == "router" else ENGINE_PORT


def pod_of(obj: Json) -> Pod | None:
    """A Pod of a deployment, or None for any other."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status", {})
    found: Mapping[str, str] = meta.get("labels") or {}
    revision = found.get(LABEL_REVISION, "")
    if LABEL_DEPLOYMENT not in found or not revision.isdigit() or LABEL_ROLE not in found:
        return None
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or []}
    containers = status.get("containerStatuses") or []
    engine = next((c for c in spec["containers"] if c["name"] == "vllm"), spec["containers"][0])
    arguments = flags([*(engine.get("command") or []), *(engine.get("args") or [])])
    subject = Subject(
        deployment=found[LABEL_DEPLOYMENT],
        namespace=meta["namespace"],
        revision=int(revision),
        depth=depth_of(arguments),
        image=engine.get("image", ""),
        args=arguments,
        env={entry["name"]: entry.get("value", "") for entry in engine.get("env") or []},
    )
    return Pod(
        uid=meta["uid"],
        name=meta["name"],
        deployment=(meta["namespace"], found[LABEL_DEPLOYMENT]),
        revision=int(revision),
        role=found[LABEL_ROLE],
        address=status.get("podIP", ""),
        started=bool(containers) and all(container.get("started") for container in containers),
        ready=conditions.get("Ready") == "True" and "deletionTimestamp" not in meta,
        labels=found,
        subject=subject,
        model=arguments.get("--served-model-name") or arguments.get("--model") or "model",
    )


@dataclass
class Route:
    """The arms of one deployment.

    Attributes:
        routers: uids of the router Pods that take new requests, by revision.
        decodes: uids of the ready decode Pods, by revision.
        prefills: revisions that have prefill Pods, ready or not.
        weights: share of new requests of each revision; empty where nothing serves.
    """

    routers: dict[int, list[str]] = field(default_factory=dict)
    decodes: dict[int, list[str]] = field(default_factory=dict)
    prefills: set[int] = field(default_factory=set)
    weights: dict[int, float] = field(default_factory=dict)


def selects(selector: Mapping[str, str] | None, labels: Mapping[str, str]) -> bool:
    """Whether a Service with this selector means Pods with these labels; without a selector it means none."""
    return bool(selector) and all(labels.get(name) == value for name, value in (selector or {}).items())


def routes(
    pods: Iterable[Pod], services: Mapping[Key, Json], http_routes: Mapping[Key, Json], idle: Iterable[tuple[Key, int]]
) -> dict[Key, Route]:
    """The view of every deployment that has Pods or an entry Service.

    Args:
        pods: all Pods of deployments.
        services: Service objects by namespace and name.
        http_routes: HTTPRoute objects, likewise.
        idle: revisions of deployments that no request comes to, whatever their weight.
    """
    found: dict[Key, Route] = {}
    avoided = set(idle)
    for pod in sorted(pods, key=lambda pod: pod.name):
        route = found.setdefault(pod.deployment, Route())
        if pod.role == "prefill":
            route.prefills.add(pod.revision)
        elif pod.role == "decode" and pod.ready:
            route.decodes.setdefault(pod.revision, []).append(pod.uid)
        elif pod.role == "router" and pod.ready:
            entry = services.get(pod.deployment)
            by_gateway = _backends(pod.deployment, http_routes)
            means = (
                (services.get((pod.deployment[0], f"{pod.deployment[1]}-{pod.revision}")) if by_gateway else entry)
                or {}
            )  # fmt: skip
            if selects(means.get("spec", {}).get("selector"), pod.labels):
                route.routers.setdefault(pod.revision, []).append(pod.uid)
    for key, route in found.items():
        route.weights = _weights(route, _backends(key, http_routes), {at for of, at in avoided if of == key})
    return found


def _backends(deployment: Key, http_routes: Mapping[Key, Json]) -> dict[int, float]:
    """Weights of an HTTPRoute that names per-revision Services of this deployment; empty without one."""
    namespace, name = deployment
    found: dict[int, float] = {}
    for (where, _), obj in http_routes.items():
        if where != namespace:
            continue
        for rule in obj["spec"].get("rules") or []:
            for backend in rule.get("backendRefs") or []:
                revision = backend["name"].removeprefix(f"{name}-")
                if backend["name"] != revision and revision.isdigit():
                    found[int(revision)] = float(backend.get("weight", 1))
    return found


def _weights(route: Route, backends: Mapping[int, float], avoided: set[int]) -> dict[int, float]:
    raw = {
        revision: (backends.get(revision, 0.0) if backends else float(len(routers)))
        for revision, routers in route.routers.items()
        if routers and revision not in avoided
    }
    total = sum(raw.values())
    return {revision: weight / total for revision, weight in raw.items()} if total > 0 else {}
