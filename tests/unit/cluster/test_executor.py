from __future__ import annotations

from typing import Any, cast

import pytest

from specdecode.api import SpecDecodeDeploymentStatus
from specdecode.api.names import LABEL_DEPLOYMENT, LABEL_REVISION
from specdecode.cluster.client import ApiError, Client
from specdecode.cluster.executor import Executor, Outcome, arrange, doomed
from specdecode.cluster.kinds import ALL, Key, Object, kind_of
from specdecode.cluster.store import Store
from specdecode.rollout.types import Plan, PodObserved
from tests.unit.cluster.fakes import FakeClient

KEY: Key = ("a", "glm")
OWNER = {"kind": "SpecDecodeDeployment", "name": "glm", "uid": "u", "controller": True}
VERSIONS = {kind: version for version, kind in ALL}


def obj(kind: str, name: str, revision: int | None = 1, *, owner: str = "u", **fields: Any) -> Object:
    labels = {LABEL_DEPLOYMENT: "glm"} | ({LABEL_REVISION: str(revision)} if revision is not None else {})
    metadata = {"name": name, "namespace": "a", "labels": labels, "ownerReferences": [OWNER | {"uid": owner}]}
    return {"apiVersion": VERSIONS[kind], "kind": kind, "metadata": metadata} | fields


def plan(**fields: Any) -> Plan:
    return Plan(status=SpecDecodeDeploymentStatus(), **fields)


class World:
    """A cluster with some objects, known to the store."""

    def __init__(self, *objects: Object) -> None:
        self.client = FakeClient()
        self.store = Store(lambda _key: None)
        self.executor = Executor(cast(Client, self.client), self.store)
        for each in objects:
            self.store.put(kind_of(each), self.client.add(each))

    async def carry_out(self, desired: list[Object], the_plan: Plan | None = None, *, gateway: bool = True) -> Outcome:
        return await self.executor.carry_out(KEY, "u", the_plan or plan(), desired, gateway)


def scaled(kind: str, name: str, replicas: int) -> Object:
    return obj(kind, name, spec={"replicas": replicas})


def test_needs_come_first_then_less_traffic_then_pods_then_more_traffic() -> None:
    live = {
        ("Deployment", "falls"): scaled("Deployment", "falls", 9),
        ("Deployment", "rises"): scaled("Deployment", "rises", 1),
    }
    wanted = [
        scaled("Deployment", "rises", 2),
        scaled("Deployment", "new", 1),
        scaled("StatefulSet", "pods", 4),
        scaled("Deployment", "falls", 3),
        obj("HTTPRoute", "route"),
        obj("ConfigMap", "config"),
        obj("Service", "service"),
    ]
    assert [o["metadata"]["name"] for o in arrange(wanted, live)] == [
        "config",
        "service",
        "falls",
        "route",
        "pods",
        "rises",
        "new",
    ]


