"""List and watch, without any client library: independent of the code under test."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from tests.bed.api import Endpoint, Json, path_of

EventType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True)
class Change:
    """One change of an object, as the watch showed it.

    Attributes:
        at: Unix seconds when it arrived here.
        type: of the event; on DELETED the object is its last state.
        obj: the object.
    """

    at: float
    type: EventType
    obj: Json


class ExpiredError(Exception):
    """The resource version to watch from is too old: list again."""


def session(endpoint: Endpoint) -> aiohttp.ClientSession:
    """A session that authenticates to and verifies the API server."""
    return aiohttp.ClientSession(
        base_url=endpoint.server,
        headers={"Authorization": f"Bearer {endpoint.token}"},
        connector=aiohttp.TCPConnector(ssl=endpoint.ssl_context(), limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
    )


async def watch(
    client: aiohttp.ClientSession, kind: str, selector: str = "", listed_once: Callable[[], None] = lambda: None
) -> AsyncIterator[Change]:
    """Changes of all objects of a kind, in every namespace, beginning with those that exist; for ever.

    A cut connection or a kind that isn't served yet is tried again after a moment; what vanished meanwhile is
    reported as DELETED. `listed_once` is called when what existed at first has been yielded, or could not be listed.
    """
    known: dict[str, Json] = {}
    while True:
        try:
            listed = await _list(client, kind, selector)
            now = time.time()
            found = {item["metadata"]["uid"]: item for item in listed["items"]}
            for uid in known.keys() - found.keys():
                yield Change(now, "DELETED", known[uid])
            for uid, item in found.items():
                old = known.get(uid)
                if old is None:
                    yield Change(now, "ADDED", item)
                elif old["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
                    yield Change(now, "MODIFIED", item)
            known = found
            listed_once()
            async for change in _follow(client, kind, selector, listed["metadata"]["resourceVersion"]):
                uid = change.obj["metadata"]["uid"]
                if change.type == "DELETED":
                    known.pop(uid, None)
                else:
                    known[uid] = change.obj
                yield change
        except (aiohttp.ClientError, TimeoutError, ExpiredError, OSError):
            listed_once()
            await asyncio.sleep(0.5)


async def _list(client: aiohttp.ClientSession, kind: str, selector: str) -> Json:
    async with client.get(path_of(kind), params={"labelSelector": selector}) as answer:
        answer.raise_for_status()
        found: Json = await answer.json()
        return found


async def _follow(client: aiohttp.ClientSession, kind: str, selector: str, version: str) -> AsyncIterator[Change]:
    while True:
        params = {"watch": "1", "resourceVersion": version, "labelSelector": selector, "allowWatchBookmarks": "true"}
        async with client.get(path_of(kind), params=params) as answer:
            answer.raise_for_status()
            async for line in _lines(answer.content):
                event: dict[str, Any] = json.loads(line)
                if event["type"] == "ERROR":
                    raise ExpiredError(event["object"].get("message", ""))
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    yield Change(time.time(), event["type"], event["object"])


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    held = b""  # StreamReader's own line reading refuses lines above its buffer, and objects can be larger
    async for chunk in stream.iter_any():
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            yield line
