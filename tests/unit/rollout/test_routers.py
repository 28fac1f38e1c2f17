"""Routers of a revision, and the engines that they list."""

from __future__ import annotations

import pytest

from specdecode.rollout.types import Plan
from specdecode.rollout.waiting import KNOWN_SECONDS
from tests.unit.rollout.world import T0, World, resource, serving


def test_no_router_runs_without_an_engine_of_each_role_to_list() -> None:
    """vllm-router ends at once without one, and would crash again and again until the first engine is ready."""
    world = World(resource(), start_delay=5)
    world.run(serving)
    assert world.log[-1].arms
    for plan in world.log:
        for arm in plan.arms:
            assert arm.router == 0 or all(arm.backends), arm


@pytest.mark.parametrize("changes", [{}, {"topology__decode__replicas": 6}, {"topology__prefill__replicas": 3}])
@pytest.mark.parametrize(
    "gateway", [{}, {"traffic": {"gateway": {"parentRefs": [{"name": "g"}]}}}], ids=["", "gateway"]
)
def test_ready_means_that_every_router_lists_every_engine_and_is_known(
    changes: dict[str, object], gateway: dict[str, object]
) -> None:
    """At the first roll-out, and after a role has grown: the routers that list its new Pod are ready after it."""
    told: list[bool] = []

    def check(world: World, made: Plan) -> None:
        ready = next(c.status for c in made.status.conditions if c.type == "Ready") == "True"
        told.append(ready)
        if ready:
            topology = world.resource.spec.topology
            whole = (topology.roles["prefill"].replicas, topology.roles["decode"].replicas)
            routers = [p for p in world.observed()[1].router.pods if p.ready]
            assert {p.backends for p in routers} == {whole}
            assert max(p.ready_since for p in routers) + KNOWN_SECONDS <= T0 + world.t * world.tick_seconds

    world = World(resource(**gateway), tick_seconds=1.0, checks=[check])
    world.run(serving)
    world.edit(resource(**gateway, **changes))
    world.step()
    world.run(serving)
    assert told.count(False) > KNOWN_SECONDS
