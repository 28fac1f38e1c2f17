from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from specdecode.scrape import Scraper, Target, fetch
from tests.unit.scrape import pages


class Pod:
    """A server of metrics on a loopback address; each path of `answers` is one behaviour."""

    def __init__(self) -> None:
        self.behaviour = "good"
        self.connections: set[int] = set()
        self.asked = 0
        self.hanging = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self.connections.add(id(request.transport))
        self.asked += 1
        match self.behaviour:
            case "good":
                return web.Response(text=pages.page())
            case "proxy":
                return web.Response(text=pages.PROXY)
            case "error":
                return web.Response(status=503)
            case "elsewhere":
                return web.Response(status=307, headers={"Location": "http://127.0.0.1:1/metrics"})
            case "binary":
                return web.Response(body=b"vllm:\xff\xfe\n")
            case "endless":
                response = web.StreamResponse()
                await response.prepare(request)
                while True:
                    await response.write(b"vllm:noise 1\n" * 10_000)
            case _:
                await self.hanging.wait()
                return web.Response()


@pytest_asyncio.fixture
async def pod() -> AsyncIterator[tuple[Pod, Target]]:
    pod = Pod()
    app = web.Application()
    app.router.add_get("/metrics", pod.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield pod, Target("canary", "uid", "127.0.0.1", runner.addresses[0][1])
    pod.hanging.set()
    await runner.cleanup()


async def test_a_page_becomes_samples_with_the_time_of_its_arrival(pod: tuple[Pod, Target]) -> None:
    async with Scraper(clock=lambda: 42.0) as scraper:
        (got,) = await scraper.scrape([pod[1]], 5.0)
    assert got.error is None
    assert [(s.t, s.arm, s.pod, s.drafts) for s in got.samples] == [(42.0, "canary", "uid", 100.0)]


async def test_a_proxy_s_page_is_read_as_one(pod: tuple[Pod, Target]) -> None:
    pod[0].behaviour = "proxy"
    target = Target("canary", "uid", pod[1].host, pod[1].port, "router")
    async with Scraper() as scraper:
        (got,) = await scraper.scrape([target], 5.0)
    assert [s.requests_failed for s in got.samples] == [7.0]


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("error", "status 503"),
        ("elsewhere", "status 307"),
        ("binary", "UnicodeDecodeError"),
        ("endless", "longer than"),
        ("hang", "timeout"),
    ],
)
async def test_whatever_a_pod_does_is_one_error(
    pod: tuple[Pod, Target], behaviour: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MAX_PAGE", 1_000_000)
    pod[0].behaviour = behaviour
    async with Scraper(clock=lambda: 7.0) as scraper:
        # Only what never ends is waited for; a machine that is busy answers everything else late.
        (got,) = await scraper.scrape([pod[1]], 0.3 if behaviour == "hang" else 30.0)
    assert got.samples == ()
    assert got.error is not None
    assert (got.error.t, got.error.arm, got.error.pod) == (7.0, "canary", "uid")
    assert why in got.error.error


async def test_a_pod_that_isn_t_there_is_one_error() -> None:
    async with Scraper() as scraper:
        (got,) = await scraper.scrape([Target("stable", "uid", "127.0.0.1", 1)], 1.0)
    assert got.error is not None
    assert "Connect" in got.error.error


async def test_one_connection_a_pod_is_kept(pod: tuple[Pod, Target]) -> None:
    async with Scraper(concurrency=2) as scraper:
        for _ in range(3):
            await scraper.scrape([pod[1], Target("stable", "gone", "127.0.0.1", 1)], 2.0)
    assert pod[0].asked == 3
    assert len(pod[0].connections) == 1


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert Target("stable", "uid", "fd00::1", 8000).url == "http://[fd00::1]:8000/metrics"
