"""Routers of a revision, and the engines that they list."""

from __future__ import annotations

from tests.unit.rollout.world import World, resource, serving


def test_no_router_runs_without_an_engine_of_each_role_to_list() -> None:
    """vllm-router ends at once without one, and would crash again and again until the first engine is ready."""
    world = World(resource(), start_delay=5)
    world.run(serving)
    assert world.log[-1].arms
    for plan in world.log:
        for arm in plan.arms:
            assert arm.router == 0 or all(arm.backends), arm
