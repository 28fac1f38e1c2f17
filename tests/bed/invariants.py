"""Judges every write of the operator by invariants 1 and 2, with the objects as they were at that moment.

All objects live in one store, whose resource versions order every change of every kind. So the state in which a write
was made is exactly what the changes below its own resource version add up to, whatever the clocks say.

Invariant 1, at each write (`R` a role's replicas, both revisions counted):

- the role's ready Pods that the write leaves don't fall below R - maxUnavailable, nor below what they were;
- its Pods that the write leads to, terminating ones counted, don't rise above R + maxSurge, nor above what they were;
- the canary's weight doesn't rise above what it carries: the least, over the roles, of its ready Pods over R; 0
  without a ready Pod of each role, and 0 once it has failed by errors;
- stable isn't shrunk below what its weight needs, less maxUnavailable.

The operator sees the world a moment late, and what a failing Pod or an edit takes away is no breach: a write is one
only if it would have been one in every state that Pods and resources were in during the `LAG` before it.

Invariant 2: no selector, backend, argument, environment variable or configuration joins two revisions; only the entry
Service (router Pods alone) and an HTTPRoute may reach the routers of two.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from specdecode.api.names import LABEL_DEPLOYMENT, LABEL_REVISION, LABEL_ROLE
from tests.bed.api import PLURALS, Json
from tests.bed.audit import Request

LAG: Final = 1.0
"""Seconds by which the operator may see Pods and resources late."""
_ROLES: Final = ("prefill", "decode")
_KIND_OF: Final = {plural: kind for kind, (_, plural) in PLURALS.items()}
_SEEN_LATE: Final = ("Pod", "SpecDecodeDeployment")
_EPSILON: Final = 1e-9

Name = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass(frozen=True)
class Recorded:
    """One change of an object: when it was seen (Unix seconds), how, and the object (on DELETED its last state)."""

    at: float
    type: str
    kind: str
    obj: Json

    @property
    def version(self) -> int:
        return int(self.obj["metadata"]["resourceVersion"])

    @property
    def name(self) -> Name:
        return self.kind, self.obj["metadata"].get("namespace", ""), self.obj["metadata"]["name"]


@dataclass(frozen=True)
class Breach:
    """A write that broke an invariant.

    Attributes:
        at: Unix seconds of the write.
        invariant: 1 or 2.
        write: what was written, such as "patch StatefulSet team/llm-2-decode".
        what: what it broke, with the numbers.
    """

    at: float
    invariant: int
    write: str
    what: str


@dataclass
class State:
    """All objects at one moment."""

    objects: dict[Name, Json] = field(default_factory=dict)

    def put(self, name: Name, obj: Json | None) -> State:
        """This state with one object set, or gone."""
        found = dict(self.objects)
        if obj is None:
            found.pop(name, None)
        else:
            found[name] = obj
        return State(found)

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        return self.objects.get((kind, namespace, name))

    def of(self, kind: str, namespace: str, deployment: str) -> Iterator[Json]:
        """Objects of a kind that carry this deployment's label."""
        for (found, where, _), obj in self.objects.items():
            if found == kind and where == namespace and _labels(obj).get(LABEL_DEPLOYMENT) == deployment:
                yield obj


def judge(changes: Sequence[Recorded], writes: Sequence[Request]) -> list[Breach]:
    """The breaches among these writes.

    Args:
        changes: of all objects that matter, since before the first write; in any order.
        writes: accepted requests of the operator, with their bodies.
    """
    ordered = sorted(changes, key=lambda change: change.version)
    state, recent = State(), deque[tuple[float, Name, Json | None]]()
    breaches: list[Breach] = []
    at = 0
    for version, write in sorted(_placed(ordered, writes), key=lambda found: found[0]):
        while at < len(ordered) and ordered[at].version < version:
            change = ordered[at]
            recent.append((change.at, change.name, state.objects.get(change.name)))
            if change.type == "DELETED":
                state.objects.pop(change.name, None)
            else:
                state.objects[change.name] = change.obj
            at += 1
        while recent and recent[0][0] < write.at - LAG:
            recent.popleft()
        breaches += _judge_write(state, list(recent), write)
    return breaches


