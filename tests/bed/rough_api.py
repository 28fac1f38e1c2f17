"""An API server on a bad day: it passes requests on, but refuses some, loses some answers and cuts watches."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp
from aiohttp import web

from tests.bed.api import Endpoint
from tests.bed.control_plane import Bed

_KEPT: Final = {"authorization", "content-type", "accept", "user-agent"}
_CUT_AFTER: Final = (2.0, 8.0)
"""Seconds that a watch lives, at least and at most."""


class RoughApi:
    """A proxy of a bed's API server, over HTTP, in a thread of its own.

    Attributes:
        done: how often it did what: `passed`, `429`, `500`, `answer lost`, `watch cut`.
    """

    def __init__(self, bed: Bed, share: float, seed: int = 1) -> None:
        """``share`` of all requests that aren't watches goes wrong, in equal parts: refused with 429 or 500, or done
        with the answer lost."""
        self._bed = bed
        self._share = share
        self._chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._up = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._port = bed.network.free_port()

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._up.wait(30):
            raise TimeoutError("the rough API server didn't come up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)

    def kubeconfig_of(self, user: str) -> Path:
        """Path of a kubeconfig for one of the bed's users that leads through here."""
        real = Endpoint.from_kubeconfig(self._bed.kubeconfig_of(user))
        path = self._bed.state / f"rough-{self._port}.kubeconfig"
        path.write_text(
            dataclasses.replace(real, server=f"http://{self._bed.network.host}:{self._port}").to_kubeconfig()
        )
        path.chmod(0o600)
        return path

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        real = Endpoint.from_kubeconfig(self._bed.kubeconfig)
        connector = aiohttp.TCPConnector(ssl=real.ssl_context(), limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            self._session, self._server = session, real.server
            application = web.Application(client_max_size=1 << 26)
            application.router.add_route("*", "/{path:.*}", self._pass_on)
            runner = web.AppRunner(application, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, self._bed.network.host, self._port).start()
            self._up.set()
            await self._end.wait()
            await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        watches = request.query.get("watch") in ("1", "true")
        fault = "" if watches or self._chance.random() >= self._share else self._chance.choice(("429", "500", "lost"))
        if fault in ("429", "500"):
            self.done[fault] += 1
            return web.json_response(_refusal(int(fault)), status=int(fault), headers={"Retry-After": "1"})
        headers = {name: value for name, value in request.headers.items() if name.lower() in _KEPT}
        body = await request.read() or None
        limit = aiohttp.ClientTimeout(total=self._chance.uniform(*_CUT_AFTER) if watches else 60.0)
        url = self._server + request.raw_path
        async with self._session.request(request.method, url, headers=headers, data=body, timeout=limit) as answer:
            if fault:
                await answer.read()
                self.done["answer lost"] += 1
                _cut(request)
                return web.Response(status=500)
            content = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
            if not watches:
                self.done["passed"] += 1
                return web.Response(status=answer.status, body=await answer.read(), headers=content)
            stream = web.StreamResponse(status=answer.status, headers=content)
            await stream.prepare(request)
            with contextlib.suppress(TimeoutError, aiohttp.ClientError, ConnectionError):
                async for chunk in answer.content.iter_any():
                    await stream.write(chunk)
            self.done["watch cut"] += 1
            _cut(request)
            return stream


def _refusal(code: int) -> dict[str, object]:
    reason = {429: "TooManyRequests", 500: "InternalError"}[code]
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "it is a bad day",
        "reason": reason,
        "code": code,
    }


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
