from __future__ import annotations

import asyncio
from typing import Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode.cluster.client import ApiError, Client, NotLeaderError
from specdecode.cluster.kinds import Kind, Object
from specdecode.cluster.lease import Elector, LeaseSettings
from tests.unit.cluster.fakes import Clock


class Server:
    """One Lease, with the API server's optimistic locking."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.version = 0
        self.down = False
        self.mute = False
        """What is written is kept, and its answer lost."""
        self.twice: list[bool] = []
        """For each of the next writes, whether it arrives twice, the answer to the first being lost."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        self._answer()
        if self.lease is None:
            raise ApiError(404, "NotFound", "none")
        return cast(Object, self.lease | {"metadata": dict(self.lease["metadata"])})

    async def lease_call(self, method: str, body: Object) -> Object:
        self._answer()
        if method == "POST" and self.lease is not None:
            raise ApiError(409, "AlreadyExists", "exists")
        if method == "PUT":
            assert self.lease is not None
            if body["metadata"].get("resourceVersion") != self.lease["metadata"]["resourceVersion"]:
                raise ApiError(409, "Conflict", "modified")
        self.version += 1
        self.lease = body | {"metadata": body["metadata"] | {"resourceVersion": str(self.version)}}
        if self.twice and self.twice.pop(0):
            raise ApiError(409, "Conflict", "modified")
        if self.mute:
            raise ApiError(0, "Timeout", "no answer within 5 s")
        return self.lease

    def _answer(self) -> None:
        if self.down:
            raise ApiError(0, "Unreachable", "no route")

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])


class Proxy:
    """What an elector sees of the server."""

    def __init__(self, server: Server) -> None:
        self.get = server.get
        self.lease = server.lease_call


def elector(server: Server, clock: Clock, identity: str) -> Elector:
    settings = LeaseSettings("ns", "op", identity, duration=15.0, retry=2.0)
    return Elector(cast(Client, Proxy(server)), settings, clock=clock)


