"""A cluster in miniature: it obeys a planner's targets as Kubernetes would, one tick at a time.

StatefulSets fill ordinals from below and take them from above; a router Deployment rolls its Pods when its list
changes, within its surge; a terminating Pod holds its place until it has drained. Every write is checked against the
invariants of the design before it takes effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from specdecode.acceptance.types import ArmEvidence, Evidence, Reason, Verdict, VerdictKind
from specdecode.api import SpecDecodeDeployment
from specdecode.api.faults import Fault
from specdecode.api.names import EngineRole
from specdecode.api.topology import GatewaySpec
from specdecode.engine.report import TuningReport
from specdecode.rollout.planner import plan
from specdecode.rollout.types import (
    ArmObserved,
    ArmTarget,
    Plan,
    PodObserved,
    RevisionRecord,
    RoleObserved,
    RouteObserved,
    Snapshot,
)

T0 = 1_800_000_000.0
GATEWAY = GatewaySpec.model_validate({"parentRefs": [{"name": "g"}]})

Answer = Callable[[int, int], Verdict | None]
"""What the analysis says, by revision and by step whose weight is reached (0 before the first)."""


def resource(**changes: Any) -> SpecDecodeDeployment:
    """A resource with the worked example's numbers; keyword paths use ``__`` for a dot."""
    raw: dict[str, Any] = {
        "apiVersion": "specdecode.dev/v1alpha1",
        "kind": "SpecDecodeDeployment",
        "metadata": {"name": "demo", "namespace": "default", "uid": "u1", "generation": 1},
        "spec": {
            "model": {"name": "m"},
            "speculation": {"depth": 3},
            "engine": {"image": "specdecode/vllm:0.33.0"},
            "topology": {
                "prefill": {"replicas": 2},
                "decode": {"replicas": 4},
                "router": {"replicas": 2},
            },
            "rollout": {
                "capacity": {
                    "prefill": {"maxSurge": 1, "maxUnavailable": 0},
                    "decode": {"maxSurge": 1, "maxUnavailable": 0},
                },
                "steps": [{"weight": 10}, {"weight": 50}, {"weight": 100}],
            },
        },
    }
    for path, value in changes.items():
        at = raw["spec"]
        *heads, last = path.split("__")
        for head in heads:
            at = at.setdefault(head, {})
        if value is None:
            at.pop(last, None)
        else:
            at[last] = value
    return SpecDecodeDeployment.parse(raw)


def verdict(kind: VerdictKind, reason: Reason = Reason.ACCEPTANCE_HELD, *, by_errors: bool = False) -> Verdict:
    """A verdict with nothing but its kind."""
    none = ArmEvidence(0, 0, 0, 0)
    return Verdict(kind, reason, f"{kind}", by_errors, None, None, 0.05, Evidence(none, none))


def always(kind: VerdictKind, reason: Reason = Reason.ACCEPTANCE_HELD) -> Answer:
    """The same verdict at every look."""
    return lambda _, __: verdict(kind, reason)


@dataclass
class SimPod:
    """A simulated Pod."""

    name: str
    ordinal: int | None
    born: int
    backends: tuple[int, int] | None = None
    broken: str = ""
    dying_since: int | None = None
    down: bool = False


@dataclass
class Workload:
    """A StatefulSet or a router Deployment."""

    replicas: int = 0
    pods: list[SimPod] = field(default_factory=list)
    backends: tuple[int, int] | None = None
    surge: bool = True
    exists: bool = True
    missing: bool = False
    """It isn't seen, though its Pods are: its label was taken off, or it was deleted without them."""


