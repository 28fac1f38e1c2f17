"""Periodic lists: what watches may have lost, and the first sight of the cluster.

A watch that was cut tells nothing of objects deleted meanwhile, and kopf doesn't make up for it. Each list is
compared with the store. Lists are also the evidence that a quiet kind's watch isn't simply dead.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from specdecode.telemetry import Health

from .client import ApiError, Client
from .kinds import HTTP_ROUTE, SDD, WATCHED, Kind, selector
from .store import Store

log: Final = logging.getLogger(__name__)

_FIRST_RETRY: Final = 1.0
_LAST_RETRY: Final = 30.0
_POLL: Final = 5.0
"""Seconds between lists of a kind that isn't watched."""


class Relister:
    """Lists every kind, into the store.

    Args:
        client: for the lists.
        store: takes them in.
        health: a heartbeat for each kind.
        namespaces: those that are served; empty for all.
        period: seconds between lists.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        store: Store,
        health: Health,
        namespaces: tuple[str, ...],
        period: float,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._store = store
        self._health = health
        self._namespaces = namespaces
        self._period = period
        self._clock = clock
        self.kinds: tuple[Kind, ...] = WATCHED
        self.gateway = False
        """Whether the cluster serves HTTPRoutes."""
        self._begun = False
        self._unwatched: tuple[Kind, ...] = ()

    async def prime(self) -> None:
        """List everything once, however long it takes until the API server lets us; says what it waits for."""
        await self._retry("discovery", self.discover)
        for kind in self.kinds:
            await self._retry(kind.plural, functools.partial(self.list, kind))
            self._health.expect(f"watch of {kind.plural}", 2.0 * self._period + 60.0, self._clock())
        self._begun = True

    async def run(self) -> None:
        """List every kind again each period, for ever."""
        due = self._clock() + self._period
        while True:
            wait = due - self._clock()
            await asyncio.sleep(min(wait, _POLL) if self._unwatched else wait)
            whole = self._clock() >= due
            if whole:
                due = self._clock() + self._period
                try:
                    await self.discover()
                except ApiError as error:
                    log.warning("discovery failed: %s", error)
            for kind in self.kinds if whole else self._unwatched:
                try:
                    gone = await self.list(kind)
                except ApiError as error:
                    log.warning("%s couldn't be listed: %s", kind.plural, error)
                    continue
                if gone and kind not in self._unwatched:
                    log.info("%d %s had gone unseen", gone, kind.plural)

    async def discover(self) -> None:
        """Find out whether HTTPRoutes are served.

        Raises:
            ApiError: the API server doesn't say.
        """
        try:
            found = await self._client.read(HTTP_ROUTE.root)
        except ApiError as error:
            if error.status != 404:
                raise
            found = {}
        served = any(item.get("name") == HTTP_ROUTE.plural for item in found.get("resources") or [])
        if served and not self.gateway:
            self.kinds = (*WATCHED, HTTP_ROUTE)
            self.gateway = True
            if self._begun:
                # Watches are begun once, at the start; until the next one lists have to do.
                self._unwatched = (HTTP_ROUTE,)
            for key in self._store.resources():
                self._store.touch(key)

    async def list(self, kind: Kind) -> int:
        """List one kind into the store; how many objects had gone unseen.

        Raises:
            ApiError: the list was refused.
        """
        gone = 0
        for namespace in self._namespaces or (None,):
            found, version = await self._client.list_all(kind, namespace, selector(kind))
            gone += self._store.settle(kind, found, version, (namespace,) if namespace else ())
        self._health.beat(f"watch of {kind.plural}", self._clock())
        return gone

    async def _retry(self, what: str, attempt: Callable[[], Awaitable[object]]) -> None:
        delay = _FIRST_RETRY
        self._health.wait(what, "not listed yet")
        while True:
            try:
                await attempt()
            except ApiError as error:
                hint = f"; grant the operator get, list and watch on {what}" if error.status == 403 else ""
                if error.status == 404 and what == SDD.plural:
                    hint = "; install the CRD"
                log.warning("waiting for %s: %s%s", what, error, hint)
                self._health.wait(what, f"{error}{hint}")
                await asyncio.sleep(delay)
                delay = min(_LAST_RETRY, 2.0 * delay)
                continue
            self._health.done(what)
            return