def _placed(changes: Sequence[Recorded], writes: Sequence[Request]) -> Iterator[tuple[int, Request]]:
    """Each write with the resource version that it made; those that made none are left out."""
    for write in writes:
        kind = _KIND_OF.get(write.resource)
        if kind is None or write.subresource not in ("", "scale"):
            continue
        answered = ((write.answer or {}).get("metadata") or {}).get("resourceVersion")
        name = (kind, write.namespace, _name_of(write))
        if answered and write.subresource == "":
            yield int(answered), write
            continue
        # a deletion is answered by a Status, and a scale has no version of the object: the watch has it
        later = [c.version for c in changes if c.name == name and c.at >= write.at - 0.05]
        if later:
            yield min(later), write


def _name_of(write: Request) -> str:
    return write.name or ((write.answer or {}).get("metadata") or {}).get("name", "")


def _judge_write(state: State, recent: Sequence[tuple[float, Name, Json | None]], write: Request) -> list[Breach]:
    kind, name = _KIND_OF[write.resource], _name_of(write)
    key = (kind, write.namespace, name)
    before = state.objects.get(key)
    after = _after(before, write)
    deployment = _labels(after or before or {}).get(LABEL_DEPLOYMENT, "")
    if not deployment:
        return []
    said = f"{write.verb} {kind} {write.namespace}/{name}"
    found = [Breach(write.at, 2, said, what) for what in joins(kind, after, deployment)] if after else []
    broken = capacity(state, state.put(key, after), write.namespace, deployment)
    view = state
    for _, changed, old in reversed(recent):
        if not broken:
            break
        if changed[0] in _SEEN_LATE and changed != key:
            view = view.put(changed, old)
            if not capacity(view, view.put(key, after), write.namespace, deployment):
                broken = []
    return found + [Breach(write.at, 1, said, what) for what in broken]


def _after(before: Json | None, write: Request) -> Json | None:
    if write.verb == "delete":
        answer = write.answer or {}
        return answer if answer.get("kind") not in (None, "Status") else None
    if write.subresource == "scale":
        replicas = (write.answer or write.sent or {}).get("spec", {}).get("replicas")
        return None if before is None else before | {"spec": before["spec"] | {"replicas": replicas}}
    return write.answer


# Invariant 1


@dataclass(frozen=True)
class Arm:
    """One revision of a deployment.

    Attributes:
        ready: ready Pods of each role that its StatefulSet keeps.
        pods: Pods of each role that there are or will be, terminating ones counted.
        routers: router replicas that are wanted.
        ready_routers: of these, how many take requests now.
        weight: of its backend in an HTTPRoute; None without one.
    """

    ready: Mapping[str, int]
    pods: Mapping[str, int]
    routers: int
    ready_routers: int
    weight: float | None


