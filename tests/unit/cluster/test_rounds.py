from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, cast

import pytest

from specdecode.acceptance import ScrapeError
from specdecode.cluster.evidence import Aim, Evidence
from specdecode.cluster.rounds import Rounds
from specdecode.scrape import Scraped, Scraper, Target
from specdecode.telemetry import Metrics
from tests.unit.cluster.fakes import in_virtual_time


class FakeScraper:
    """Answers at once, and remembers when it was asked for whom."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, list[str]]] = []
        self.silent: set[str] = set()
        self.failing: set[str] = set()
        self.takes = 0.0

    async def scrape(self, targets: Iterable[Target], limit: float) -> list[Scraped]:
        targets = list(targets)
        self.asked.append((asyncio.get_running_loop().time(), [t.pod for t in targets]))
        self.limit = limit
        await asyncio.sleep(self.takes)
        return [
            Scraped(t, error=ScrapeError(0.0, t.arm, t.pod, "timeout") if t.pod in self.failing else None)
            for t in targets
        ]


class FakeEvidence:
    """Knows who has answered."""

    def __init__(self, scraper: FakeScraper) -> None:
        self.scraper = scraper
        self.answered: set[str] = set()
        self.looks = 0
        self.verdict_changes = False
        self.broken = False

    def unseen(self, aims: Iterable[Aim]) -> list[Aim]:
        return [aim for aim in aims if aim.target.pod not in self.answered]

    def take(self, aims: Iterable[Aim], scraped: Iterable[Scraped]) -> None:
        if self.broken:
            raise RuntimeError("indigestible")
        self.answered |= {got.target.pod for got in scraped} - self.scraper.silent

    def look(self, now: float) -> bool:
        self.looks += 1
        return self.verdict_changes


class World:
    def __init__(self) -> None:
        self.scraper = FakeScraper()
        self.evidence = FakeEvidence(self.scraper)
        self.metrics = Metrics("test")
        self.done: list[bool] = []
        self.rounds = Rounds(
            cast(Scraper, self.scraper), cast(Evidence, self.evidence), self.metrics, lambda: 0.0, self.done.append
        )


def play(script: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    """Run a script against rounds that have begun; time is virtual."""

    async def run() -> World:
        world = World()
        world.rounds.start("test")
        await script(world)
        await world.rounds.stop()
        return world

    return in_virtual_time(run())


def aim(name: str) -> Aim:
    return Aim(Target("stable", name, "127.0.0.9", 8000), 1, "decode", name)


def test_rounds_keep_their_beat() -> None:
    async def script(world: World) -> None:
        world.rounds.follow([aim("a")], 5.0)
        await asyncio.sleep(21.0)

    world = play(script)
    assert [at for at, _ in world.scraper.asked] == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert world.evidence.looks == 5
    assert world.scraper.limit == 4.0


def test_a_pod_whose_scrapes_fail_is_named_once_and_so_is_its_return(caplog: pytest.LogCaptureFixture) -> None:
    async def script(world: World) -> None:
        world.rounds.follow([aim("a"), aim("b")], 5.0)
        world.scraper.failing = {"b"}
        await asyncio.sleep(31.0)
        world.scraper.failing = set()
        await asyncio.sleep(10.0)

    caplog.set_level("INFO")
    play(script)
    said = [record.getMessage() for record in caplog.records if "scrapes of Pod" in record.getMessage()]
    assert said == ["test: scrapes of Pod b fail: timeout", "test: scrapes of Pod b succeed again"]


def test_one_failed_scrape_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def script(world: World) -> None:
        world.rounds.follow([aim("a")], 5.0)
        for failing in ({"a"}, set(), {"a"}, set()):
            world.scraper.failing = failing
            await asyncio.sleep(10.0)

    caplog.set_level("INFO")
    play(script)
    assert "scrapes of Pod" not in caplog.text


def test_rounds_come_in_pairs_and_the_beat_stays() -> None:
    async def script(world: World) -> None:
        world.rounds.follow([aim("a")], 30.0, 5.0)
        await asyncio.sleep(70.0)

    world = play(script)
    assert [at for at, _ in world.scraper.asked] == [0.0, 5.0, 30.0, 35.0, 60.0, 65.0]
    assert world.scraper.limit == 4.0


def test_pairs_end_where_a_canary_begins_and_begin_again_after_it() -> None:
    async def script(world: World) -> None:
        world.rounds.follow([aim("a")], 30.0, 5.0)
        await asyncio.sleep(12.0)
        world.rounds.follow([aim("a")], 2.0)
        await asyncio.sleep(5.0)
        world.rounds.follow([aim("a")], 30.0, 5.0)
        await asyncio.sleep(60.0)

    asked = [at for at, _ in play(script).scraper.asked]
    assert asked[:4] == [0.0, 5.0, 14.0, 16.0]
    # One more is due from the canary's beat; then pairs again.
    assert [b - a for a, b in itertools.pairwise(asked[4:])] == [5.0, 25.0, 5.0]


def test_a_slow_round_makes_the_next_one_late_not_early() -> None:
    async def script(world: World) -> None:
        world.scraper.takes = 7.0
        world.rounds.follow([aim("a")], 5.0)
        await asyncio.sleep(20.0)

    assert [at for at, _ in play(script).scraper.asked] == [0.0, 7.0, 14.0]


def test_a_new_pod_is_scraped_at_once_alone_and_without_a_look() -> None:
    async def script(world: World) -> None:
        world.rounds.follow([aim("a")], 30.0)
        await asyncio.sleep(10.0)
        world.rounds.follow([aim("a"), aim("b")], 30.0)
        await asyncio.sleep(15.0)

    world = play(script)
    assert world.scraper.asked == [(0.0, ["a"]), (10.0, ["b"])]
    assert world.evidence.looks == 1
    assert world.done == [True, True]


def test_a_pod_that_doesn_t_answer_is_asked_again_soon_and_is_no_news() -> None:
    async def script(world: World) -> None:
        world.scraper.silent = {"a"}
        world.rounds.follow([aim("a")], 30.0)
        await asyncio.sleep(3.5)

    world = play(script)
    assert [at for at, _ in world.scraper.asked] == [0.0, 1.0, 2.0, 3.0]
    assert world.done == [False]


def test_however_often_it_is_kicked_nobody_is_hammered() -> None:
    async def script(world: World) -> None:
        world.scraper.silent = {"a"}
        for _ in range(300):
            world.rounds.follow([aim("a")], 30.0)
            await asyncio.sleep(0.01)

    assert len(play(script).scraper.asked) <= 4


def test_a_faster_beat_begins_now() -> None:
    async def script(world: World) -> None:
        world.rounds.follow([aim("a")], 30.0)
        await asyncio.sleep(10.0)
        world.rounds.follow([aim("a")], 2.0)
        await asyncio.sleep(5.0)

    assert [at for at, _ in play(script).scraper.asked] == [0.0, 12.0, 14.0]


def test_a_verdict_that_changes_is_news() -> None:
    async def script(world: World) -> None:
        world.rounds.follow([aim("a")], 5.0)
        await asyncio.sleep(6.0)
        world.evidence.verdict_changes = True
        await asyncio.sleep(5.0)

    assert play(script).done == [True, False, True]


def test_evidence_that_breaks_ends_one_round_only(caplog: pytest.LogCaptureFixture) -> None:
    async def script(world: World) -> None:
        world.evidence.broken = True
        world.rounds.follow([aim("a")], 30.0)
        await asyncio.sleep(0.5)
        assert world.done == []
        world.evidence.broken = False
        await asyncio.sleep(1.0)

    assert play(script).done == [True]
    assert "couldn't be used" in caplog.text


def test_scrapes_are_counted() -> None:
    async def script(world: World) -> None:
        world.rounds.follow([aim("a"), aim("b")], 30.0)
        await asyncio.sleep(1.0)

    value = play(script).metrics.registry.get_sample_value
    assert value("specdecode_scrapes_total", {"source": "engine", "result": "ok"}) == 2.0
