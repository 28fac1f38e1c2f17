"""Arithmetic of a rollout: how many Pods a weight needs, and which weights a number of Pods carries.

All shares are exact fractions of the traffic, 0 to 1; all sizes are numbers of Pods.

An arm *carries* the smallest, over its roles, of its ready Pods over the role's replicas; nothing at all
without a ready Pod of every role. A weight *needs* the share's part of the replicas, rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from specdecode.api import SpecDecodeDeploymentSpec, count
from specdecode.api.faults import Fault
from specdecode.api.names import EngineRole

ZERO, ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True, slots=True)
class Capacity:
    """One role's bounds during a rollout, both revisions counted."""

    replicas: int
    surge: int
    unavailable: int
    autoscaled: bool = False

    @property
    def most(self) -> int:
        """Most Pods, terminating ones counted."""
        return self.replicas + self.surge

    @property
    def least(self) -> int:
        """Fewest ready Pods that a write may leave."""
        return self.replicas - self.unavailable

    @property
    def coexists(self) -> bool:
        """Whether two revisions can have a Pod each at all."""
        return self.most >= 2

    def carries(self, ready: int, *, last_step: bool) -> Fraction:
        """Share of the traffic that a number of ready Pods carries.

        On the way to weight 100 a role without surge carries everything with the Pods that ``maxUnavailable`` allows to
        be missing: there is no room for its last Pod beside stable's last, and stable keeps that while it has traffic.
        """
        if last_step and not self.surge and ready >= max(self.least, 1):
            return ONE
        return min(Fraction(ready, self.replicas), ONE)

    def need(self, share: Fraction) -> int:
        """Pods that a share of the traffic needs."""
        return math.ceil(share * self.replicas)


def capacity_of(spec: SpecDecodeDeploymentSpec, role: EngineRole, replicas: int, *, autoscaled: bool) -> Capacity:
    """A role's bounds by the policy of ``spec``, for a number of replicas."""
    policy = getattr(spec.rollout.capacity, role)
    return Capacity(
        replicas=replicas,
        surge=count(policy.max_surge, replicas, round_up=True),
        # Percentages of few replicas can round both to 0; then one Pod more is the harmless reading.
        unavailable=min(count(policy.max_unavailable, replicas, round_up=False), replicas),
        autoscaled=autoscaled,
    )


@dataclass(frozen=True, slots=True)
class Split:
    """Weights of the two arms: router replicas, or the HTTPRoute's percentages."""

    stable: int
    canary: int

    @property
    def share(self) -> Fraction:
        """The canary's share of the traffic."""
        total = self.stable + self.canary
        return Fraction(self.canary, total) if total else ZERO


@dataclass(frozen=True, slots=True)
class Entry:
    """How traffic is split: by the number of routers behind one Service, or by an HTTPRoute's weights."""

    routers: int
    """Router replicas of an arm that has all the traffic."""
    gateway: bool = False

    @property
    def whole(self) -> Split:
        """All traffic to stable."""
        return Split(100, 0) if self.gateway else Split(self.routers, 0)

    @property
    def over(self) -> Split:
        """All traffic to the canary."""
        return Split(0, 100) if self.gateway else Split(0, self.routers)

    @lru_cache(maxsize=256)  # noqa: B019 - frozen, a handful of values, and asked for at every plan
    def splits(self, *, last_step: bool) -> tuple[Split, ...]:
        """Every split in which both arms have traffic.

        By routers: at most ``max(10, 2 x routers)`` of them, stable never below its replicas before its last step,
        so that a canary at weight 10 doesn't take stable's resilience away.
        """
        if self.gateway:
            return tuple(Split(100 - p, p) for p in range(1, 100))
        total = max(10, 2 * self.routers)
        fewest = 1 if last_step else self.routers
        return tuple(Split(s, c) for s in range(fewest, total) for c in range(1, total - s + 1))

    @lru_cache(maxsize=4096)  # noqa: B019
    def ideal(self, weight: int) -> Split:
        """The split nearest to a weight in percent, whatever the arms carry."""
        if weight >= 100:
            return self.over
        goal = Fraction(weight, 100)
        return min(self.splits(last_step=False), key=lambda s: (abs(s.share - goal), s.stable + s.canary))

    def rising(self, weight: int, current: Split, carried: Fraction) -> Split:
        """The split nearest to a weight that the canary carries; all to stable if it carries none.

        Among equally near ones a split that only adds canary routers and only takes stable's away is preferred,
        since then no order of the two writes oversteps, and then the smallest.
        """
        if weight >= 100 and carried >= ONE:
            return self.over
        goal = Fraction(min(weight, 100), 100)
        fit = [s for s in self.splits(last_step=weight >= 100) if s.share <= carried]

        def rank(split: Split) -> tuple[Fraction, bool, int]:
            monotone = split.canary >= current.canary and split.stable <= max(current.stable, self.routers)
            return abs(split.share - goal), not monotone, split.stable + split.canary

        return min(fit, key=rank) if fit else self.whole

    def falling(self, current: Split, carried: Fraction, stable_carries: Callable[[Fraction], bool]) -> Split:
        """The split with the least for the canary that stable carries the rest of.

        Where stable carries the rest of none, the one that burdens it least, within what the canary carries.
        """
        bound = min(carried, current.share)
        candidates = [self.whole, *(s for s in self.splits(last_step=True) if s.share <= bound)]
        if current == self.over and bound >= ONE:
            candidates.append(self.over)
        able = [s for s in candidates if stable_carries(ONE - s.share)]
        if able:
            return min(able, key=lambda s: (s.share, s.stable < self.routers, s.stable + s.canary))
        return max(candidates, key=lambda s: (s.share, -s.stable - s.canary))

    def size(self, weight: int, capacity: Capacity) -> int:
        """Canary Pods of a role at a weight: what the weight, and the split that stands for it, need; at least 1."""
        share = max(Fraction(weight, 100), self.ideal(weight).share)
        return max(1, min(capacity.need(share), capacity.replicas))


