"""One step of the balance, for states that the tables don't come by."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from specdecode.api.names import EngineRole
from specdecode.rollout.arms import ROLES, Arm, Goal, balance
from specdecode.rollout.capacity import Capacity, Entry, Split
from specdecode.rollout.types import ArmObserved, PodObserved, RoleObserved


def role(size: int, ready: Iterable[int], lists: tuple[int, int] | None = None) -> RoleObserved:
    up = set(ready)
    pods = tuple(PodObserved(f"p-{n}", f"u-{n}", n in up, ordinal=n, backends=lists) for n in range(size))
    return RoleObserved(exists=True, replicas=size, pods=pods, backends=lists)


@pytest.mark.parametrize("at_once", [True, False])
def test_stable_keeps_the_pods_that_all_of_the_traffic_needs_when_it_gets_all_of_it(at_once: bool) -> None:
    """Of 7 prefill Pods 4 are asked for now, and the two that aren't ready are among those that would stay."""
    listed = (4, 3)
    stable = Arm(ArmObserved(1, role(7, [1, 2, 3, 5, 6]), role(3, range(3)), role(4, range(4), listed)), ROLES)
    canary = Arm(ArmObserved(2, role(4, range(4)), role(3, range(3)), role(4, range(4), listed)), ROLES)
    capacities: dict[EngineRole, Capacity] = {"prefill": Capacity(4, 2, 0), "decode": Capacity(6, 2, 2)}
    now = Split(52, 48)
    found = balance(
        stable,
        canary,
        capacities,
        Entry(4, gateway=True),
        Goal(0, rising=False, at_once=at_once),
        now,
        now,
        reserved={},
        quiet=False,
    )
    if at_once:
        assert found.split == Split(100, 0)
    size = found.stable.prefill
    assert size is not None
    # Sizes 5 and 4 would leave three ready.
    assert (size == 6) is at_once
    assert stable.ready("prefill", below=size) >= (4 if at_once else 3)