@pytest.fixture
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waiting yield only; time passes by the fake clock."""
    real = asyncio.sleep

    async def sleep(_seconds: float) -> None:
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)


async def round_of(each: Elector) -> bool:
    return await each._round()


async def test_the_first_gets_it_and_the_second_waits() -> None:
    server, clock = Server(), Clock()
    a, b = elector(server, clock, "a"), elector(server, clock, "b")
    assert await round_of(a)
    assert not await round_of(b)
    assert (a.leading, b.leading, server.holder) == (True, False, "a")
    a.permit()
    with pytest.raises(NotLeaderError):
        b.permit()


async def test_a_holder_that_falls_silent_may_not_write_long_before_another_may() -> None:
    server, clock = Server(), Clock()
    a, b = elector(server, clock, "a"), elector(server, clock, "b")
    await round_of(a)
    await round_of(b)
    clock.now += 10.0
    assert not a.leading
    assert not await round_of(b)
    clock.now += 4.9
    assert not await round_of(b)
    clock.now += 0.2
    assert await round_of(b)
    assert (a.leading, b.leading, server.holder) == (False, True, "b")
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 1


async def test_renewals_keep_it() -> None:
    server, clock = Server(), Clock()
    a, b = elector(server, clock, "a"), elector(server, clock, "b")
    for _ in range(20):
        assert await round_of(a)
        assert not await round_of(b)
        clock.now += 5.0


async def test_the_time_in_the_lease_is_not_believed_only_that_it_changes() -> None:
    """Clocks of two machines may disagree by hours."""
    server, clock = Server(), Clock()
    a, b = elector(server, clock, "a"), elector(server, clock, "b")
    await round_of(a)
    assert server.lease is not None
    server.lease["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"
    assert not await round_of(b)


async def test_a_refused_renewal_is_survived_until_the_deadline(no_sleep: None) -> None:
    server, clock = Server(), Clock()
    a = elector(server, clock, "a")
    await a.acquire()
    server.down = True
    clock.now += 4.0
    assert not await round_of(a)
    assert a.leading
    server.down = False
    assert await round_of(a)
    server.down = True
    clock.now += 10.0
    await a.hold()
    assert not a.leading


async def test_a_renewal_whose_answer_was_lost_doesn_t_lose_the_lease() -> None:
    server, clock = Server(), Clock()
    a, b = elector(server, clock, "a"), elector(server, clock, "b")
    await round_of(a)
    server.mute = True
    clock.now += 2.0
    assert not await round_of(a)
    server.mute = False
    clock.now += 2.0
    assert await round_of(a)
    assert (a.leading, server.holder) == (True, "a")
    assert not await round_of(b)
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 0


Answer = Literal["right", "no", "lost", "twice", "twice twice"]


@given(st.lists(st.sampled_from(["no", "lost", "twice", "twice twice"]), max_size=4), st.integers(1, 3))
def test_whatever_becomes_of_the_answers_a_lease_that_nobody_else_took_isn_t_lost(
    faults: list[Answer], every: int
) -> None:
    """A client that tries again by itself meets its own first try as a conflict, as often as it happens."""
    server, clock = Server(), Clock()
    a, b = elector(server, clock, "a"), elector(server, clock, "b")

    async def days() -> None:
        assert await round_of(a)
        for fault in faults:
            clock.now += 2.0
            server.down, server.mute = fault == "no", fault == "lost"
            server.twice = [True] * {"twice": 1, "twice twice": 2}.get(fault, 0)
            await round_of(a)
            assert a.leading
            assert a._held is not None
            server.down, server.mute, server.twice = False, False, []
            if clock.now % every == 0:
                assert not await round_of(b)
        clock.now += 1.0
        assert await round_of(a)
        assert server.holder == "a"

    asyncio.run(days())


async def test_a_lease_that_somebody_else_has_taken_is_lost_at_once(no_sleep: None) -> None:
    server, clock = Server(), Clock()
    a, b = elector(server, clock, "a"), elector(server, clock, "b")
    await a.acquire()
    await round_of(b)
    clock.now += 16.0
    await round_of(b)
    await a.hold()
    assert not a.leading
    assert b.leading


async def test_what_is_released_is_free_at_once() -> None:
    server, clock = Server(), Clock()
    a, b = elector(server, clock, "a"), elector(server, clock, "b")
    await round_of(a)
    await a.release()
    assert not a.leading
    assert server.holder == ""
    assert await round_of(b)
    await a.release()
    assert server.holder == "b"


async def test_what_was_taken_without_an_answer_is_released_too() -> None:
    server, clock = Server(), Clock()
    a = elector(server, clock, "a")
    await a.release()  # there is no Lease yet
    server.mute = True
    assert not await round_of(a)
    assert server.holder == "a"
    server.mute = False
    await a.release()
    assert server.holder == ""


async def test_a_renewal_without_an_answer_is_released_too() -> None:
    server, clock = Server(), Clock()
    a = elector(server, clock, "a")
    assert await round_of(a)
    server.mute = True
    await round_of(a)
    server.mute = False
    await a.release()
    assert server.holder == ""


async def test_only_one_of_many_wins_a_race() -> None:
    server, clock = Server(), Clock()
    contenders = [elector(server, clock, str(i)) for i in range(8)]
    won = await asyncio.gather(*(round_of(each) for each in contenders))
    assert sum(won) == 1
    assert sum(each.leading for each in contenders) == 1


async def test_each_round_is_a_sign_of_life() -> None:
    beats: list[Any] = []
    server = Server()
    settings = LeaseSettings("ns", "op", "a")
    each = Elector(cast(Client, Proxy(server)), settings, beat=lambda: beats.append(1))
    await round_of(each)
    server.down = True
    await round_of(each)
    assert len(beats) == 2


def test_a_duration_too_short_for_a_last_request_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--lease-duration 6 is too short.* give at least 11"):
        LeaseSettings("ns", "op", "a", duration=6.0)