def reachable(entry: Entry, weights: Iterable[int], capacities: Mapping[EngineRole, Capacity]) -> int | None:
    """The first of the rising weights that the canary can't climb to, or None.

    The canary grows into the room that surge, unavailability and stable's shrinking leave, and stable shrinks
    to what its weight needs; so the climb stops where the next possible weight needs more room than that.
    """
    share = ZERO
    for weight in weights:
        goal = entry.ideal(weight).share
        steps = [s.share for s in entry.splits(last_step=weight >= 100)]
        while share < goal:
            carried = ONE
            for capacity in capacities.values():
                floor = max(capacity.need(ONE - share) - capacity.unavailable, 1 if capacity.coexists else 0)
                if capacity.autoscaled:
                    floor = capacity.replicas
                carried = min(carried, capacity.carries(capacity.most - floor, last_step=weight >= 100))
            if goal == carried == ONE:
                share = ONE
                break
            further = [s for s in steps if share < s <= min(carried, goal)]
            if not further:
                return weight
            share = max(further)
    return None


def first_step_faults(spec: SpecDecodeDeploymentSpec, replicas: Mapping[EngineRole, int] | None = None) -> list[Fault]:
    """Faults of capacities that could never carry the steps, each naming the value that would do.

    ``replicas`` gives the number of an autoscaler's Pods; without it such a role is taken at its most.
    """
    capacities: dict[EngineRole, Capacity] = {}
    faults = []
    for role, of in spec.topology.roles.items():
        number = of.replicas or (replicas or {}).get(role) or of.max_replicas or 1
        capacities[role] = capacity = capacity_of(spec, role, number, autoscaled=of.autoscaled)
        if capacity.surge == 0 and capacity.unavailable == 0:
            message = (
                f"rounds to 0 of {number} Pods, and maxSurge is 0 too, so no Pod could ever be replaced: "
                "set one of them to 1 or more"
            )
            written = getattr(spec.rollout.capacity, role).max_unavailable
            faults.append(Fault(f"spec.rollout.capacity.{role}.maxUnavailable", str(written), message, "SurgeTooSmall"))
    if faults:
        return faults
    entry = Entry(spec.topology.router.replicas, spec.traffic.gateway is not None)
    weights = [100] if spec.rollout.strategy == "Immediate" else [s.weight for s in spec.rollout.steps]
    while (blocked := reachable(entry, weights, capacities)) is not None:
        # The role with the least room is the one in the way; giving it more always ends at surge = replicas.
        tight = min(
            (r for r, c in capacities.items() if c.surge < c.replicas),
            key=lambda r: Fraction(capacities[r].surge + capacities[r].unavailable, capacities[r].replicas),
        )
        old = capacities[tight]
        capacities[tight] = replace(old, surge=old.surge + 1)
        message = (
            f"too small for {old.replicas} Pods to reach weight {blocked} "
            f"{'' if entry.gateway else 'by router replicas '}with maxUnavailable {old.unavailable}: "
            f"set it to {old.surge + 1} or more"
        )
        written = getattr(spec.rollout.capacity, tight).max_surge
        fault = Fault(f"spec.rollout.capacity.{tight}.maxSurge", str(written), message, "SurgeTooSmall")
        faults = [*(f for f in faults if f.path != fault.path), fault]
    return faults
