"""A living revision whose record is deleted or loses its labels, and whose return is refused or unanswered."""

from __future__ import annotations

from typing import Any

import pytest

from specdecode.cluster.client import ApiError
from specdecode.cluster.kinds import Object
from tests.unit.cluster.test_controller import KEY, PLACE, World

RECORD = ("ControllerRevision", "a", "glm-1")


async def look(world: World) -> None:
    world.queue.add(KEY)
    await world.visit()


@pytest.fixture
async def serving() -> Any:
    """Revision 1 serves; a canary of another spec was aborted, so that the spec asks for a rejected revision."""
    world = World()
    world.put()
    for _ in range(3):
        await world.settle()
        world.pods()
    world.put(speculation={"depth": 2})
    for _ in range(3):
        await world.settle()
        world.pods()
    world.client.objects[PLACE]["metadata"]["annotations"] = {"specdecode.dev/abort": "2"}
    world.client.add(world.client.objects[PLACE])
    world.see()
    for _ in range(12):
        await look(world)
        names = {name for _, _, name in world.client.objects}
        for place in [p for p in world.client.objects if p[0] == "Pod" and p[2].rpartition("-")[0] not in names]:
            del world.client.objects[place]
        world.see()
    assert [r["reason"] for r in world.status["rejected"]] == ["Aborted"]
    world.client.writes.clear()
    yield world
    await world.controller.close()


def sizes(world: World) -> dict[str, int]:
    found = world.client.objects
    return {
        name: o["spec"]["replicas"] for (kind, _, name), o in found.items() if kind in ("Deployment", "StatefulSet")
    }


def lose(world: World) -> Object:
    record = world.client.objects.pop(RECORD)
    world.client.serial += 1
    world.store.remove(record["metadata"]["uid"], str(world.client.serial))
    world.queue.add(KEY)
    return record


@pytest.mark.parametrize("status", [0, 403, 500])
@pytest.mark.parametrize("times", [1, 4])
async def test_however_its_return_is_answered_what_serves_goes_on(serving: World, status: int, times: int) -> None:
    """An answer that is lost (0) comes after it was done."""
    before = sizes(serving)
    record = lose(serving)
    left = [times]

    def wrong(kind: str) -> None:
        if kind == "ControllerRevision" and left[0]:
            left[0] -= 1
            raise ApiError(status, "Timeout", "no answer within 5 s")

    if status:
        serving.client.before = lambda verb, kind, _: wrong(kind) if verb == "create" else None
    else:
        serving.client.created = lambda made: wrong(made["kind"])
    for _ in range(times + 3):
        await look(serving)
        serving.see()
        assert serving.status["stable"]["revision"] == 1
        assert sizes(serving) == before
    assert serving.client.objects[RECORD]["data"] == record["data"]
    assert serving.condition("Available")[0] == "True"


async def test_one_that_lost_its_labels_gets_them_back_and_an_edit_is_still_seen(serving: World) -> None:
    record = serving.client.objects[RECORD]
    labels = dict(record["metadata"]["labels"])
    record["metadata"]["labels"] = {}
    stripped = serving.client.add(record)
    serving.store.remove(stripped["metadata"]["uid"], stripped["metadata"]["resourceVersion"])
    serving.queue.add(KEY)
    await serving.settle()
    assert serving.client.objects[RECORD]["metadata"]["labels"] == labels
    told = [write for write in serving.client.writes if write[1] == "ControllerRevision"]
    assert [verb for verb, _, _ in told] == ["create", "apply"]
    serving.put(rollout={"paused": True})
    await serving.settle()
    assert serving.status["observedGeneration"] == serving.client.objects[PLACE]["metadata"]["generation"]


async def test_a_rejected_revision_takes_no_place_even_of_one_whose_record_nobody_remembers(serving: World) -> None:
    before = sizes(serving)
    serving.controller._tracked[KEY].seen = None
    lose(serving)
    for _ in range(4):
        await look(serving)
    assert serving.status["stable"]["revision"] == 1
    assert sizes(serving) == before