def capacity(before: State, after: State, namespace: str, deployment: str) -> list[str]:
    """What a write that leads from one state to the other breaks of invariant 1, in words with numbers."""
    resource = before.get("SpecDecodeDeployment", namespace, deployment)
    if resource is None:
        return []
    spec, status = resource["spec"], resource.get("status") or {}
    were, are = arms(before, namespace, deployment), arms(after, namespace, deployment)
    stable = (status.get("stable") or {}).get("revision")
    failure = (status.get("rollout") or {}).get("failure") or {}
    wanted = {role: replicas for role in _ROLES if (replicas := _replicas(spec, role)) is not None}
    found: list[str] = []
    for role, replicas in wanted.items():
        bounds = _bounds(spec, role, replicas)
        ready = [sum(arm.ready[role] for arm in found.values()) for found in (were, are)]
        if ready[1] < bounds.least and ready[1] < ready[0]:
            found.append(f"ready {role} Pods fall from {ready[0]} to {ready[1]}, below {bounds.least}")
        pods = [sum(arm.pods[role] for arm in found.values()) for found in (were, are)]
        if pods[1] > bounds.most and pods[1] > pods[0]:
            found.append(f"{role} Pods rise from {pods[0]} to {pods[1]}, above {bounds.most}")
    if stable is None:
        return found
    for revision in are.keys() - {stable}:
        by_errors = bool(failure.get("byErrors")) and revision == (status.get("canary") or {}).get("revision")
        excess = [
            _canary_weight(arms_, stable, revision) - (0.0 if by_errors else _carries(arms_.get(revision), wanted))
            for arms_ in (were, are)
        ]
        if excess[1] > _EPSILON and excess[1] > excess[0] + _EPSILON:
            weight = _canary_weight(are, stable, revision)
            found.append(
                f"revision {revision} gets weight {weight:.3f} and carries {weight - excess[1]:.3f}"
                + (" (it failed by errors)" if by_errors else "")
            )
    if stable in were:
        share = _stable_weight(are, stable)
        for role, replicas in wanted.items():
            need = math.ceil(share * replicas - _EPSILON) - _bounds(spec, role, replicas).unavailable
            kept = are[stable].ready[role] if stable in are else 0
            if kept < need and kept < were[stable].ready[role]:
                found.append(f"stable's ready {role} Pods fall to {kept}, and its weight {share:.3f} needs {need}")
    return found


def arms(state: State, namespace: str, deployment: str) -> dict[int, Arm]:
    """The revisions of a deployment that have any workload or Pod."""
    pods = list(state.of("Pod", namespace, deployment))
    sets = {_arm_of(obj): obj for obj in state.of("StatefulSet", namespace, deployment) if _arm_of(obj)}
    routers = {
        _arm_of(obj): obj["spec"].get("replicas", 1)
        for obj in state.of("Deployment", namespace, deployment)
        if _arm_of(obj) and not _is_going(obj)
    }
    weights = _backend_weights(state, namespace, deployment)
    revisions = {arm[0] for obj in pods if (arm := _arm_of(obj))}
    revisions |= {arm[0] for arm in [*sets, *routers] if arm}
    found: dict[int, Arm] = {}
    for revision in revisions:
        ready, count = dict.fromkeys(_ROLES, 0), dict.fromkeys(_ROLES, 0)
        for role in _ROLES:
            owner = sets.get((revision, role))
            replicas = 0 if owner is None or _is_going(owner) else owner["spec"].get("replicas", 1)
            mine = [pod for pod in pods if _arm_of(pod) == (revision, role)]
            beyond = sum(_ordinal(pod) >= replicas for pod in mine)
            count[role] = replicas + beyond
            ready[role] = sum(_is_ready(pod) and _ordinal(pod) < replicas for pod in mine)
        taking = sum(_is_ready(pod) for pod in pods if _arm_of(pod) == (revision, "router"))
        wanted = routers.get((revision, "router"), 0)
        weight = weights.get(revision, 0.0) if weights else None
        found[revision] = Arm(ready, count, wanted, min(taking, wanted), weight)
    return found


@dataclass(frozen=True)
class _Bounds:
    least: int
    most: int
    unavailable: int


def _bounds(spec: Json, role: str, replicas: int) -> _Bounds:
    chosen = ((spec.get("rollout") or {}).get("capacity") or {}).get(role) or {}
    surge = _count(chosen.get("maxSurge", "25%"), replicas, math.ceil)
    unavailable = _count(chosen.get("maxUnavailable", 0), replicas, math.floor)
    return _Bounds(replicas - unavailable, replicas + surge, unavailable)


def _count(value: int | str, replicas: int, rounded: Callable[[float], int]) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return rounded(int(value[:-1]) * replicas / 100)
    return int(value)


def _replicas(spec: Json, role: str) -> int | None:
    """Replicas that the spec fixes; None for a role that isn't there or that an autoscaler sizes."""
    chosen = spec["topology"].get(role)
    return None if chosen is None else chosen.get("replicas")


