"""What hands do to status and labels of a deployment that serves, with the real controller and planner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.cluster.test_controller import KEY, PLACE, World

BAD: dict[str, Any] = {"revision": 1, "length": "x", "positions": ["n/a"], "interval": ["nan"]}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    made.put(topology={"prefill": {"replicas": 2}, "decode": {"replicas": 4}, "router": {"replicas": 2}})
    for _ in range(3):
        await made.settle()
        made.pods()
    await made.settle()
    assert made.condition("Ready")[0] == "True"
    yield made
    await made.controller.close()


async def look(world: World, times: int = 3) -> None:
    """Visits that nothing called for; an exception in one fails the test."""
    for _ in range(times):
        world.queue.add(KEY)
        await world.settle()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("patch", [{"acceptance": [BAD]}, {"baseline": BAD}, {"acceptance": [BAD], "baseline": BAD}])
async def test_text_in_status_that_is_no_number_stops_nothing(
    world: World, patch: dict[str, Any], restarted: bool
) -> None:
    if restarted:
        await world.controller.close()
    status = world.client.objects[PLACE]["status"]
    world.client.add(world.client.objects[PLACE] | {"status": status | patch})
    world.see()
    await look(world)
    world.clock.now += 600.0
    await look(world)
    assert not {"acceptance", "baseline"} & {name for name, value in world.status.items() if value}
    assert world.condition("Ready")[0] == "True"


def sizes(world: World) -> dict[str, int]:
    kinds = ("StatefulSet", "Deployment")
    return {o["metadata"]["name"]: o["spec"]["replicas"] for o in world.client.objects.values() if o["kind"] in kinds}


@pytest.mark.parametrize("role", ["prefill", "decode", "router"])
@pytest.mark.parametrize("what", ["deployment", "revision", "role", "orphaned"])
async def test_a_workload_that_goes_from_view_is_written_at_its_size(world: World, what: str, role: str) -> None:
    """Its label is taken off, or it is deleted without its Pods."""
    before = sizes(world)
    kind = "Deployment" if role == "router" else "StatefulSet"
    place = (kind, "a", f"glm-1-{role}")
    workload = world.client.objects[place]
    if what == "orphaned":
        del world.client.objects[place]
    else:
        del workload["metadata"]["labels"][f"specdecode.dev/{what}"]
        world.client.add(workload)
    if what in ("orphaned", "deployment"):
        # A watch by the label sees it go.
        world.client.serial += 1
        world.store.remove(workload["metadata"]["uid"], str(world.client.serial))
    else:
        world.see()
    written: list[dict[str, int]] = []

    def note(_verb: str, _kind: str, _name: str) -> None:
        written.append(sizes(world))

    world.client.before = note
    await look(world)
    assert sizes(world) == before
    assert all(found.items() <= before.items() for found in written)
    assert world.client.objects[place]["metadata"]["labels"]["specdecode.dev/deployment"] == "glm"
    assert world.condition("Ready")[0] == "True"


async def test_a_lost_pod_s_successor_is_not_deleted_in_its_place(world: World) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    world.client.add(node | {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
    place = ("Pod", "a", "glm-1-decode-3")
    pod = world.client.objects[place]
    pod["spec"] = {"nodeName": "n1"}
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.client.add(pod)
    world.see()
    # Something to write first, so that time passes between seeing the lost Pod and deleting it.
    service = world.client.objects.pop(("Service", "a", "glm-1"))
    world.store.remove(service["metadata"]["uid"], str(world.client.serial + 1))
    successor = {name: value for name, value in pod["metadata"].items() if name not in ("uid", "deletionTimestamp")}

    def succeed(verb: str, _kind: str, _name: str) -> None:
        if verb == "apply":
            world.client.before = None
            world.client.add(pod | {"metadata": successor, "spec": {"nodeName": "n2"}})
            world.see()

    world.client.before = succeed
    await look(world)
    assert world.client.before is None
    assert world.client.objects[place]["spec"] == {"nodeName": "n2"}
    assert world.condition("Ready")[0] == "True"
