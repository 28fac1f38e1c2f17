"""One step of moving traffic and Pods between two revisions, within a role's bounds.

Called again after every change, so a step only ever says what may be written now:

1. **Weights** go as near to the goal as the arms carry. Growing: Pods, then the routers' list of them, then weight.
2. **The growing arm** takes the room that is left under ``replicas + maxSurge``.
3. **The shrinking arm** gives Pods back where the growing one lacks room: never below what its weight in effect
   needs, never so that ready Pods of both arms fall below ``replicas - maxUnavailable``. Shrinking: weight, then
   the routers' list, then, once no router still lists a Pod, draining ones included, the Pod.

Rising, the canary grows and stable shrinks; falling, stable grows and the canary shrinks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from specdecode.api.names import EngineRole

from .capacity import ONE, ZERO, Capacity, Entry, Split
from .types import ArmObserved, ArmTarget

ROLES: tuple[EngineRole, EngineRole] = ("prefill", "decode")
_INDEX = {"prefill": 0, "decode": 1}


@dataclass(frozen=True, slots=True)
class Arm:
    """A revision as the balance sees it."""

    observed: ArmObserved
    roles: tuple[EngineRole, ...]
    listed_whole: Mapping[EngineRole, int] = field(default_factory=dict)
    """An autoscaler's roles: the number of Pods that routers list from the start."""

    def listed(self, role: EngineRole) -> int:
        """Ordinals that the router's template lists now."""
        backends = self.observed.router.backends
        return backends[_INDEX[role]] if backends else 0

    def listed_by_any(self, role: EngineRole) -> int:
        """Most ordinals that any router Pod lists, draining ones included."""
        pods = self.observed.router.pods
        return max((p.backends[_INDEX[role]] for p in pods if p.backends), default=0)

    def ready(self, role: EngineRole, below: int | None = None) -> int:
        """Ready Pods, of the ordinals below a bound if one is given."""
        return sum(
            p.ready and not p.terminating and (below is None or (p.ordinal is not None and p.ordinal < below))
            for p in self.observed.role(role).pods
        )

    def size(self, role: EngineRole) -> int:
        """Pods that it is asked for."""
        return self.observed.role(role).replicas

    def missing(self, role: EngineRole) -> bool:
        """Whether its workload isn't there while its Pods are."""
        return self.size(role) > 0 and not self.observed.role(role).exists

    def held(self, role: EngineRole) -> int:
        """Pods that count against the most: asked for or there, terminating ones included."""
        of = self.observed.role(role)
        return max(of.replicas, of.total)

    def carries(
        self, capacities: Mapping[EngineRole, Capacity], listed: Mapping[EngineRole, int], *, last_step: bool = False
    ) -> Fraction:
        """Share of the traffic that its ready and listed Pods carry."""
        least = ONE
        for role in self.roles:
            ready = self.ready(role, below=listed[role])
            if ready == 0:
                return ZERO
            least = min(least, capacities[role].carries(ready, last_step=last_step))
        return least

    @property
    def draining(self) -> bool:
        """Whether a router of it is still finishing its requests."""
        return any(p.terminating for p in self.observed.router.pods)

    @property
    def unrouted(self) -> bool:
        """Whether it has no router at all, asked for, running or draining."""
        return self.observed.router.replicas == 0 and not self.observed.router.pods


@dataclass(frozen=True, slots=True)
class Goal:
    """Where the traffic should go."""

    weight: int
    """The canary's, in percent."""
    rising: bool
    at_once: bool = False
    """Take all of the canary's traffic now, overloaded or not."""
    hold_weight: bool = False
    """Let Pods come up without moving any traffic yet."""


@dataclass(frozen=True, slots=True)
class Balance:
    """What may be written now, and whether the goal is reached."""

    stable: ArmTarget
    canary: ArmTarget
    split: Split
    share: Fraction
    """The canary's share that the entry really gives it now."""
    reached: bool
    """The goal's own split is asked for and in effect."""
    growing: bool
    """The canary is about to be asked for more Pods than it is asked for now."""


