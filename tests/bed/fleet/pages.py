"""Serves /metrics on each simulated Pod's own address: a small HTTP/1.1 server that can also misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

GARBAGE: Final = (
    "<html><body>\x00\x01 502 Bad Gateway \xff {{{ not metrics\n vllm:spec_decode_num_drafts_total{ 12 ,,\n"
)
HUGE_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Page:
    """What a GET /metrics is answered with: `mode` as in `Behaviour.page`, after `delay` seconds."""

    text: str
    mode: str = "ok"
    delay: float = 0.0


class _Connection(asyncio.Protocol):
    def __init__(self, server: PodServer) -> None:
        self._server = server
        self._held = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._server.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._held += data
        while b"\r\n\r\n" in self._held:
            head, self._held = self._held.split(b"\r\n\r\n", 1)
            words = head.split(b"\r\n", 1)[0].split(b" ")
            self._answer(words[1].decode("latin-1") if len(words) == 3 else "")

    def _answer(self, path: str) -> None:
        if path.split("?")[0] != "/metrics":
            self._send(200 if path in ("/health", "/readiness", "/liveness") else 404, "")
            return
        page = self._server.page()
        if page.mode == "hang":
            return
        if page.delay:
            asyncio.get_running_loop().call_later(page.delay, self._send_page, page)
        else:
            self._send_page(page)

    def _send_page(self, page: Page) -> None:
        match page.mode:
            case "error":
                self._send(500, "Internal Server Error")
            case "garbage":
                self._send(200, GARBAGE)
            case "empty":
                self._send(200, "")
            case "truncated":
                self._send(200, page.text, cut=len(page.text) // 2)
            case "huge":
                self._send(200, "# " + "x" * HUGE_BYTES)
            case _:
                self._send(200, page.text)

    def _send(self, status: int, text: str, cut: int | None = None) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        body = text.encode("utf-8", "replace")
        reason = {200: "OK", 404: "Not Found", 500: "Internal Server Error"}[status]
        head = (
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        transport.write(head.encode() + (body if cut is None else body[:cut]))
        if cut is not None:
            transport.close()


class PodServer:
    """Listens on one Pod's address and port until it is closed; closing cuts what is open, as a Pod's end does."""

    def __init__(self, page: Callable[[], Page]) -> None:
        self.page = page
        self.connections: set[asyncio.Transport] = set()
        self._server: asyncio.Server | None = None
        self._closed = False

    async def listen(self, address: str, port: int) -> None:
        """Raises OSError where the address can't be bound."""
        loop = asyncio.get_running_loop()
        for attempt in range(20):  # the Pod that had this address before may be closing just now
            try:
                self._server = await loop.create_server(lambda: _Connection(self), address, port, reuse_address=True)
                break
            except OSError:
                if attempt == 19 or self._closed:
                    raise
                await asyncio.sleep(0.05)
        if self._closed:
            self.close()

    def close(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        for transport in list(self.connections):
            with contextlib.suppress(Exception):
                transport.abort()
