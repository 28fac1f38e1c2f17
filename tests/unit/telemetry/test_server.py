from __future__ import annotations

import aiohttp
import pytest

from specdecode.telemetry import Health, Metrics
from specdecode.telemetry.server import application, serve


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def test_the_three_pages() -> None:
    metrics, health = Metrics("9.9"), Health()
    runner, port = await serve(application(metrics.registry, health, lambda: 100.0), "127.0.0.1", 0)
    try:
        status, text = await get(port, "/metrics")
        assert status == 200
        assert 'specdecode_build_info{python="' in text
        assert await get(port, "/healthz") == (200, "ok\n")
        assert await get(port, "/readyz") == (200, "ok\n")
        health.expect("loop", 10.0, 0.0)
        health.wait("caches", "not filled yet")
        assert await get(port, "/healthz") == (503, "loop: nothing for 100 s, at most 10 s are usual\n")
        assert await get(port, "/readyz") == (503, "caches: not filled yet\n")
        assert (await get(port, "/"))[0] == 404
        with pytest.raises(OSError, match="address already in use"):
            await serve(application(metrics.registry, health), "127.0.0.1", port)
    finally:
        await runner.cleanup()