def extended(arm: Arm, role: EngineRole, *, quiet: bool) -> int:
    """How many ordinals routers may list.

    A longer list restarts routers, so it waits until every Pod asked for is ready, or until nothing has become
    ready for a while; the first list doesn't wait.
    """
    if role in arm.listed_whole:
        return arm.listed_whole[role] if arm.ready(role) else 0
    pods = arm.observed.role(role).pods
    ready = [p.ordinal for p in pods if p.ready and not p.terminating and p.ordinal is not None]
    highest = max((o for o in ready if o < arm.size(role)), default=-1) + 1
    listed = arm.listed(role)
    if listed == 0 or quiet or len(ready) >= arm.size(role):
        return max(min(listed, arm.size(role)), highest)
    return min(listed, max(arm.size(role), highest))


def shrunk(
    arm: Arm,
    others: int,
    role: EngineRole,
    capacity: Capacity,
    wanted: int,
    share: Fraction,
    unavailable: int,
) -> int:
    """The smallest size, at least ``wanted``, that the arm may be taken to.

    ``others`` are the other arm's ready Pods, ``share`` is the arm's own share of the traffic. The highest ordinals go
    first, ready or not.
    """
    floor = max(capacity.need(share) - unavailable, 0)
    if share > 0 and (capacity.coexists or others):
        floor = max(floor, 1)
    size = arm.size(role)
    while size > wanted:
        left = arm.ready(role, below=size - 1)
        loses = left < arm.ready(role, below=size)
        if loses and (left < floor or left + others < capacity.least):
            break
        size -= 1
    return size


def _settle(
    arm: Arm, sizes: Mapping[EngineRole, int], *, quiet: bool
) -> tuple[dict[EngineRole, int], dict[EngineRole, int]]:
    """Lists and sizes on the way to ``sizes``: a list shrinks at once, a size once no router lists more."""
    lists: dict[EngineRole, int] = {}
    targets: dict[EngineRole, int] = {}
    for role in arm.roles:
        wanted = sizes[role]
        lists[role] = extended(arm, role, quiet=quiet)
        if role not in arm.listed_whole:
            lists[role] = min(lists[role], wanted)
        # An arm without any Pod of a role can't answer, whatever its routers list.
        if 0 < wanted < arm.size(role) and not arm.unrouted:
            # The template's own list counts until a later look, since a router may be starting from it just now.
            targets[role] = min(arm.size(role), max(wanted, arm.listed_by_any(role), arm.listed(role)))
        else:
            targets[role] = wanted
    return lists, targets


def _target(
    arm: Arm,
    lists: Mapping[EngineRole, int],
    sizes: Mapping[EngineRole, int],
    routers: int,
    *,
    surge: bool,
    autoscaled: frozenset[EngineRole],
) -> ArmTarget:
    def number(role: EngineRole) -> int | None:
        if role not in arm.roles:
            return 0
        # One that is made again without a number has one Pod, until its autoscaler says more.
        return None if role in autoscaled and not arm.missing(role) else sizes[role]

    # A role without a Pod to list keeps the list that its routers have. One that never had any keeps them waiting: a
    # router doesn't even start without an engine of each role.
    kept = {role: lists[role] or arm.listed(role) for role in arm.roles}
    if not all(kept.values()):
        routers = 0
    backends = (kept.get("prefill", 0), kept["decode"])
    return ArmTarget(arm.observed.revision, number("prefill"), number("decode"), routers, backends, surge)


def alone(
    arm: Arm,
    capacities: Mapping[EngineRole, Capacity],
    entry: Entry,
    *,
    reserved: Mapping[EngineRole, int],
    quiet: bool,
) -> ArmTarget:
    """A serving revision with no other beside it: all replicas that there is room for, all routers."""
    autoscaled = frozenset(r for r in arm.roles if capacities[r].autoscaled)
    sizes: dict[EngineRole, int] = {}
    for role in arm.roles:
        cap, size = capacities[role], arm.size(role)
        room = max(cap.most - reserved.get(role, 0) - max(arm.observed.role(role).total - size, 0), size)
        sizes[role] = size if role in autoscaled else min(cap.replicas, room)
        if sizes[role] < size:
            sizes[role] = shrunk(arm, 0, role, cap, sizes[role], ONE, cap.unavailable)
    lists, targets = _settle(arm, sizes, quiet=quiet)
    return _target(arm, lists, targets, entry.routers, surge=True, autoscaled=autoscaled)


