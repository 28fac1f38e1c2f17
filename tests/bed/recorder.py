"""Watches the objects that the invariants speak of, and keeps every change of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Final

from tests.bed.api import Endpoint, Json
from tests.bed.audit import requests
from tests.bed.control_plane import Bed
from tests.bed.invariants import Breach, Recorded, judge
from tests.bed.processes import BedError, wait_for
from tests.bed.running import Running
from tests.bed.watch import session, watch

KINDS: Final = ("Pod", "StatefulSet", "Deployment", "Service", "ConfigMap", "HTTPRoute", "SpecDecodeDeployment")


class Recorder(Running):
    """Records from `start` to `stop`, in a thread of its own."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self.changes: list[Recorded] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._task: asyncio.Task[None] | None = None
        self._listed: set[str] = set()

    def start(self) -> None:
        """Returns once all that exists has been seen."""
        self._thread.start()
        wait_for("the recorder's first lists", lambda: self._listed >= set(KINDS), 20, pause=0.01)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._cancel)
            self._thread.join(10)

    def breaches(self, user: str, *, since: float = 0.0) -> list[Breach]:
        """Every breach of invariants 1 and 2 by a write of this user so far.

        Raises:
            BedError: the watches do not keep up with the API server.
        """
        writes = [request for request in requests(self._bed.audit_log, user=user, since=since) if request.is_write]
        if writes:
            self._catch_up()
        return judge(list(self.changes), writes)

    def _catch_up(self) -> None:
        """Waits until a change made now has been seen: then all changes before it were, too."""
        stamp = str(time.time())
        mark: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bed-mark", "namespace": "default"}}
        self._bed.api.apply(mark | {"data": {"at": stamp}})
        deadline = time.monotonic() + 10
        while not any(found.obj.get("data", {}).get("at") == stamp for found in reversed(self.changes[-200:])):
            if time.monotonic() > deadline:
                raise BedError("the recorder's watches lag more than 10 s behind the API server")
            time.sleep(0.05)
        time.sleep(0.2)  # each kind has a watch of its own

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._record())
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _record(self) -> None:
        endpoint = Endpoint.from_kubeconfig(self._bed.kubeconfig_of("bed:recorder"))
        async with session(endpoint) as client:

            async def follow(kind: str) -> None:
                async for change in watch(client, kind, listed_once=lambda: self._listed.add(kind)):
                    change.obj["metadata"].pop("managedFields", None)
                    self.changes.append(Recorded(change.at, change.type, kind, change.obj))

            await asyncio.gather(*(follow(kind) for kind in KINDS))
