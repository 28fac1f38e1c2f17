"""What the planner sees and what it says. Plain data, no behaviour beyond counting.

The planner is a function from a `Snapshot` to a `Plan`. A snapshot holds everything a decision may rest on,
the time included; a plan says what should be, never how to write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specdecode.acceptance.types import Suspicion, Verdict
from specdecode.api import SpecDecodeDeployment, SpecDecodeDeploymentSpec, SpecDecodeDeploymentStatus
from specdecode.api.faults import Fault
from specdecode.api.names import Role
from specdecode.api.topology import GatewaySpec
from specdecode.engine.report import TuningReport


@dataclass(frozen=True, slots=True)
class PodObserved:
    """A Pod of a revision."""

    name: str
    uid: str
    ready: bool = False
    ready_since: float = 0.0
    """Unix time at which it became ready or ceased to be; 0 where that isn't said."""
    terminating: bool = False
    ordinal: int | None = None
    ip: str = ""
    image_ids: tuple[str, ...] = ()
    backends: tuple[int, int] | None = None
    """Of a router: how many prefill and decode ordinals it was started with."""
    waiting: str = ""
    """Why a container waits, such as CrashLoopBackOff or ImagePullBackOff."""
    message: str = ""
    """The kubelet's, or the scheduler's, own sentence about it."""
    unschedulable: bool = False
    lost: bool = False
    """Terminating on a node that is gone: nobody will ever confirm its end."""


@dataclass(frozen=True, slots=True)
class RoleObserved:
    """A role's workload and its Pods."""

    exists: bool = False
    replicas: int = 0
    """Pods that the workload is asked for. To the planner also where it is missing while its Pods serve: what they
    tell (`belief`)."""
    pods: tuple[PodObserved, ...] = ()
    backends: tuple[int, int] | None = None
    """Of the router's Deployment: the list that its template asks for."""

    @property
    def ready(self) -> int:
        """Pods that are ready and not on their way out."""
        return sum(p.ready and not p.terminating for p in self.pods)

    @property
    def total(self) -> int:
        """All Pods, terminating ones counted."""
        return len(self.pods)

    @property
    def terminating(self) -> int:
        """Pods on their way out."""
        return sum(p.terminating for p in self.pods)


ABSENT = RoleObserved()


@dataclass(frozen=True, slots=True)
class ArmObserved:
    """One revision's workloads. ``prefill`` is absent in aggregated serving."""

    revision: int
    prefill: RoleObserved = ABSENT
    decode: RoleObserved = ABSENT
    router: RoleObserved = ABSENT

    def role(self, role: Role) -> RoleObserved:
        """The workload of a role."""
        return {"prefill": self.prefill, "decode": self.decode, "router": self.router}[role]

    @property
    def gone(self) -> bool:
        """Whether nothing of it is left."""
        return not any(r.exists or r.pods for r in (self.prefill, self.decode, self.router))


@dataclass(frozen=True, slots=True)
class RevisionRecord:
    """A recorded revision: the spec it was born from and its rendering, both frozen."""

    number: int
    spec: SpecDecodeDeploymentSpec
    rendering: Mapping[str, Any]
    spec_raw: Mapping[str, Any] = field(default_factory=dict)
    """The spec as it was written down, before today's defaults."""


@dataclass(frozen=True, slots=True)
class RouteObserved:
    """The HTTPRoute, where traffic has a gateway."""

    exists: bool = False
    weights: Mapping[int, int] = field(default_factory=dict)
    """Weight by revision."""
    accepted: bool = False
    """Every parent has accepted this generation of it and resolved its references."""
    refused: bool = False
    """A parent has answered to this generation, and not with yes."""
    message: str = ""
    gateway: GatewaySpec | None = None
    """What it attaches to and matches, as it stands; None where that can't be read."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a decision rests on."""

    resource: SpecDecodeDeployment
    now: float
    """Unix time in seconds."""
    records: tuple[RevisionRecord, ...] = ()
    arms: Mapping[int, ArmObserved] = field(default_factory=dict)
    route: RouteObserved = RouteObserved()
    verdict: Verdict | None = None
    """The last look at the running canary's evidence; absent before the first."""
    verdict_of: tuple[int, int] = (0, 0)
    """Revision and step that the verdict is about. A Pass of another step is no Pass of this one."""
    tunings: Mapping[int, TuningReport] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    """What today's spec has wrong, found by the engine's checks."""
    mutable_inputs: tuple[str, ...] = ()
    """What may change under a running revision: a tag, a branch, a volume."""
    conflicts: tuple[str, ...] = ()
    """Objects of ours that exist under another owner."""
    write_errors: tuple[str, ...] = ()
    """Writes that were refused since the last plan, each a sentence."""
    acceptance: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """By revision: the summary of its acceptance, for status."""
    guard: Suspicion | None = None
    """The guard's last word on the serving revision."""
    rendering: Mapping[str, Any] = field(default_factory=dict)
    """Today's spec rendered by today's operator: what a new revision would be born with."""


@dataclass(frozen=True, slots=True)
class ArmTarget:
    """What one revision's workloads should be. None leaves a number as it is (an autoscaler's)."""

    revision: int
    prefill: int | None
    decode: int | None
    router: int
    backends: tuple[int, int]
    """Prefill and decode ordinals that routers are started with."""
    router_surge: bool
    """Whether a new router may come up before an old one goes. Not while that would give the canary more
    than its weight."""


@dataclass(frozen=True, slots=True)
class EventNote:
    """An Event to record on the resource."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class AnalysisTarget:
    """What the analysis should be looking at."""

    canary: int
    stable: int | None
    started_at: float
    """When the canary began: with its number, the identity of the analysis."""
    step: int
    """Step, counted from 1, whose evidence counts."""
    steps: int
    weight: int
    """Weight reached, in percent."""
    began_at: float
    """When this step's weight was reached."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What should be, and why."""

    status: SpecDecodeDeploymentStatus
    create: RevisionRecord | None = None
    """A revision to record before anything else; the rest of the plan waits for it."""
    arms: tuple[ArmTarget, ...] = ()
    remove: tuple[int, ...] = ()
    """Revisions whose workloads go, their records kept."""
    forget: tuple[int, ...] = ()
    """Records that the history limit drops."""
    weights: Mapping[int, int] | None = None
    """Weights of the HTTPRoute by revision; None without a gateway."""
    gateway: GatewaySpec | None = None
    """What the HTTPRoute attaches to: the spec's, or, until a canary that began with a gateway has ended, the one that
    it has."""
    analysis: AnalysisTarget | None = None
    events: tuple[EventNote, ...] = ()
    status_first: bool = False
    """The status holds a decision that must outlive a crash before anything is done about it."""
    force_delete: tuple[PodObserved, ...] = ()
    """Our Pods stuck on a node that is gone: these very ones, not what has their names by now."""
    requeue_after: float | None = None
    """Seconds after which something is due even if nothing happens."""
    reason: str = ""
    """Constant of what this plan does or waits for."""
    message: str = ""
