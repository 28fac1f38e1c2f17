"""Kubernetes Events about our resources: no duplicates within a while, never in the way of anything else."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from specdecode.rollout.types import EventNote
from specdecode.telemetry import Metrics

from .client import ApiError, Client, NotLeaderError
from .kinds import EVENT, SDD, Object

log: Final = logging.getLogger(__name__)

QUEUE: Final = 256
REPEAT: Final = 600.0
"""Seconds in which the same Event about the same resource isn't sent again."""
_REMEMBERED: Final = 4096
_MESSAGE: Final = 1024  # bytes that the API server takes
_COMPONENT: Final = "specdecode-operator"


class Recorder:
    """Sends Events in the background.

    Args:
        client: for the writes.
        metrics: counts Events that a full queue dropped.
        instance: this process's name.
        clock: Unix seconds.
    """

    def __init__(self, client: Client, metrics: Metrics, instance: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._metrics = metrics
        self._instance = instance
        self._clock = clock
        self._queue: asyncio.Queue[Object] = asyncio.Queue(QUEUE)
        self._sent: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def record(self, resource: Object, note: EventNote) -> None:
        """Queue an Event about a resource; returns at once."""
        now = self._clock()
        same = (resource["metadata"]["uid"], note.reason, note.message)
        if now - self._sent.get(same, float("-inf")) < REPEAT:
            return
        self._sent[same] = now
        self._sent.move_to_end(same)
        while len(self._sent) > _REMEMBERED:
            self._sent.popitem(last=False)
        try:
            self._queue.put_nowait(event(resource, note, self._instance, now))
        except asyncio.QueueFull:
            self._metrics.events_dropped.inc()

    async def run(self) -> None:
        """Send what is queued, for ever. An Event that is refused is logged and lost."""
        while True:
            queued = await self._queue.get()
            try:
                await self._client.create(queued)
            except (ApiError, NotLeaderError) as error:
                log.warning("an Event (%s) couldn't be recorded: %s", queued["reason"], error)
            finally:
                self._queue.task_done()

    async def drain(self, limit: float) -> None:
        """Wait until what is queued has been sent, ``limit`` seconds at most."""
        try:
            async with asyncio.timeout(limit):
                await self._queue.join()
        except TimeoutError:
            log.warning("%d Events were left unsent", self._queue.qsize())


def event(resource: Object, note: EventNote, instance: str, now: float) -> Object:
    """The Event's object."""
    metadata = resource["metadata"]
    at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"namespace": metadata["namespace"], "name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}"},
        "involvedObject": {
            "apiVersion": SDD.api_version,
            "kind": SDD.kind,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": note.type,
        "reason": note.reason,
        "message": _clip(note.message),
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "reportingInstance": instance,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def _clip(message: str) -> str:
    data = message.encode()
    return message if len(data) <= _MESSAGE else data[: _MESSAGE - 3].decode(errors="ignore") + "..."
