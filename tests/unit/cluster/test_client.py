from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from specdecode.cluster import client as module
from specdecode.cluster.client import ApiError, Client, NotLeaderError
from specdecode.cluster.kinds import NODE, POD, SDD, Object
from specdecode.telemetry import Metrics


class Server:
    """Answers what it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], str, Any]] = []
        self.answers: list[web.Response] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.text()
        self.asked.append(
            (
                request.method,
                request.path,
                dict(request.query),
                request.headers.get("Content-Type", ""),
                json.loads(body) if body else None,
            )
        )
        self.authorization = request.headers.get("Authorization")
        if not self.answers:
            await asyncio.sleep(60)
        return self.answers.pop(0)

    def will(self, status: int, body: Any, **headers: str) -> None:
        self.answers.append(web.json_response(body, status=status, headers=headers))


class World:
    def __init__(self, server: Server, config: Configuration, metrics: Metrics) -> None:
        self.server, self.config, self.metrics = server, config, metrics
        self.client = Client(config, metrics)

    def writes(self, verb: str, kind: str, result: str) -> float | None:
        labels = {"verb": verb, "kind": kind, "result": result}
        return self.metrics.registry.get_sample_value("specdecode_api_writes_total", labels)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    config.api_key["BearerToken"] = "Bearer secret"
    metrics = Metrics("test")
    made = World(server, config, metrics)
    yield made
    await made.client.close()
    await runner.cleanup()


SERVICE: Object = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "ns", "uid": "u"}}
STATUS = {"kind": "Status", "reason": "Invalid", "message": "spec.x: too long"}


async def test_an_apply_is_server_side_forced_and_counted(world: World) -> None:
    world.server.will(201, SERVICE | {"spec": {}})
    assert await world.client.apply(SERVICE) == SERVICE | {"spec": {}}
    assert world.server.asked == [
        (
            "PATCH",
            "/api/v1/namespaces/ns/services/s",
            {"fieldManager": "specdecode-operator", "force": "true"},
            "application/apply-patch+yaml",
            SERVICE,
        )
    ]
    assert world.server.authorization == "Bearer secret"
    assert world.writes("apply", "Service", "ok") == 1.0


async def test_a_status_is_replaced_whole_at_its_very_version(world: World) -> None:
    metadata = {"name": "glm", "namespace": "ns", "resourceVersion": "7"}
    resource = {"apiVersion": SDD.api_version, "kind": SDD.kind, "metadata": metadata}
    world.server.will(200, resource)
    await world.client.put_status(resource, {"x": 1})
    method, path, query, content, body = world.server.asked[0]
    assert (method, path.rpartition("/")[2], content) == ("PATCH", "status", "application/json-patch+json")
    assert path == "/apis/specdecode.dev/v1alpha1/namespaces/ns/specdecodedeployments/glm/status"
    assert query == {"fieldManager": "specdecode-operator"}
    assert {step["path"]: step["value"] for step in body} == {"/metadata/resourceVersion": "7", "/status": {"x": 1}}
    assert world.writes("put_status", "SpecDecodeDeployment", "ok") == 1.0


async def test_a_delete_names_the_very_object(world: World) -> None:
    world.server.will(200, {"kind": "Status"})
    await world.client.delete(SERVICE, grace=0)
    method, path, _, _, body = world.server.asked[0]
    assert (method, path) == ("DELETE", "/api/v1/namespaces/ns/services/s")
    assert body["preconditions"] == {"uid": "u"}
    assert body["gracePeriodSeconds"] == 0
    assert body["propagationPolicy"] == "Background"


@pytest.mark.parametrize("status", [404, 409])
async def test_deleting_what_is_gone_or_replaced_is_no_error(world: World, status: int) -> None:
    world.server.will(status, {"kind": "Status", "message": "x"})
    assert await world.client.delete(SERVICE) == {}


@pytest.mark.parametrize(
    ("status", "result"),
    [(403, "forbidden"), (409, "conflict"), (422, "invalid"), (429, "throttled"), (500, "error"), (503, "error")],
)
async def test_a_refusal_is_an_error_with_the_server_s_words(world: World, status: int, result: str) -> None:
    world.server.will(status, STATUS, **{"Retry-After": "7"})
    with pytest.raises(ApiError) as caught:
        await world.client.create(SERVICE)
    error = caught.value
    assert (error.status, error.reason, error.message, error.retry_after) == (status, "Invalid", STATUS["message"], 7.0)
    assert world.writes("create", "Service", result) == 1.0


async def test_answers_that_aren_t_json_are_errors(world: World) -> None:
    world.server.answers.append(web.Response(text="<html>bad gateway</html>", status=502))
    with pytest.raises(ApiError, match="bad gateway"):
        await world.client.get(POD, "ns", "p")
    world.server.answers.append(web.Response(text="what?", status=200))
    with pytest.raises(ApiError, match="isn't JSON"):
        await world.client.get(POD, "ns", "p")


async def test_no_answer_in_time_is_an_error(world: World) -> None:
    impatient = Client(world.config, world.metrics, timeout=0.1)
    with pytest.raises(ApiError, match=r"no answer within 0.1 s") as caught:
        await impatient.get(POD, "ns", "p")
    assert caught.value.result == "unreachable"
    await impatient.close()


async def test_no_server_is_an_error() -> None:
    client = Client(Configuration(host="http://127.0.0.1:1"), Metrics("test"))
    with pytest.raises(ApiError) as caught:
        await client.get(POD, "ns", "p")
    assert caught.value.status == 0
    await client.close()


async def test_without_leadership_nothing_is_written_but_the_lease(world: World) -> None:
    def refuse() -> None:
        raise NotLeaderError("no")

    world.client.permit = refuse
    for write in (world.client.apply(SERVICE), world.client.create(SERVICE), world.client.delete(SERVICE)):
        with pytest.raises(NotLeaderError):
            await write
    assert world.server.asked == []
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l", "namespace": "ns"}}
    world.server.will(201, lease)
    world.server.will(200, lease)
    await world.client.lease("POST", lease)
    await world.client.lease("PUT", lease)
    assert [asked[:2] for asked in world.server.asked] == [
        ("POST", "/apis/coordination.k8s.io/v1/namespaces/ns/leases"),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"),
    ]


async def test_a_list_goes_through_all_pages_and_fills_in_the_kind(world: World) -> None:
    world.server.will(200, {"metadata": {"continue": "more", "resourceVersion": "7"}, "items": [{"metadata": {}}]})
    world.server.will(200, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {}}]})
    items, version = await world.client.list_all(POD, "ns", "some=label")
    assert (len(items), version) == (2, "7")
    assert (items[0]["apiVersion"], items[0]["kind"]) == ("v1", "Pod")
    assert [asked[2] for asked in world.server.asked] == [
        {"limit": "500", "labelSelector": "some=label"},
        {"limit": "500", "labelSelector": "some=label", "continue": "more"},
    ]


def test_paths() -> None:
    assert POD.path() == "/api/v1/pods"
    assert POD.path("ns") == "/api/v1/namespaces/ns/pods"
    assert NODE.path(None, "n") == "/api/v1/nodes/n"
    assert NODE.path("ns", "n") == "/api/v1/nodes/n"
    assert SDD.path() == "/apis/specdecode.dev/v1alpha1/specdecodedeployments"


async def test_a_kubeconfig_that_can_t_be_read_is_named() -> None:
    with pytest.raises(ValueError, match="no access to a cluster by --kubeconfig /nowhere/config"):
        await module.configuration("/nowhere/config")