def _carries(arm: Arm | None, wanted: Mapping[str, int]) -> float:
    if arm is None:
        return 0.0
    return min((min(1.0, arm.ready[role] / replicas) for role, replicas in wanted.items()), default=1.0)


def _canary_weight(found: Mapping[int, Arm], stable: int, revision: int) -> float:
    """The weight that the canary comes to: all routers that it wants, beside those of stable that take requests."""
    arm = found.get(revision)
    if arm is None:
        return 0.0
    if arm.weight is not None:
        total = sum(other.weight or 0.0 for other in found.values())
        return arm.weight / total if total else 0.0
    beside = found[stable].ready_routers if stable in found else 0
    return arm.routers / (arm.routers + beside) if arm.routers else 0.0


def _stable_weight(found: Mapping[int, Arm], stable: int) -> float:
    """The weight that stable may still have: all routers that it wants, beside the others' that take requests."""
    arm = found.get(stable)
    if arm is None:
        return 0.0
    if arm.weight is not None:
        total = sum(other.weight or 0.0 for other in found.values())
        return arm.weight / total if total else 0.0
    others = sum(other.ready_routers for revision, other in found.items() if revision != stable)
    return arm.routers / (arm.routers + others) if arm.routers else 0.0


def _backend_weights(state: State, namespace: str, deployment: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for route in state.of("HTTPRoute", namespace, deployment):
        for backend in _backends(route):
            revision = backend["name"].removeprefix(f"{deployment}-")
            if revision != backend["name"] and revision.isdigit():
                found[int(revision)] = float(backend.get("weight", 1))
    return found


# Invariant 2


def joins(kind: str, obj: Json, deployment: str) -> list[str]:
    """How an object of a deployment joins two revisions, in words; nothing where it doesn't."""
    meta, spec = obj["metadata"], obj.get("spec") or {}
    revision = _labels(obj).get(LABEL_REVISION)
    if kind == "HTTPRoute":
        wrong = [b["name"] for b in _backends(obj) if not re.fullmatch(rf"{re.escape(deployment)}-\d+", b["name"])]
        return [f"its backend {name} is not the router Service of one revision" for name in wrong]
    found: list[str] = []
    if kind == "Service":
        selector = spec.get("selector") or {}
        if selector.get(LABEL_DEPLOYMENT) != deployment:
            found.append(f"its selector {selector} does not keep to this deployment")
        if meta["name"] == deployment:
            if selector.get(LABEL_ROLE) != "router":
                found.append(f"the entry Service's selector {selector} does not keep to router Pods")
        elif not revision or selector.get(LABEL_REVISION) != revision:
            found.append(f"its selector {selector} does not keep to revision {revision}")
    if kind in ("StatefulSet", "Deployment"):
        selector = (spec.get("selector") or {}).get("matchLabels") or {}
        if not revision or selector.get(LABEL_REVISION) != revision:
            found.append(f"its selector {selector} does not keep to revision {revision}")
    if kind in ("StatefulSet", "Deployment", "ConfigMap"):
        content = json.dumps(obj.get("data") if kind == "ConfigMap" else spec)
        named = re.findall(rf"(?<![\w-]){re.escape(deployment)}-(\d+)-(?:prefill|decode)(?![a-z])", content)
        found += [f"it names Pods of revision {other}" for other in sorted(set(named) - {revision})]
    return found


def _backends(route: Json) -> list[Json]:
    return [backend for rule in route["spec"].get("rules") or [] for backend in rule.get("backendRefs") or []]


# Reading objects


def _labels(obj: Json) -> Mapping[str, str]:
    return (obj.get("metadata") or {}).get("labels") or {}


def _arm_of(obj: Json) -> tuple[int, str] | None:
    found = _labels(obj)
    revision = found.get(LABEL_REVISION, "")
    return (int(revision), found[LABEL_ROLE]) if revision.isdigit() and LABEL_ROLE in found else None


def _is_going(obj: Json) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return not _is_going(pod) and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _ordinal(pod: Json) -> int:
    return int(pod["metadata"]["name"].rsplit("-", 1)[1])