def retired(arm: Arm, serving: Sequence[Arm], capacities: Mapping[EngineRole, Capacity]) -> ArmTarget | None:
    """A revision on its way out: no routers, then no Pods; None once all of it may be deleted."""
    if not arm.unrouted:
        sizes = {role: arm.size(role) for role in arm.roles}
        lists = {role: arm.listed(role) for role in arm.roles}
        return _target(arm, lists, sizes, 0, surge=True, autoscaled=frozenset())
    left: dict[EngineRole, int] = {}
    for role in arm.roles:
        serving_ready = sum(other.ready(role) for other in serving)
        lacking = max(capacities[role].least - serving_ready, 0) if role in capacities and serving else 0
        kept = min(lacking, arm.ready(role, below=arm.size(role)))
        left[role] = next(n for n in range(arm.size(role) + 1) if arm.ready(role, below=n) >= kept)
    if not any(left.values()):
        return None
    return _target(arm, {r: arm.listed(r) for r in arm.roles}, left, 0, surge=True, autoscaled=frozenset())


def balance(
    stable: Arm,
    canary: Arm,
    capacities: Mapping[EngineRole, Capacity],
    entry: Entry,
    goal: Goal,
    current: Split,
    effective: Split,
    *,
    reserved: Mapping[EngineRole, int],
    quiet: bool,
) -> Balance:
    """One step towards ``goal``.

    ``current`` is the split asked for by the objects as they are, ``effective`` the one that ready routers, or the
    accepted route, give now. ``reserved`` are Pods of older revisions that are still on their way out. ``quiet``: no
    Pod has become ready for a while.
    """
    # Pods answer for every weight that is in effect, asked for, or about to be asked for: which one that is depends on
    # the Pods again, so it is found by turns. Each turn only adds a weight to answer for, so they end.
    shares = {current.share, effective.share}
    while True:
        sizes_s, sizes_c = _sizes(stable, canary, capacities, entry, goal, shares, reserved)
        lists_s, targets_s = _settle(stable, sizes_s, quiet=quiet)
        lists_c, targets_c = _settle(canary, sizes_c, quiet=quiet)
        wanted = _split(stable, canary, capacities, entry, goal, current, lists_s, lists_c)
        carried = canary.carries(capacities, lists_c)
        split = current if goal.hold_weight else _between(current, effective, wanted, carried, at_once=goal.at_once)
        if split.share in shares:
            break
        shares.add(split.share)
    # Routers of an arm by a gateway don't carry its weight: each arm has its own, before its first and until its last.
    if entry.gateway:
        routers_s = entry.routers
        routers_c = entry.routers if goal.rising or split.canary or effective.canary else 0
    else:
        routers_s, routers_c = split.stable, split.canary
    stable_roles = frozenset(r for r in stable.roles if capacities[r].autoscaled)
    stable_target = _target(stable, lists_s, targets_s, routers_s, surge=True, autoscaled=stable_roles)
    canary_target = _target(
        canary,
        lists_c,
        targets_c,
        routers_c,
        surge=entry.gateway or Split(split.stable, split.canary + 1).share <= carried,
        autoscaled=frozenset(),
    )
    reached = split == wanted == effective and split.share == entry.ideal(goal.weight).share
    growing = any(targets_c[r] > canary.size(r) for r in canary.roles)
    return Balance(stable_target, canary_target, split, effective.share, reached, growing)


