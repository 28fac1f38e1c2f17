"""The HTTP endpoint of the operator: `/metrics`, `/healthz` and `/readyz`."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from .health import Health


def application(
    registry: CollectorRegistry, health: Health, clock: Callable[[], float] = time.monotonic
) -> web.Application:
    """The three pages."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_request: web.Request) -> web.Response:
        return _answer(health.dead(clock()))

    async def readyz(_request: web.Request) -> web.Response:
        return _answer(health.unready())

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)])
    return app


def _answer(faults: list[str]) -> web.Response:
    return web.Response(text="\n".join(faults or ["ok"]) + "\n", status=503 if faults else 200)


async def serve(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Listen, and say on which port (``port`` 0 takes a free one). The runner's ``cleanup`` ends it.

    Raises:
        OSError: the address can't be bound.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    bound: int = runner.addresses[0][1]
    return runner, bound
