from __future__ import annotations

from typing import Any, cast

from specdecode.cluster.client import ApiError, Client
from specdecode.cluster.kinds import Object
from specdecode.cluster.nodes import Nodes, answers, overdue
from tests.unit.cluster.fakes import Clock, FakeClient

NOON = 1_767_268_800.0  # 2026-01-01T12:00:00Z


def pod(node: str | None, deleted: str | None) -> Object:
    metadata: dict[str, Any] = {"name": "p"} | ({"deletionTimestamp": deleted} if deleted else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": node} if node else {}}


def node(name: str, status: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": status}]},
    }


def test_only_pods_past_their_grace_period_and_a_reserve_are_overdue() -> None:
    pods = [
        pod("a", "2026-01-01T11:59:29Z"),
        pod("b", "2026-01-01T11:59:40Z"),
        pod("c", "2026-01-01T12:05:00Z"),
        pod("d", None),
        pod(None, "2026-01-01T11:00:00Z"),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}},
    ]
    assert overdue(pods, NOON) == ({"a"}, NOON + 10.0)
    assert overdue([pods[3]], NOON) == (set(), None)


def test_a_node_answers_while_it_says_that_it_is_ready() -> None:
    assert answers(node("a", "True"))
    assert not answers(node("a", "Unknown"))
    assert not answers({"metadata": {"name": "a"}})


async def test_nodes_that_are_gone_or_silent_are_lost() -> None:
    client = FakeClient()
    client.add(node("well", "True"))
    client.add(node("silent", "Unknown"))
    nodes = Nodes(cast(Client, client), Clock())
    assert await nodes.lost(["well", "silent", "gone"]) == {"silent", "gone"}


async def test_an_answer_is_remembered_for_a_while() -> None:
    client, clock = FakeClient(), Clock()
    nodes = Nodes(cast(Client, client), clock)
    assert await nodes.lost(["a"]) == {"a"}
    client.add(node("a", "True"))
    assert await nodes.lost(["a"]) == {"a"}
    clock.now += 21.0
    assert await nodes.lost(["a"]) == set()


async def test_a_node_that_can_t_be_asked_for_isn_t_lost() -> None:
    class Forbidding:
        async def get(self, *_: object) -> Object:
            raise ApiError(403, "Forbidden", "not you")

    assert await Nodes(cast(Client, Forbidding()), Clock()).lost(["a"]) == set()
