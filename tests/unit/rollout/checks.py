"""The invariants of the design, checked at every write that a plan would make."""

from __future__ import annotations

from fractions import Fraction

from specdecode.api import count
from specdecode.api.names import EngineRole
from specdecode.rollout.types import ArmObserved, ArmTarget, Plan

from .world import World, carried, held, need, without

ROLES: tuple[EngineRole, EngineRole] = ("prefill", "decode")


def _numbers(world: World) -> dict[EngineRole, int]:
    spec = world.resource.spec
    numbers: dict[EngineRole, int] = {"decode": spec.topology.decode.replicas or 1}
    if spec.topology.prefill is not None:
        numbers["prefill"] = spec.topology.prefill.replicas or 1
    return numbers


def _bounds(world: World, role: EngineRole, replicas: int) -> tuple[int, int]:
    policy = getattr(world.resource.spec.rollout.capacity, role)
    return (
        replicas - min(count(policy.max_unavailable, replicas, round_up=False), replicas),
        replicas + count(policy.max_surge, replicas, round_up=True),
    )


def _size(target: ArmTarget | None, role: EngineRole, now: int) -> int:
    if target is None:
        return now
    wanted = getattr(target, role)
    return now if wanted is None else int(wanted)


def capacity_is_kept(world: World, plan: Plan) -> None:
    """Invariant 1, Pods: no write takes ready Pods further below the least, or all Pods further above the most."""
    if plan.create is not None:
        return
    before = world.observed()
    targets = {t.revision: t for t in plan.arms}
    for role, replicas in _numbers(world).items():
        least, most = _bounds(world, role, replicas)
        ready_before = sum(a.role(role).ready for a in before.values())
        held_before = sum(held(a, role) for a in before.values())
        ready_after = held_after = 0
        for number in before.keys() | targets.keys():
            arm = before.get(number, ArmObserved(number))
            of = arm.role(role)
            size = 0 if number in plan.remove else _size(targets.get(number), role, of.replicas)
            kept = without(of.pods, size)
            ready_after += len([p for p in kept if p.ready and not p.terminating])
            held_after += max(size, of.total)
        served = plan.status.stable is not None and plan.status.stable.served
        assert not served or ready_after >= min(least, ready_before), (
            f"{role}: a write takes ready Pods from {ready_before} to {ready_after}, least {least}"
        )
        assert held_after <= max(most, held_before), (
            f"{role}: a write takes Pods from {held_before} to {held_after}, most {most}"
        )


def weight_is_carried(world: World, plan: Plan) -> None:
    """Invariant 1, weight: no write gives the canary more than it carries; none shrinks stable below its weight."""
    status = plan.status
    if plan.create is not None or status.canary is None or status.stable is None:
        return
    canary, stable = status.canary.revision, status.stable.revision
    before = world.observed()
    c, s = before.get(canary, ArmObserved(canary)), before.get(stable, ArmObserved(stable))
    targets = {t.revision: t for t in plan.arms}
    numbers = _numbers(world)
    roles = {n: tuple(r for r in numbers if r == "decode" or _has_prefill(world, n)) for n in (canary, stable)}

    def share(rc: int, rs: int) -> Fraction:
        return Fraction(rc, rc + rs) if rc + rs else Fraction(0)

    if plan.weights is None:
        old = share(c.router.replicas, s.router.replicas)
        rc = targets[canary].router if canary in targets else 0
        rs = targets[stable].router if stable in targets else s.router.replicas
        new = share(rc, rs)
        # The order in which the two Deployments act isn't ours: none of the ways there may overstep either.
        ways: tuple[Fraction, ...] = (new, share(rc, s.router.ready), share(min(c.router.ready, c.router.replicas), rs))
        # A router beside the one that it replaces counts once: the Deployment's surge isn't a weight of ours.
        effective = share(min(c.router.ready, c.router.replicas), min(s.router.ready, s.router.replicas))
        if (rc, rs) == (c.router.replicas, s.router.replicas):
            ways = (new,)
    else:
        old = Fraction(world.route.get(canary, 0), 100)
        new = Fraction((plan.weights or {}).get(canary, 0), 100)
        ways, effective = (new,), old
    bound = carried(c, numbers, roles[canary], _may_miss(world, numbers))
    for way in ways:
        assert way <= max(bound, old, effective), f"weight {way} for a canary that carries {bound}"
    if status.rollout.failure is not None and status.rollout.failure.by_errors:
        assert new == 0, "a canary that failed by errors keeps traffic"
    rest = 1 - min(new, old, effective)
    for role in roles[stable]:
        of = s.role(role)
        size = _size(targets.get(stable), role, of.replicas)
        left = sum(p.ready and not p.terminating for p in without(of.pods, size))
        if left >= of.ready:
            continue
        unavailable = numbers[role] - _bounds(world, role, numbers[role])[0]
        assert left >= need(rest, numbers[role]) - unavailable, f"stable {role} shrinks to {left} at weight {rest}"


def _may_miss(world: World, numbers: dict[EngineRole, int]) -> dict[EngineRole, int]:
    """By role without surge: ready Pods that carry everything on the way to weight 100."""
    status = world.resource.status
    weights = [s.weight for s in world.resource.spec.rollout.steps]
    stable = world.observed().get(status.stable.revision) if status.stable else None
    dead = stable is not None and any(stable.role(r).ready == 0 for r in numbers)
    alone = any(_bounds(world, r, n)[1] < 2 for r, n in numbers.items())
    if not (dead or alone or status.rollout.step >= len(weights)):
        return {}
    bounds = {r: _bounds(world, r, n) for r, n in numbers.items()}
    return {r: max(least, 1) for r, (least, most) in bounds.items() if most == numbers[r]}


def _has_prefill(world: World, number: int) -> bool:
    record = next((r for r in world.records if r.number == number), None)
    return record is None or record.spec.topology.prefill is not None


def pods_leave_lists_first(world: World, plan: Plan) -> None:
    """No router, draining ones included, lists a Pod that a write takes away, unless the revision is going."""
    if plan.create is not None:
        return
    before = world.observed()
    for target in plan.arms:
        arm = before.get(target.revision, ArmObserved(target.revision))
        for index, role in enumerate(ROLES):
            size = _size(target, role, arm.role(role).replicas)
            if size >= arm.role(role).replicas or size == 0:
                continue
            listed = max((p.backends[index] for p in arm.router.pods if p.backends), default=0)
            assert size >= listed, f"revision {target.revision}: {role} shrinks to {size}, a router lists {listed}"


ALL = (capacity_is_kept, weight_is_carried, pods_leave_lists_first)