def test_only_what_the_plan_names_and_the_resource_owns_is_doomed() -> None:
    children = [
        obj("StatefulSet", "old", 1),
        obj("Service", "old", 1),
        obj("StatefulSet", "kept", 2),
        obj("StatefulSet", "foreign", 1, owner="other"),
        obj("Pod", "old-0", 1),
        obj("ControllerRevision", "one", 1),
        obj("ControllerRevision", "two", 2),
        obj("ControllerRevision", "of-a-statefulset", 2, owner="sts"),
        obj("Service", "glm", None),
        obj("HTTPRoute", "glm", None),
    ]
    children[1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    def named(the_plan: Plan, desired: set[tuple[str, str]]) -> list[tuple[str, str]]:
        return [(o["kind"], o["metadata"]["name"]) for o in doomed(the_plan, children, "u", desired)]

    route = {("HTTPRoute", "glm")}
    assert named(plan(remove=(1,), weights={2: 100}), route) == [("StatefulSet", "old")]
    assert named(plan(forget=(2,), weights={2: 100}), route) == [("ControllerRevision", "two")]
    assert named(plan(), set()) == [("HTTPRoute", "glm")]


def test_network_policies_go_with_their_revision_or_when_none_are_asked_for() -> None:
    children = [obj("NetworkPolicy", "glm-1-decode", 1), obj("NetworkPolicy", "glm-2-decode", 2)]
    both = {("NetworkPolicy", f"glm-{revision}-decode") for revision in (1, 2)}
    arms = {("Deployment", f"glm-{revision}-router") for revision in (1, 2)}

    def named(the_plan: Plan, desired: set[tuple[str, str]]) -> list[str]:
        return [o["metadata"]["name"] for o in doomed(the_plan, children, "u", desired)]

    assert named(plan(remove=(1,)), {*both, *arms}) == ["glm-1-decode"]
    assert named(plan(), {*both, *arms}) == []
    assert named(plan(), arms) == ["glm-1-decode", "glm-2-decode"]
    # A plan that asks for nothing at this moment leaves what there is.
    assert named(plan(), set()) == []


async def test_equal_objects_are_not_written() -> None:
    world = World(scaled("StatefulSet", "pods", 4))
    outcome = await world.carry_out([scaled("StatefulSet", "pods", 4)])
    assert (world.client.writes, outcome.writes, outcome.errors) == ([], 0, [])


async def test_what_differs_is_applied_and_known_at_once() -> None:
    world = World(scaled("StatefulSet", "pods", 4))
    outcome = await world.carry_out([scaled("StatefulSet", "pods", 5), obj("Service", "new")])
    assert world.client.writes == [("apply", "Service", "new"), ("apply", "StatefulSet", "pods")]
    assert outcome.writes == 2
    known = {o["metadata"]["name"]: o for o in world.store.children(KEY)}
    assert known["pods"]["spec"]["replicas"] == 5
    assert "new" in known


async def test_a_stranger_s_object_is_never_taken_over() -> None:
    """It has none of our labels, so only asking for it shows that it is there."""
    world = World()
    foreign = obj("Service", "glm")
    foreign["metadata"] = {"name": "glm", "namespace": "a"}
    world.client.add(foreign)
    outcome = await world.carry_out([obj("Service", "glm")])
    assert world.client.writes == []
    assert outcome.errors == [
        "Service glm exists and isn't this resource's: remove it, or give the resource another name"
    ]


async def test_a_refused_write_is_told_and_the_others_go_on() -> None:
    world = World()
    world.client.refuse[("StatefulSet", "b")] = ApiError(403, "Forbidden", "no quota left", retry_after=7.0)
    outcome = await world.carry_out([obj("StatefulSet", name) for name in ("a", "b", "c")])
    assert [name for _, _, name in world.client.writes] == ["a", "c"]
    assert outcome.errors == ["apply StatefulSet b: Forbidden: no quota left"]
    assert outcome.retry_after == 7.0


async def test_without_the_gateway_api_a_route_is_an_error_that_says_what_to_do() -> None:
    world = World()
    outcome = await world.carry_out([obj("HTTPRoute", "glm", None)], gateway=False)
    assert world.client.writes == []
    assert "install the Gateway API" in outcome.errors[0]


async def test_objects_on_their_way_out_are_left_alone() -> None:
    going = scaled("StatefulSet", "pods", 4)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world = World(going)
    await world.carry_out([scaled("StatefulSet", "pods", 5)])
    assert world.client.writes == []


async def test_replicas_pass_to_an_autoscaler_without_a_gap() -> None:
    live = scaled("StatefulSet", "pods", 4)
    live["metadata"]["managedFields"] = [
        {
            "manager": "specdecode-operator",
            "operation": "Apply",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }
    ]
    world = World(live)
    await world.carry_out([obj("StatefulSet", "pods", spec={})])
    assert world.client.writes == [("apply", "StatefulSet", "pods")] * 2


async def test_pods_on_lost_nodes_are_deleted_without_grace() -> None:
    world = World(obj("Pod", "glm-1-decode-0"))
    uid = world.client.objects[("Pod", "a", "glm-1-decode-0")]["metadata"]["uid"]
    lost = (PodObserved("glm-1-decode-0", uid), PodObserved("gone", "uid-of-another"))
    await world.carry_out([], plan(force_delete=lost))
    assert world.client.writes == [("delete_0", "Pod", "glm-1-decode-0")]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("verb", ["apply", "delete", "delete_0"])
async def test_a_pod_that_has_replaced_the_lost_one_is_left_alone(verb: str, known: bool) -> None:
    """It comes while the plan is carried out, just ahead of any write; the watches may have shown it or not."""
    world = World(obj("Pod", "glm-1-decode-0"), obj("StatefulSet", "old", 3))
    place = ("Pod", "a", "glm-1-decode-0")
    lost = PodObserved("glm-1-decode-0", world.client.objects[place]["metadata"]["uid"])

    def replaced(written: str, _kind: str, _name: str) -> None:
        if written == verb:
            del world.client.objects[place]
            fresh = world.client.add(obj("Pod", "glm-1-decode-0"))
            if known:
                world.store.put(kind_of(fresh), fresh)

    world.client.before = replaced
    await world.carry_out([obj("Service", "new")], plan(force_delete=(lost,), remove=(3,)))
    assert world.client.objects[place]["metadata"]["uid"] != lost.uid


async def test_removal_deletes() -> None:
    world = World(obj("StatefulSet", "old", 1), obj("StatefulSet", "new", 2))
    outcome = await world.carry_out([], plan(remove=(1,)))
    assert world.client.writes == [("delete", "StatefulSet", "old")]
    assert outcome.writes == 1


async def test_a_revision_is_recorded_once() -> None:
    world = World()
    first = await world.executor.record(obj("ControllerRevision", "glm-1"))
    assert (first.stale, first.errors, first.writes) == (False, [], 1)
    again = await world.executor.record(obj("ControllerRevision", "glm-1"))
    assert (again.stale, again.errors) == (True, [])


async def test_a_stranger_s_record_is_told_rather_than_met_again_and_again() -> None:
    world = World()
    world.client.add(obj("ControllerRevision", "glm-1", owner="another"))
    outcome = await world.executor.record(obj("ControllerRevision", "glm-1"))
    assert not outcome.stale
    assert outcome.errors == [
        "ControllerRevision glm-1 exists and isn't this resource's: remove it, or give the resource another name"
    ]


async def test_status_is_written_for_the_very_version_that_was_planned_for() -> None:
    world = World(obj("SpecDecodeDeployment", "glm", None, spec={}))
    known = world.store.resource(KEY)
    assert known is not None
    assert (await world.executor.put_status(known, {"x": 1})).writes == 1
    world.client.add(world.client.objects[("SpecDecodeDeployment", "a", "glm")] | {"spec": {"edited": True}})
    stale = await world.executor.put_status(known, {"x": 2})
    assert (stale.stale, stale.errors) == (True, [])
    fresh = world.store.resource(KEY)
    assert fresh is not None
    assert fresh["spec"] == {"edited": True}
    assert fresh["status"] == {"x": 1}


@pytest.mark.parametrize("change", ["generation", "uid", "gone", "nothing"])
async def test_a_decision_is_confirmed_against_the_api_server(change: str) -> None:
    resource = obj("SpecDecodeDeployment", "glm", None)
    resource["metadata"] |= {"uid": "u", "generation": 3}
    world = World(resource)
    known = world.store.resource(KEY)
    assert known is not None
    if change == "gone":
        world.client.objects.clear()
    elif change != "nothing":
        changed = world.client.objects[("SpecDecodeDeployment", "a", "glm")]
        changed["metadata"] |= {"uid": "v"} if change == "uid" else {"generation": 4}
        world.client.add(changed)
    assert await world.executor.confirm(known) is (change == "nothing")


async def test_an_apply_that_changes_nothing_is_not_made_again() -> None:
    """An admission policy has an image otherwise, as a registry mirror does."""
    world = World()

    def mirrored(obj: Object) -> Object:
        return obj | {"spec": obj["spec"] | {"image": "mirror/x"}}

    def wanted(replicas: int) -> list[Object]:
        return [obj("StatefulSet", "pods", spec={"replicas": replicas, "image": "x"})]

    world.client.mutate = mirrored
    assert (await world.carry_out(wanted(1))).writes == 1
    assert (await world.carry_out(wanted(1))).writes == 0
    assert len(world.client.writes) == 2
    for _ in range(3):
        assert (await world.carry_out(wanted(1))).writes == 0
    assert len(world.client.writes) == 2
    # Something else to ask for, or something else to ask it of, is worth another try.
    assert (await world.carry_out(wanted(2))).writes == 1
    await world.carry_out(wanted(2))
    edited = world.client.objects[("StatefulSet", "a", "pods")] | {"spec": {"replicas": 3, "image": "mirror/x"}}
    world.store.put(kind_of(edited), world.client.add(edited))
    assert (await world.carry_out(wanted(2))).writes == 1


@pytest.mark.parametrize(("weight", "left"), [(10, True), (0, False)])
async def test_no_route_sends_requests_to_another_s_service(weight: int, left: bool) -> None:
    """Resource glm-2's Service is named as that of glm's second revision."""
    world = World()
    world.client.add(obj("Service", "glm-2", owner="another"))
    rules = [{"backendRefs": [{"name": "glm-1", "weight": 100 - weight}, {"name": "glm-2", "weight": weight}]}]
    route = obj("HTTPRoute", "glm", None, spec={"rules": rules})
    outcome = await world.carry_out([obj("Service", "glm-1"), obj("Service", "glm-2"), route])
    assert (("apply", "HTTPRoute", "glm") not in world.client.writes) is left
    assert any("another's Service glm-2" in error for error in outcome.errors) is left
    assert any(error.startswith("Service glm-2 exists and isn't this resource's") for error in outcome.errors)
