from __future__ import annotations

import copy
from typing import Any, cast

import pytest

from specdecode.api import crd
from specdecode.cluster import crdcheck
from specdecode.cluster.client import ApiError, Client

WANTED = crd.build()


def without(*path: str) -> dict[str, Any]:
    """The CRD with one property of its schema taken out."""
    definition = copy.deepcopy(WANTED)
    node = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in path[:-1]:
        node = node["properties"][name]
    del node["properties"][path[-1]]
    return definition


def test_the_packaged_definition_will_do() -> None:
    assert crdcheck.shortcomings(WANTED, WANTED) == []


def test_a_newer_one_will_do() -> None:
    newer = copy.deepcopy(WANTED)
    newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["new"] = {
        "type": "string"
    }
    newer["spec"]["versions"].insert(0, {"name": "v1beta1", "served": True})
    assert crdcheck.shortcomings(newer, WANTED) == []


@pytest.mark.parametrize("path", [("spec", "guard"), ("spec", "rollout", "steps"), ("status", "evidence")])
def test_a_field_that_it_lacks_is_named(path: tuple[str, ...]) -> None:
    assert crdcheck.shortcomings(without(*path), WANTED) == [f"no field {'.'.join(path)}"]


def test_a_field_of_a_list_s_items_is_looked_for_too() -> None:
    older = copy.deepcopy(WANTED)
    spec = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["rollout"]["properties"]["steps"]["items"]["properties"]["pause"]
    assert crdcheck.shortcomings(older, WANTED) == ["no field spec.rollout.steps[].pause"]


def test_without_the_status_subresource_or_the_version_it_won_t_do() -> None:
    older = copy.deepcopy(WANTED)
    older["spec"]["versions"][0]["subresources"] = {}
    assert crdcheck.shortcomings(older, WANTED) == ["no status subresource"]
    older["spec"]["versions"][0]["served"] = False
    assert crdcheck.shortcomings(older, WANTED) == ["v1alpha1 isn't served"]


class Server:
    def __init__(self, definition: dict[str, Any] | ApiError, resources: list[str] | None = None) -> None:
        self.definition = definition
        self.resources = resources

    async def get(self, *_: object) -> dict[str, Any]:
        if isinstance(self.definition, ApiError):
            raise self.definition
        return self.definition

    async def read(self, _path: str) -> dict[str, Any]:
        if self.resources is None:
            raise ApiError(404, "NotFound", "no such group")
        return {"resources": [{"name": name} for name in self.resources]}


async def check(server: Server) -> None:
    await crdcheck.check(cast(Client, server))


async def test_a_good_one_passes() -> None:
    await check(Server(WANTED))


async def test_a_missing_one_is_an_error_with_its_remedy() -> None:
    with pytest.raises(ValueError, match=r"no CRD specdecodedeployments.*kubectl apply"):
        await check(Server(ApiError(404, "NotFound", "none")))


async def test_an_older_one_is_an_error_that_names_what_it_lacks() -> None:
    with pytest.raises(ValueError, match=r"older than this operator \(no field spec.guard\).*kubectl apply"):
        await check(Server(without("spec", "guard")))


async def test_without_permission_to_get_it_discovery_must_do() -> None:
    forbidden = ApiError(403, "Forbidden", "not you")
    await check(Server(forbidden, ["specdecodedeployments", "specdecodedeployments/status"]))
    with pytest.raises(ValueError, match="doesn't serve specdecodedeployments/status"):
        await check(Server(forbidden, ["specdecodedeployments"]))
    with pytest.raises(ValueError, match="doesn't serve specdecodedeployments in"):
        await check(Server(forbidden))


async def test_an_api_server_that_can_t_be_asked_says_nothing_of_the_definition() -> None:
    with pytest.raises(ApiError):
        await check(Server(ApiError(0, "Unreachable", "no route")))