@dataclass
class World:
    """One resource and its objects."""

    resource: SpecDecodeDeployment
    start_delay: int = 2
    drain: int = 2
    room: int | None = None
    """Pods that fit into the cluster; None for any number."""
    broken: Callable[[int], str] = lambda _: ""
    answer: Answer = lambda _, __: verdict(VerdictKind.PASS)
    tunings: Callable[[int], TuningReport] = lambda revision: TuningReport(revision, complete=True)
    faults: tuple[Fault, ...] = ()
    t: int = 0
    tick_seconds: float = 10.0
    records: list[RevisionRecord] = field(default_factory=list)
    arms: dict[int, dict[str, Workload]] = field(default_factory=dict)
    route: dict[int, int] = field(default_factory=dict)
    log: list[Plan] = field(default_factory=list)
    checks: list[Callable[[World, Plan], None]] = field(default_factory=list)
    made: int = 0

    # What is seen.

    def pod(self, pod: SimPod) -> PodObserved:
        ready = not pod.broken and not pod.down and self.t - pod.born >= self.start_delay and pod.dying_since is None
        return PodObserved(
            name=pod.name,
            uid=pod.name,
            ready=ready,
            ready_since=T0 + (pod.born + self.start_delay) * self.tick_seconds,
            terminating=pod.dying_since is not None,
            ordinal=pod.ordinal,
            backends=pod.backends,
            waiting=pod.broken if pod.broken != "Unschedulable" else "",
            unschedulable=pod.broken == "Unschedulable",
            message="0/1 nodes are available: 1 Insufficient nvidia.com/gpu." if pod.broken == "Unschedulable" else "",
        )

    def role(self, work: Workload | None) -> RoleObserved:
        """What there is, seen or not."""
        if work is None:
            return RoleObserved()
        pods = tuple(self.pod(p) for p in work.pods)
        return RoleObserved(exists=work.exists, replicas=work.replicas, pods=pods, backends=work.backends)

    def observed(self) -> dict[int, ArmObserved]:
        return {
            n: ArmObserved(n, self.role(w.get("prefill")), self.role(w.get("decode")), self.role(w.get("router")))
            for n, w in self.arms.items()
        }

    def seen(self) -> dict[int, ArmObserved]:
        arms = self.observed()
        for number, arm in self.arms.items():
            for role, work in arm.items():
                if work.missing:
                    seen: dict[str, Any] = {role: RoleObserved(pods=self.role(work).pods)}
                    arms[number] = replace(arms[number], **seen)
        return arms

    def snapshot(self) -> Snapshot:
        status = self.resource.status
        canary, step = (status.canary.revision if status.canary else 0), status.rollout.step
        begun = status.rollout.step_started_at is not None
        return Snapshot(
            resource=self.resource,
            now=T0 + self.t * self.tick_seconds,
            records=tuple(self.records),
            arms=self.seen(),
            route=self.observed_route(),
            verdict=self.answer(canary, step if begun else 0) if canary else None,
            verdict_of=(canary, step if begun else 0),
            tunings={n: self.tunings(n) for n in self.arms},
            faults=self.faults,
        )

    def observed_route(self) -> RouteObserved:
        if not self.route:
            return RouteObserved()
        return RouteObserved(exists=True, weights=dict(self.route), accepted=True, gateway=GATEWAY)

    # What is done.

    def edit(self, changed: SpecDecodeDeployment) -> None:
        """Another spec; annotations stay, as they do on an API server."""
        before = self.resource.metadata
        kept = {"generation": before.generation + 1, "annotations": before.annotations}
        self.resource = changed.model_copy(
            update={
                "metadata": changed.metadata.model_copy(update=kept),
                "status": self.resource.status,
            }
        )

    def annotate(self, key: str, value: str | None) -> None:
        """Set an annotation, or take it off."""
        meta = self.resource.metadata
        annotations = {k: v for k, v in meta.annotations.items() if k != key} | ({} if value is None else {key: value})
        self.resource = self.resource.model_copy(
            update={"metadata": meta.model_copy(update={"annotations": annotations})}
        )

    def step(self) -> Plan:
        """Plan, check, apply, and let one tick of time pass."""
        made = plan(self.snapshot())
        for check in self.checks:
            check(self, made)
        self.apply(made)
        self.log.append(made)
        self.tick()
        return made

    def apply(self, made: Plan) -> None:
        self.resource = self.resource.model_copy(update={"status": made.status})
        if made.create is not None:
            self.records.append(made.create)
            return
        for target in made.arms:
            self.put(target)
        for number in made.remove:
            for work in self.arms.get(number, {}).values():
                work.replicas, work.exists = 0, False
        for number in made.forget:
            self.records = [r for r in self.records if r.number != number]
        if made.weights is not None:
            self.route = dict(made.weights)
        self.control()

    def put(self, target: ArmTarget) -> None:
        arm = self.arms.setdefault(target.revision, {})
        for role, number in (("prefill", target.prefill), ("decode", target.decode)):
            if number == 0 and role not in arm:
                continue
            work = arm.setdefault(role, Workload(replicas=1))
            if number is not None:
                work.replicas = number
            elif work.missing:
                work.replicas = 1
            work.exists, work.missing = True, False
        router = arm.setdefault("router", Workload())
        router.exists, router.missing = True, False
        router.replicas, router.backends, router.surge = target.router, target.backends, target.router_surge

    def control(self) -> None:
        """The StatefulSet and Deployment controllers, at once."""
        for number, arm in self.arms.items():
            for role, work in arm.items():
                if role == "router":
                    self.roll(number, work)
                    continue
                for pod in work.pods:
                    if (pod.ordinal or 0) >= work.replicas and pod.dying_since is None:
                        pod.dying_since = self.t
                taken = {p.ordinal for p in work.pods}
                for ordinal in range(work.replicas):
                    if ordinal not in taken:
                        work.pods.append(self.born(number, f"{number}-{role}-{ordinal}", ordinal))

    def born(self, number: int, name: str, ordinal: int | None, backends: tuple[int, int] | None = None) -> SimPod:
        self.made += 1
        broken = self.broken(number) if ordinal is not None else ""
        alive = sum(p.broken != "Unschedulable" for a in self.arms.values() for w in a.values() for p in w.pods)
        if self.room is not None and ordinal is not None and alive >= self.room:
            broken = "Unschedulable"
        return SimPod(f"{name}.{self.made}", ordinal, self.t, backends, broken)

    def roll(self, number: int, work: Workload) -> None:
        alive = [p for p in work.pods if p.dying_since is None]
        new = [p for p in alive if p.backends == work.backends]
        old = [p for p in alive if p.backends != work.backends]
        surge, unavailable = (1, 0) if work.surge else (0, 1)
        excess = len(alive) - work.replicas - (surge if old and new and work.replicas else 0)
        while excess > 0 and (old or new):
            doomed = old.pop() if old else new.pop()
            doomed.dying_since = self.t
            excess -= 1
        while old and work.replicas:
            ready = [p for p in (*new, *old) if self.pod(p).ready]
            unready = [p for p in old if not self.pod(p).ready]
            if unready:
                unready[0].dying_since = self.t
                old.remove(unready[0])
            elif len(ready) > work.replicas - unavailable:
                old.pop().dying_since = self.t
            else:
                break
        while len(new) < work.replicas and len(new) + len(old) < work.replicas + surge:
            pod = self.born(number, f"{number}-router", None, work.backends)
            work.pods.append(pod)
            new.append(pod)

    def tick(self) -> None:
        # Controllers act on what they last saw, so a Pod that replaces another is seen beside it for a while.
        self.control()
        self.t += 1
        for arm in self.arms.values():
            for work in arm.values():
                work.pods = [p for p in work.pods if p.dying_since is None or self.t - p.dying_since < self.drain]
        for number in [n for n, a in self.arms.items() if not any(w.exists or w.pods for w in a.values())]:
            del self.arms[number]

    def run(self, until: Callable[[World], bool], limit: int = 400) -> World:
        """Step until a condition holds.

        Raises:
            AssertionError: it doesn't within ``limit`` ticks.
        """
        for _ in range(limit):
            self.step()
            if until(self):
                return self
        status = self.resource.status
        raise AssertionError(f"not within {limit} ticks: {status.model_dump(exclude_defaults=True)} {self.row()}")

    # What is asserted on.

    def row(self) -> str:
        """Ready Pods as the design's table writes them: ``2/4/9 1/1/1``, revisions in order."""
        return " ".join(
            f"{a.prefill.ready}/{a.decode.ready}/{a.router.ready}" for _, a in sorted(self.observed().items())
        )

    def asked(self) -> str:
        """Pods asked for, likewise."""
        return " ".join(
            "/".join(str(w[r].replicas) if r in w else "0" for r in ("prefill", "decode", "router"))
            for _, w in sorted(self.arms.items())
        )


