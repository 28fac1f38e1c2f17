from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from specdecode.cluster.client import ApiError, Client
from specdecode.cluster.kinds import HTTP_ROUTE, POD, SDD, WATCHED, Kind, Object
from specdecode.cluster.relist import Relister
from specdecode.cluster.store import Store
from specdecode.telemetry import Health
from tests.unit.cluster.fakes import Clock, in_virtual_time
from tests.unit.cluster.test_store import pod, resource


class Server:
    def __init__(self) -> None:
        self.objects: dict[str, list[Object]] = {}
        self.asked: list[tuple[str, str | None, str]] = []
        self.gateway = False
        self.refusals: list[ApiError] = []

    async def read(self, _path: str) -> dict[str, Any]:
        if not self.gateway:
            raise ApiError(404, "NotFound", "no such group")
        return {"resources": [{"name": "httproutes"}]}

    async def list_all(self, kind: Kind, namespace: str | None, selector: str) -> tuple[list[Object], str]:
        if self.refusals:
            raise self.refusals.pop(0)
        self.asked.append((kind.plural, namespace, selector))
        found = self.objects.get(kind.plural, [])
        return [o for o in found if namespace in (None, o["metadata"]["namespace"])], "100"


class World:
    def __init__(self, *namespaces: str) -> None:
        self.server, self.health, self.clock = Server(), Health(), Clock()
        self.changed: list[tuple[str, str]] = []
        self.store = Store(self.changed.append)
        self.relister = Relister(cast(Client, self.server), self.store, self.health, namespaces, 300.0, self.clock)


async def test_the_first_lists_fill_the_store_and_begin_the_heartbeats() -> None:
    world = World()
    world.server.objects = {"pods": [pod("p", 5)], "specdecodedeployments": [resource(6)]}
    await world.relister.prime()
    assert world.store.resources() == [("a", "glm")]
    assert len(world.store.children(("a", "glm"))) == 1
    assert [asked[0] for asked in world.server.asked] == [kind.plural for kind in WATCHED]
    assert ("specdecodedeployments", None, "") in world.server.asked
    assert ("pods", None, "specdecode.dev/deployment") in world.server.asked
    assert world.health.unready() == []
    assert world.health.dead(world.clock.now + 600.0) == []
    assert len(world.health.dead(world.clock.now + 700.0)) == len(WATCHED)


async def test_with_namespaces_each_is_listed_by_itself() -> None:
    world = World("a", "b")
    assert await world.relister.list(POD) == 0
    assert [asked[1] for asked in world.server.asked] == ["a", "b"]


async def test_what_went_unseen_is_forgotten() -> None:
    world = World()
    world.store.put(POD, pod("p", 5))
    world.store.put(POD, pod("q", 500))
    assert await world.relister.list(POD) == 1
    assert [o["metadata"]["name"] for o in world.store.children(("a", "glm"))] == ["q"]


async def test_routes_are_looked_at_once_the_cluster_serves_them() -> None:
    world = World()
    world.store.put(SDD, resource(1))
    await world.relister.discover()
    assert not world.relister.gateway
    assert HTTP_ROUTE not in world.relister.kinds
    world.server.gateway = True
    world.changed.clear()
    await world.relister.discover()
    assert world.relister.gateway
    assert HTTP_ROUTE in world.relister.kinds
    assert world.changed == [("a", "glm")]


def test_lists_are_repeated_each_period_and_sooner_for_a_kind_that_came_too_late_to_be_watched() -> None:
    async def script() -> World:
        world = World()
        loop = asyncio.get_running_loop()
        world.relister._clock = loop.time
        await world.relister.prime()
        world.server.asked.clear()
        running = asyncio.ensure_future(world.relister.run())
        await asyncio.sleep(299.0)
        assert world.server.asked == []
        world.server.gateway = True
        await asyncio.sleep(13.0)
        running.cancel()
        return world

    asked = [plural for plural, _, _ in in_virtual_time(script()).server.asked]
    assert asked == [kind.plural for kind in WATCHED] + ["httproutes"] * 3


async def test_a_refused_list_is_waited_for_and_readiness_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.server.refusals = [ApiError(403, "Forbidden", "not you")]
    said: list[list[str]] = []
    real = asyncio.sleep

    async def sleep(_seconds: float) -> None:
        said.append(world.health.unready())
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await world.relister.prime()
    assert said == [
        [
            "specdecodedeployments: 403 Forbidden: not you; grant the operator get, list and watch on "
            "specdecodedeployments"
        ]
    ]
    assert world.health.unready() == []
