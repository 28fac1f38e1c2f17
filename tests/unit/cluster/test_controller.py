"""The controller with the real planner, on a stand-in for the API server."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, cast

import pytest

from specdecode.acceptance import Reason, ScrapeError, VerdictKind
from specdecode.api import SpecDecodeDeploymentStatus
from specdecode.cluster.client import ApiError, Client, NotLeaderError
from specdecode.cluster.controller import Controller
from specdecode.cluster.events import Recorder
from specdecode.cluster.executor import Executor
from specdecode.cluster.kinds import POD, SDD, Key, Object, kind_of
from specdecode.cluster.nodes import Nodes
from specdecode.cluster.queue import WorkQueue
from specdecode.cluster.store import Store
from specdecode.rollout.types import EventNote
from specdecode.scrape import Scraped, Scraper, Target
from specdecode.telemetry import Metrics
from tests.unit.cluster.fakes import Clock, FakeClient
from tests.unit.rollout.world import verdict

KEY: Key = ("a", "glm")
PLACE = ("SpecDecodeDeployment", "a", "glm")
SPEC: dict[str, Any] = {
    "model": {"name": "m"},
    "speculation": {"depth": 3},
    "engine": {"image": "vllm:0.33.0"},
    "topology": {"decode": {"replicas": 1}, "router": {"replicas": 1}},
}


class SilentScraper:
    async def scrape(self, targets: Iterable[Target], limit: float) -> list[Scraped]:
        return [Scraped(t, error=ScrapeError(0.0, t.arm, t.pod, "timeout")) for t in targets]


class Notes:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[EventNote] = []

    def record(self, _resource: Object, note: EventNote) -> None:
        self.told.append(note)


class World:
    def __init__(self) -> None:
        self.client, self.clock, self.notes = FakeClient(), Clock(1_800_000_000.0), Notes()
        self.metrics = Metrics("test")
        self.queue: WorkQueue[Key] = WorkQueue(lambda: self.clock.now, draw=lambda: 0.5)
        self.store = Store(self.queue.add)
        self.controller = Controller(
            store=self.store,
            queue=self.queue,
            executor=Executor(cast(Client, self.client), self.store),
            nodes=Nodes(cast(Client, self.client), self.clock),
            recorder=cast(Recorder, self.notes),
            scraper=cast(Scraper, SilentScraper()),
            metrics=self.metrics,
            router_image="router:1",
            gateway=lambda: False,
            clock=self.clock,
        )

    def put(self, **fields: Any) -> None:
        """A person applies the resource, or changes it."""
        old = self.client.objects.get(PLACE)
        generation = old["metadata"]["generation"] + 1 if old else 1
        metadata = {"name": "glm", "namespace": "a", "uid": "u", "generation": generation}
        obj = {"apiVersion": SDD.api_version, "kind": SDD.kind, "metadata": metadata, "spec": SPEC | fields}
        self.client.add((old or {}) | obj)
        self.see()

    def see(self) -> None:
        """The watches bring everything that has changed."""
        for obj in self.client.objects.values():
            if obj["kind"] != "Event":
                self.store.put(kind_of(obj), copy.deepcopy(obj))
        for obj in self.store.children(KEY):
            if self.client.place(obj) not in self.client.objects:
                self.client.serial += 1
                self.store.remove(obj["metadata"]["uid"], str(self.client.serial))

    def pods(self, revision: int = 1) -> None:
        """The cluster makes the Pods that workloads ask for, and all are ready."""
        for obj in [o for o in self.client.objects.values() if o["kind"] in ("StatefulSet", "Deployment")]:
            for i in range(obj["spec"]["replicas"]):
                template = obj["spec"]["template"]["metadata"]
                metadata = {"name": f"{obj['metadata']['name']}-{i}", "namespace": "a", "labels": template["labels"]}
                metadata |= {"annotations": template.get("annotations", {})}
                status = {"podIP": "127.0.0.9", "conditions": [{"type": "Ready", "status": "True"}]}
                self.client.add({"apiVersion": "v1", "kind": POD.kind, "metadata": metadata, "status": status})
        self.see()

    async def settle(self, visits: int = 20) -> int:
        """Visit until nothing more is due within a second; how many visits it took."""
        for i in range(visits):
            self.queue._ripen()
            if not self.queue._ready:
                self.clock.now += 1.0
                self.queue._ripen()
                if not self.queue._ready:
                    return i
            await self.visit()
        raise AssertionError(f"not settled after {visits} visits; {self.client.writes[-5:]}")

    async def visit(self, times: int = 1) -> None:
        """Visit what is due, however far away."""
        for _ in range(times):
            self.clock.now += 60.0 if not self.queue._ready else 0.0
            key = await self.queue.take()
            await self.controller._visit(key)
            self.queue.done(key)

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.objects[PLACE]["status"]
        return found

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(c for c in self.status["conditions"] if c["type"] == kind)
        return found["status"], found["reason"], found["message"]


@pytest.fixture
async def world() -> Any:
    made = World()
    yield made
    await made.controller.close()


async def test_a_revision_is_recorded_before_its_objects_and_status_comes_last(world: World) -> None:
    world.put()
    await world.settle()
    kinds = [kind for _, kind, _ in world.client.writes]
    assert kinds[0] == "ControllerRevision"
    assert kinds.index("ConfigMap") < kinds.index("StatefulSet") < kinds.index("Deployment")
    assert kinds[-1] == "SpecDecodeDeployment"
    assert world.condition("Ready")[:2] == ("False", "WaitingForPods")
    assert world.notes.told[0].reason == "RevisionRecorded"


async def test_a_living_revision_s_record_that_was_deleted_is_written_again(world: World) -> None:
    world.put()
    await world.settle()
    for _ in range(2):
        world.pods()
        await world.settle()
    place = ("ControllerRevision", "a", "glm-1")
    before = world.client.objects.pop(place)
    world.store.remove(before["metadata"]["uid"], str(world.client.serial + 1))
    world.client.writes.clear()
    await world.settle()
    assert world.client.objects[place]["data"] == before["data"]
    assert world.client.writes == [("create", "ControllerRevision", "glm-1")]
    assert world.notes.told[-1].reason == "RecordRestored"
    assert world.condition("Ready")[0] == "True"


async def test_what_was_written_down_is_the_spec_as_it_stands_not_today_s_defaults(world: World) -> None:
    world.put()
    await world.settle()
    record = world.client.objects[("ControllerRevision", "a", "glm-1")]
    assert record["data"]["spec"] == SPEC


async def test_with_all_pods_ready_it_is_ready_and_then_nothing_is_written(world: World) -> None:
    world.put()
    await world.settle()
    world.pods()
    await world.settle()
    # A router comes once there is an engine that it can list.
    world.pods()
    await world.settle()
    assert world.condition("Ready")[0] == "True"
    world.client.writes.clear()
    for _ in range(5):
        world.queue.add(KEY)
        await world.settle()
    assert world.client.writes == []


async def test_a_refused_write_becomes_a_condition_backs_off_and_heals(world: World) -> None:
    refused = ApiError(403, "Forbidden", "exceeded quota")
    world.client.refuse[("StatefulSet", "glm-1-decode")] = refused
    world.put()
    await world.visit(5)
    assert world.condition("Stalled") == (
        "True",
        "WriteRefused",
        "apply StatefulSet glm-1-decode: Forbidden: exceeded quota",
    )
    world.client.refuse.clear()
    world.clock.now += 60.0
    await world.settle()
    assert world.condition("Stalled")[0] == "False"
    assert ("StatefulSet", "a", "glm-1-decode") in world.client.objects


async def test_a_status_that_is_refused_is_tried_again(world: World) -> None:
    world.client.refuse[("SpecDecodeDeployment", "glm")] = ApiError(422, "Invalid", "too long")
    world.put()
    await world.visit(5)
    assert "status" not in world.client.objects[PLACE]
    world.client.refuse.clear()
    world.clock.now += 60.0
    await world.settle()
    assert world.status["currentRevision"] == 1


async def test_an_edit_between_seeing_and_writing_makes_the_plan_anew(world: World) -> None:
    world.put()
    await world.settle()
    world.pods()
    await world.settle()
    world.pods()
    edits = iter([{"rollout": {"paused": True}}])

    def edit(verb: str, _kind: str, _name: str) -> None:
        if verb == "put_status":
            for fields in edits:
                world.put(**fields)

    world.client.before = edit
    await world.settle()
    assert world.status["observedGeneration"] == 2
    assert world.condition("Ready")[0] == "True"


@pytest.mark.parametrize(
    ("old", "new", "rollbacks", "promotions"),
    [
        (
            {"canary": {"revision": 2}},
            {"rollout": {"failure": {"reason": "Fell", "at": "2026-01-01T00:00:00Z"}}},
            1.0,
            None,
        ),
        (
            {"rollout": {"failure": {"reason": "Fell", "at": "2026-01-01T00:00:00Z"}}},
            {"rollout": {"failure": {"reason": "Fell", "at": "2026-01-01T00:00:00Z"}}},
            None,
            None,
        ),
        ({"canary": {"revision": 2}}, {"stable": {"revision": 2}}, None, 1.0),
        ({"stable": {"revision": 2}}, {"stable": {"revision": 2}}, None, None),
        ({}, {"stable": {"revision": 1}}, None, None),
    ],
)
async def test_decisions_are_counted_once(
    world: World, old: dict[str, Any], new: dict[str, Any], rollbacks: float | None, promotions: float | None
) -> None:
    raw = {"metadata": {"namespace": "a", "name": "glm"}, "status": old}
    world.controller._count(raw, SpecDecodeDeploymentStatus.model_validate(new))
    labels = {"namespace": "a", "name": "glm"}
    value = world.metrics.registry.get_sample_value
    assert value("specdecode_rollbacks_total", labels | {"reason": "Fell"}) == rollbacks
    assert value("specdecode_promotions_total", labels) == promotions


async def test_a_deletion_ends_all_that_is_kept(world: World) -> None:
    world.put()
    await world.settle()
    value = world.metrics.registry.get_sample_value
    weight = ("specdecode_traffic_weight_asked_ratio", {"namespace": "a", "name": "glm"})
    assert value(*weight) == 0.0
    world.client.writes.clear()
    world.store.remove("u", str(world.client.serial + 1))
    await world.settle()
    assert value(*weight) is None
    assert world.client.writes == []
    assert world.controller._tracked == {}


async def test_a_resource_on_its_way_out_is_left_to_the_garbage_collector(world: World) -> None:
    world.put()
    await world.settle()
    world.client.writes.clear()
    going = world.client.objects[PLACE]
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.client.add(going)
    world.see()
    await world.settle()
    assert world.client.writes == []


async def test_a_resource_that_can_t_be_read_says_so_once_and_what_runs_is_left_alone(world: World) -> None:
    world.put()
    await world.settle()
    before = dict(world.status)
    world.client.writes.clear()
    world.put(speculation={"depth": "three"})
    await world.settle()
    assert world.client.writes == [("put_status", "SpecDecodeDeployment", "glm")]
    status, reason, message = world.condition("Ready")
    assert (status, reason) == ("False", "Unreadable")
    assert message.startswith("spec.speculation.depth: ")
    assert world.status["currentRevision"] == before["currentRevision"]
    world.put()
    await world.settle()
    assert world.condition("Ready")[1] == "WaitingForPods"


async def test_a_spec_with_faults_is_told_and_makes_nothing(world: World) -> None:
    world.put(rollout={"analysis": {"margin": "60%"}})
    await world.settle()
    assert {kind for _, kind, _ in world.client.writes} == {"Service", "SpecDecodeDeployment"}
    assert world.condition("Stalled")[0] == "True"
    assert "margin is 0.6: give a number above 0 and below 0.5" in world.condition("Stalled")[2]


async def test_an_analysis_made_unusable_in_mid_canary_leaves_the_canary_judged_as_it_was_recorded(
    world: World,
) -> None:
    world.put()
    for _ in range(3):
        await world.settle()
        world.pods()
    await world.settle()
    world.put(speculation={"depth": 2})
    for _ in range(4):
        world.pods()
        await world.settle()
    tracked = world.controller._tracked[KEY]
    assert world.status["canary"]["revision"] == 2
    assert tracked.evidence.judging
    world.put(speculation={"depth": 2}, rollout={"analysis": {"margin": "60%"}})
    await world.settle()
    assert world.condition("Stalled")[0] == "True"
    assert world.status["canary"]["revision"] == 2
    assert tracked.evidence.judging
    assert tracked.policy is not None
    assert (tracked.policy.margin, tracked.rounds.interval) == (0.05, tracked.policy.interval)


async def test_an_exception_backs_off_is_counted_and_ends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_key: Key) -> None:
        world.queue.close()
        raise RuntimeError("a bug")

    monkeypatch.setattr(world.controller, "_visit", broken)
    world.queue.add(KEY)
    await world.controller.work()
    assert world.metrics.registry.get_sample_value("specdecode_reconcile_errors_total") == 1.0
    assert "a/glm: a bug; again in" in caplog.text
    assert "Traceback" in caplog.text


async def test_what_a_late_renewal_of_the_lease_has_stopped_is_done_later(world: World) -> None:
    def refuse(*_: object) -> None:
        world.queue.close()
        raise NotLeaderError("the Lease isn't ours at this moment")

    world.put()
    world.client.before = refuse
    await world.controller.work()
    assert world.client.writes == []
    world.clock.now += 10.0
    world.queue._ripen()
    assert list(world.queue._ready) == [KEY]


@pytest.mark.parametrize("then", [VerdictKind.NO_DATA, VerdictKind.PASS])
async def test_a_refused_write_doesn_t_undo_the_decision_of_the_same_visit(world: World, then: VerdictKind) -> None:
    """While objects are written a round of scrapes ends with another verdict; then a write is refused."""
    world.put(topology={"decode": {"replicas": 1}, "router": {"replicas": 2}})
    for _ in range(3):
        await world.settle()
        world.pods()
    world.put(speculation={"depth": 2}, topology={"decode": {"replicas": 1}, "router": {"replicas": 2}})
    for _ in range(8):
        evidence = world.controller._tracked[KEY].evidence
        evidence._info = {o["metadata"]["uid"]: None for o in world.client.objects.values() if o["kind"] == "Pod"}
        world.queue.add(KEY)
        await world.settle()
        world.pods()
    assert world.status["rollout"]["phase"] == "Analysing"
    evidence.verdict = verdict(VerdictKind.FAIL, Reason.ACCEPTANCE_FELL)
    written: list[dict[str, Any]] = []

    def meanwhile(verb: str, kind: str, _name: str) -> None:
        if verb != "put_status" and written:
            evidence.verdict = verdict(then, Reason.NO_TRAFFIC)
            if kind in ("Deployment", "StatefulSet"):
                raise ApiError(500, "InternalError", "the leader of etcd has changed")
        elif verb == "put_status":
            written.append(world.status["rollout"])

    world.client.before = meanwhile
    world.queue.add(KEY)
    await world.visit()
    assert len(written) == 2
    assert world.status["rollout"]["failure"]["reason"] == "AcceptanceFell"
    assert "WriteRefused" in world.condition("Stalled")
