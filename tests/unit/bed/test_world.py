"""What the fleet notes and plays, fed with changes by hand and a clock of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bed.api import Json
from tests.bed.fleet import scenario
from tests.bed.fleet.main import EventLog, World
from tests.bed.watch import Change, EventType
from tests.unit.bed.objects import NAME, NAMESPACE, entry, pod

ARGS = ["--speculative-config", '{"num_speculative_tokens": 3}']
ARM = {"namespace": NAMESPACE, "deployment": NAME}


class Played:
    """A world whose Pods have no address, so that nothing listens anywhere."""

    def __init__(self, folder: Path, text: str) -> None:
        self.path = folder / "events.jsonl"
        self.world = World(EventLog(self.path), np.random.default_rng(3))
        self.world.scenario = scenario.parse(text)
        self.now = 1000.0
        self.world.on_service(Change(self.now, "ADDED", entry()))
        for revision in (1, 2):
            for obj in (pod("router", revision, 0), pod("decode", revision, 0, args=ARGS)):
                self.change(obj)

    def change(self, obj: Json, type_: EventType = "ADDED") -> None:
        obj["status"]["podIP"] = ""
        self.world.on_pod(Change(self.now, type_, obj))

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.world.tick(self.now, 0.1)

    def events(self, event: str, **fields: Any) -> list[Json]:
        found = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [e for e in found if e["event"] == event and all(e[key] == value for key, value in fields.items())]

    def drafts(self, revision: int) -> int:
        return self.world.simulation.engines[f"decode-{revision}-0"].counters.drafts


BUSY = "traffic: {rate: 50, life: {median: 1}}\n"


def test_the_first_draft_of_each_revision_is_noted_once(tmp_path: Path) -> None:
    played = Played(tmp_path, BUSY)
    played.run(5)
    for revision in (1, 2):
        assert len(played.events("first_draft", revision=revision, **ARM)) == 1
        assert played.drafts(revision) > 100


def test_weights_are_noted_as_they_change_and_end_at_0(tmp_path: Path) -> None:
    played = Played(tmp_path, BUSY)
    assert [e["weight"] for e in played.events("weight", revision=2)] == [50.0]
    played.change(pod("router", 2, 0, going=True), "MODIFIED")
    played.change(pod("router", 2, 0, going=True), "DELETED")
    assert [(e["weight"], e["routers"]) for e in played.events("weight", revision=2)] == [(50.0, 1), (0.0, 0)]
    assert played.events("weight", revision=1)[-1]["weight"] == 100.0
    before = played.drafts(2)
    played.run(10)
    assert played.drafts(2) == before


def test_the_nth_failed_request_is_noted(tmp_path: Path) -> None:
    played = Played(tmp_path, BUSY + "rules: [{match: {revision: 2}, failing: 1}]\nfailEvents: [1, 5, 20]\n")
    played.run(5)
    assert [e["n"] for e in played.events("failed_request", revision=2)] == [1, 5, 20]
    assert played.events("failed_request", revision=1) == []
    assert played.events("first_draft", revision=2) == []


def test_a_fall_comes_so_long_after_the_first_draft(tmp_path: Path) -> None:
    played = Played(tmp_path, BUSY + "behaviour: {acceptance: [1]}\nrules: [{match: {after: 3}, acceptance: [0]}]\n")

    def accepted() -> int:
        return int(played.world.simulation.engines["decode-1-0"].counters.accepted[0])

    played.run(2.5)
    early = accepted()
    assert early == played.drafts(1)
    played.run(3)
    fallen = accepted()
    played.run(3)
    assert accepted() == fallen
    assert played.drafts(1) > fallen > early


def test_an_idle_revision_gets_no_request(tmp_path: Path) -> None:
    played = Played(tmp_path, BUSY + "rules: [{match: {revision: 2}, idle: true}]\n")
    played.world.reroute(played.now)
    played.run(5)
    assert played.drafts(2) == 0
    assert played.drafts(1) > 0


def test_counters_are_reset_as_often_as_asked(tmp_path: Path) -> None:
    played = Played(tmp_path, BUSY + "behaviour: {resetEvery: 2}\n")
    played.run(1.9)
    before = played.drafts(1)
    played.run(0.3)
    assert played.drafts(1) < before
    assert played.world.simulation.engines["decode-1-0"].counters.created == pytest.approx(1002.1, abs=0.15)


def test_a_restarted_container_counts_from_0(tmp_path: Path) -> None:
    played = Played(tmp_path, BUSY)
    played.run(3)
    again = pod("decode", 1, 0, args=ARGS)
    again["status"]["containerStatuses"][0]["restartCount"] = 1
    played.change(again, "MODIFIED")
    assert played.drafts(1) == 0


def test_clients_keep_to_their_router_where_traffic_is_split_by_connection(tmp_path: Path) -> None:
    played = Played(tmp_path, "traffic: {rate: 100, life: {median: 1}, split: connection, clients: 1}\n")
    played.run(3)
    taken = {uid: proxy.counters.total for uid, proxy in played.world.simulation.proxies.items()}
    assert sorted(taken.values())[0] == 0
    (chosen,) = (uid for uid, count in taken.items() if count)
    revision = int(chosen.split("-")[1])
    played.change(pod("router", revision, 0, going=True), "MODIFIED")
    played.run(3)
    assert played.world.simulation.proxies[f"router-{3 - revision}-0"].counters.total > 0


def test_a_page_says_what_its_pod_has_counted(tmp_path: Path) -> None:
    played = Played(tmp_path, BUSY + "rules: [{match: {revision: 2}, page: hang, routerPage: nan}]\n")
    played.run(3)
    assert f'vllm:spec_decode_num_drafts_total{{engine="0",model_name="model"}} {played.drafts(1)}.0' in (
        played.world.page("decode-1-0").text
    )
    assert played.world.page("decode-2-0").mode == "hang"
    assert played.world.page("router-2-0").mode == "nan"
