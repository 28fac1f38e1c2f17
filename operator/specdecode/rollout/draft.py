"""A plan in the making: what the planner knows and has decided so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from specdecode.api import timestamp
from specdecode.api.names import EngineRole
from specdecode.api.rollout import StepSpec
from specdecode.api.status import RejectedRevision, RolloutStatus

from . import reasons, requests
from .arms import Arm
from .capacity import Capacity, Entry, capacity_of
from .types import ArmObserved, ArmTarget, EventNote, RevisionRecord, Snapshot


class Word(NamedTuple):
    """A reason constant and its sentence."""

    reason: str
    message: str


@dataclass(slots=True)
class Draft:
    """A plan in the making."""

    snap: Snapshot
    stable: int | None
    canary: int | None
    rollout: RolloutStatus
    rejected: list[RejectedRevision]
    served: bool
    asked: requests.Requests
    desired: int | None = None
    """Revision of today's spec; None while it isn't recorded."""
    faults: list[str] = field(default_factory=list)
    events: list[EventNote] = field(default_factory=list)
    create: RevisionRecord | None = None
    targets: list[ArmTarget] = field(default_factory=list)
    remove: list[int] = field(default_factory=list)
    weights: dict[int, int] | None = None
    weight_asked: int = 0
    weight_reached: int = 0
    promoted: bool = False
    decided: bool = False
    """A decision was taken that must be written down before it is acted on."""
    due: list[float] = field(default_factory=list)
    """Unix times at which something may change by itself."""
    stalled: Word | None = None
    doing: Word = field(default_factory=lambda: Word(reasons.UP_TO_DATE, ""))

    @property
    def now(self) -> float:
        return self.snap.now

    @property
    def timestamp(self) -> str:
        return timestamp(self.snap.now)

    @property
    def steps(self) -> list[StepSpec]:
        """Steps of today's policy. Immediate is one step to everything."""
        policy = self.snap.resource.spec.rollout
        return [StepSpec(weight=100)] if policy.strategy == "Immediate" else policy.steps

    @property
    def judged(self) -> bool:
        return self.snap.resource.spec.rollout.strategy == "Canary"

    @property
    def entry(self) -> Entry:
        spec, status = self.snap.resource.spec, self.snap.resource.status
        gateway = spec.traffic.gateway is not None
        if self.canary is not None and status.canary is not None and status.split:
            # A canary keeps the kind of entry that it began with: at a switch its weight would jump by itself.
            # A route that was deleted takes nothing to an end any more.
            gateway = status.split == "Request" and (gateway or self.snap.route.gateway is not None)
        return Entry(spec.topology.router.replicas, gateway)

    def record(self, number: int) -> RevisionRecord | None:
        return next((r for r in self.snap.records if r.number == number), None)

    def arm(self, number: int) -> Arm:
        """A revision as it is seen, with the roles that it was born with."""
        observed = self.snap.arms.get(number, ArmObserved(number))
        record = self.record(number)
        topology = record.spec.topology if record else self.snap.resource.spec.topology
        today = self.snap.resource.spec.topology.roles
        whole = {
            role: today.get(role, of).max_replicas or 1
            for role, of in topology.roles.items()
            if today.get(role, of).autoscaled
        }
        return Arm(observed, tuple(topology.roles), whole)

    def capacities(self) -> dict[EngineRole, Capacity]:
        """Bounds of every role that a living revision has. Numbers are today's; a role that today's spec has not is
        held at the number that it was born with."""
        spec = self.snap.resource.spec
        found: dict[EngineRole, Capacity] = {}
        for number in (self.canary, self.stable):
            record = self.record(number) if number else None
            for role, born in (record.spec if record else spec).topology.roles.items():
                of = spec.topology.roles.get(role, born)
                replicas = of.replicas
                if replicas is None:
                    held = self.snap.arms.get(self.stable or 0, ArmObserved(0)).role(role)
                    replicas = max(held.replicas, 1)
                found.setdefault(role, capacity_of(spec, role, replicas, autoscaled=of.autoscaled))
        return found

    def at(self, when: float) -> None:
        if when > self.now:
            self.due.append(when)