def serving(world: World) -> bool:
    """Whether today's spec serves and nothing moves."""
    conditions = {c.type: c.status for c in world.resource.status.conditions}
    return conditions.get("Ready") == "True"


def started(**changes: Any) -> World:
    """A world whose first revision serves."""
    return World(resource(**changes)).run(serving)


def held(observed: ArmObserved, role: EngineRole) -> int:
    """Pods that count against the most."""
    of = observed.role(role)
    return max(of.replicas, of.total)


def carried(
    observed: ArmObserved,
    replicas: Mapping[EngineRole, int],
    roles: Iterable[EngineRole],
    enough: Mapping[EngineRole, int] | None = None,
) -> Fraction:
    """The share that an arm's ready Pods carry, by the design's words; ``enough`` of a role carry everything."""
    least = Fraction(1)
    for role in roles:
        ready = observed.role(role).ready
        if ready == 0:
            return Fraction(0)
        if enough is None or ready < enough.get(role, ready + 1):
            least = min(least, Fraction(ready, replicas[role]))
    return least


def need(share: Fraction, replicas: int) -> int:
    """Pods that a share needs."""
    return math.ceil(share * replicas)


def without(pods: tuple[PodObserved, ...], size: int) -> tuple[PodObserved, ...]:
    """The Pods that a StatefulSet keeps at a size."""
    return tuple(replace(p) for p in pods if (p.ordinal or 0) < size)
