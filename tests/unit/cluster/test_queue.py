from __future__ import annotations

import asyncio

import pytest

from specdecode.cluster.queue import BASE, MOST, QueueClosedError, WorkQueue, backoff


class Clock:
    """Monotonic seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(clock, draw=lambda: 0.5)


async def taken(queue: WorkQueue[str]) -> str | None:
    """The next key, or None if there is none now."""
    task = asyncio.ensure_future(queue.take())
    for _ in range(3):
        await asyncio.sleep(0)
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


async def test_a_key_added_often_is_taken_once_in_order() -> None:
    queue = make(Clock())
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert [await taken(queue), await taken(queue), await taken(queue)] == ["a", "b", None]


async def test_a_key_at_a_worker_waits_for_it_and_comes_back_once() -> None:
    queue = make(Clock())
    queue.add("a")
    assert await taken(queue) == "a"
    queue.add("a")
    queue.add("a")
    assert await taken(queue) is None
    queue.done("a")
    assert await taken(queue) == "a"
    queue.done("a")
    assert await taken(queue) is None


async def test_a_waiting_worker_is_woken() -> None:
    queue = make(Clock())
    worker = asyncio.ensure_future(queue.take())
    other = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    queue.add("a")
    queue.add("b")
    assert {await worker, await other} == {"a", "b"}


async def test_a_later_key_comes_when_it_is_due_and_the_sooner_time_counts() -> None:
    clock = Clock()
    queue = make(clock)
    queue.add_after("a", 10.0)
    queue.add_after("a", 5.0)
    queue.add_after("a", 20.0)
    clock.now = 4.9
    assert await taken(queue) is None
    clock.now = 5.0
    assert await taken(queue) == "a"
    queue.done("a")
    clock.now = 30.0
    assert await taken(queue) is None


async def test_failures_back_off_by_key_until_a_success() -> None:
    clock = Clock()
    queue = make(clock)
    waits = [queue.failed("a") for _ in range(3)]
    assert waits == [pytest.approx(BASE * 2.0**i * 0.75) for i in range(3)]
    assert queue.failed("b") == pytest.approx(BASE * 0.75)
    queue.succeeded("a")
    assert queue.failed("a") == pytest.approx(BASE * 0.75)
    assert queue.failed("a", at_least=30.0) == 30.0


def test_back_off_is_bounded_and_jittered() -> None:
    assert backoff(1, 0.0) == BASE / 2
    assert backoff(1000, 0.0) == MOST / 2
    assert backoff(1000, 0.999) < MOST


async def test_a_forgotten_key_is_no_longer_due() -> None:
    clock = Clock()
    queue = make(clock)
    queue.add_after("a", 1.0)
    queue.forget("a")
    clock.now = 2.0
    assert await taken(queue) is None


async def test_a_closed_queue_sends_its_workers_home() -> None:
    queue = make(Clock())
    worker = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    queue.close()
    with pytest.raises(QueueClosedError):
        await worker


async def test_the_depth_is_told() -> None:
    depths: list[int] = []
    queue: WorkQueue[str] = WorkQueue(Clock(), depths.append)
    queue.add("a")
    queue.add("b")
    await queue.take()
    assert depths == [1, 2, 1]
