"""The pages' server answers as a Pod does, well or ill, and ends as one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.bed.fleet.pages import GARBAGE, Page, PodServer
from tests.bed.processes import LoopbackNetwork

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def serving(page: Page) -> AsyncIterator[tuple[PodServer, asyncio.StreamReader, asyncio.StreamWriter]]:
    network = LoopbackNetwork.take()
    server = PodServer(lambda: page)
    try:
        port = network.free_port()
        await server.listen(network.host, port)
        reader, writer = await asyncio.open_connection(network.host, port)
        yield server, reader, writer
        writer.close()
    finally:
        server.close()
        network.release()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split(b" ")[1]), await asyncio.wait_for(reader.readexactly(length), 5)


@pytest.mark.parametrize(
    ("mode", "status", "body"),
    [
        ("ok", 200, b"a 1\n"),
        ("nan", 200, b"a 1\n"),
        ("empty", 200, b""),
        ("error", 500, b"Internal Server Error"),
        ("garbage", 200, GARBAGE.encode()),
    ],
)
async def test_each_mode_answers_in_its_way_and_the_connection_lives_on(mode: str, status: int, body: bytes) -> None:
    async with serving(Page("a 1\n", mode)) as (_, reader, writer):
        for _ in range(2):
            writer.write(GET)
            assert await answer(reader) == (status, body)


async def test_other_paths_are_health_or_nothing() -> None:
    async with serving(Page("")) as (_, reader, writer):
        writer.write(GET.replace(b"/metrics", b"/health") + GET.replace(b"/metrics", b"/secret"))
        assert (await answer(reader))[0] == 200
        assert (await answer(reader))[0] == 404


async def test_a_truncated_page_ends_early() -> None:
    async with serving(Page("x" * 100, "truncated")) as (_, reader, writer):
        writer.write(GET)
        with pytest.raises(asyncio.IncompleteReadError):
            await answer(reader)


async def test_a_hanging_page_never_comes_and_the_end_of_the_pod_cuts_it() -> None:
    async with serving(Page("", "hang")) as (server, reader, writer):
        writer.write(GET)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        server.close()
        assert await asyncio.wait_for(reader.read(1), 5) == b""