def _sizes(
    stable: Arm,
    canary: Arm,
    capacities: Mapping[EngineRole, Capacity],
    entry: Entry,
    goal: Goal,
    shares: Collection[Fraction],
    reserved: Mapping[EngineRole, int],
) -> tuple[dict[EngineRole, int], dict[EngineRole, int]]:
    """Sizes that the two arms should be on their way to now, with the canary's ``shares`` to answer for."""
    share_s, share_c = ONE - min(shares), max(shares)
    sizes_s: dict[EngineRole, int] = {}
    sizes_c: dict[EngineRole, int] = {}
    for role in dict.fromkeys((*stable.roles, *canary.roles)):
        cap = capacities[role]
        room = max(cap.most - stable.held(role) - canary.held(role) - reserved.get(role, 0), 0)
        size_s, size_c = stable.size(role), canary.size(role)
        goal_s, goal_c = _goals(stable, canary, role, cap, entry, goal, share_s)
        # What an arm needs for the traffic that it has comes before growth for traffic to come.
        grown_s = min(goal_s, size_s + room) if goal_s > size_s else size_s
        room -= grown_s - size_s
        grown_c = min(goal_c, size_c + room) if goal_c > size_c else size_c
        lacking_s, lacking_c = max(goal_s - grown_s, 0), max(goal_c - grown_c, 0)
        # An arm that is too large, or in the way of the other, gives back what it may.
        wanted_s = min(size_s, max(goal_s if size_s > goal_s else size_s - (lacking_c if goal.rising else 0), 0))
        wanted_c = min(size_c, max(goal_c if size_c > goal_c else size_c - (0 if goal.rising else lacking_s), 0))
        if wanted_s < size_s and not cap.autoscaled:
            grown_s = shrunk(stable, canary.ready(role), role, cap, wanted_s, share_s, cap.unavailable)
        if wanted_c < size_c:
            # Without surge stable can only come back in a place that the canary leaves, weight or not.
            missing = 0 if goal.rising or cap.surge else cap.unavailable
            grown_c = shrunk(canary, stable.ready(role, below=grown_s), role, cap, wanted_c, share_c, missing)
        sizes_s[role], sizes_c[role] = grown_s, grown_c
    return sizes_s, sizes_c


def _goals(
    stable: Arm, canary: Arm, role: EngineRole, cap: Capacity, entry: Entry, goal: Goal, share_s: Fraction
) -> tuple[int, int]:
    """Sizes that the two arms should end at if there were room for all."""
    size_s, size_c = stable.size(role), canary.size(role)
    if goal.rising:
        # Stable isn't grown back once it has given room, unless its traffic needs it or there is room for both.
        goal_s = max(min(size_s, cap.replicas), cap.need(share_s) - cap.unavailable)
        if cap.surge >= cap.replicas:
            goal_s = cap.replicas
        goal_c = entry.size(goal.weight, cap)
    else:
        goal_s = cap.replicas
        # Its Pods stay while it has traffic or draining routers; what stable lacks room for, it gives back.
        goal_c = 0 if canary.unrouted else size_c
    if cap.autoscaled:
        goal_s = size_s
    return goal_s if role in stable.roles else 0, goal_c if role in canary.roles else 0


def _split(
    stable: Arm,
    canary: Arm,
    capacities: Mapping[EngineRole, Capacity],
    entry: Entry,
    goal: Goal,
    current: Split,
    lists_s: Mapping[EngineRole, int],
    lists_c: Mapping[EngineRole, int],
) -> Split:
    """The split that the arms, with the lists that their routers are about to have, carry."""
    carried = canary.carries(capacities, lists_c, last_step=goal.weight >= 100)
    if entry.gateway and not canary.observed.router.ready:
        carried = ZERO
    if goal.rising:
        return entry.rising(goal.weight, current, carried)
    if goal.at_once or current.share == ZERO:
        return entry.whole

    def stable_carries(share: Fraction) -> bool:
        return all(
            share == ZERO
            or stable.ready(r, below=lists_s[r]) >= max(capacities[r].need(share) - capacities[r].unavailable, 1)
            for r in stable.roles
        )

    return entry.falling(current, carried, stable_carries)


def _between(current: Split, effective: Split, wanted: Split, carried: Fraction, *, at_once: bool) -> Split:
    """The split to ask for now on the way to ``wanted``, so that no order of arrival gives the canary more than it
    carries: of two writes the one that could oversteps waits for the other to be seen."""
    if wanted == current:
        return wanted
    if at_once:
        return wanted if effective.canary <= 0 else Split(max(wanted.stable, current.stable), wanted.canary)
    # Stable's new routers first, if the canary's would come before them.
    if wanted.stable > effective.stable and wanted.canary > current.canary:
        return Split(wanted.stable, current.canary)
    if wanted.stable < current.stable and wanted.canary < effective.canary:
        rest = Split(wanted.stable, effective.canary).share
        if rest <= carried and wanted.share >= current.share:
            return Split(wanted.stable, current.canary)
        return Split(current.stable, wanted.canary)
    return wanted
