"""Leader election by a Lease: one process writes, the others keep warm caches.

The holder renews every few seconds. Once it has failed to for longer than the renew deadline it may not write any
more, although others wait for the whole duration, so that its last request is over before another begins. Both sides
measure time by their own monotonic clocks from what they saw, so clocks that disagree do no harm. The scheme is that
of client-go's `leaderelection`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from .client import TIMEOUT, ApiError, Client, NotLeaderError
from .kinds import LEASE, Object

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Which Lease, and its times in seconds."""

    namespace: str
    name: str
    identity: str
    duration: float = 15.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        """Raise ValueError where a last write could outlive the Lease."""
        if self.duration < TIMEOUT + 3.0 * self.retry:
            raise ValueError(
                f"--lease-duration {self.duration:g} is too short: with a retry every {self.retry:g} s and requests of "
                f"up to {TIMEOUT:g} s, give at least {TIMEOUT + 3.0 * self.retry:g}"
            )

    @property
    def deadline(self) -> float:
        """Seconds after its last renewal in which the holder may still begin a write."""
        return self.duration - TIMEOUT


class Elector:
    """Holds the Lease, or waits for it.

    Args:
        client: its `lease` call is the only one used.
        settings: which Lease.
        beat: called after each round, for liveness.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        settings: LeaseSettings,
        beat: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._beat = beat
        self._clock = clock
        self._until = float("-inf")
        self._seen: tuple[object, ...] | None = None
        self._seen_at = 0.0
        self._held: Object | None = None

    @property
    def leading(self) -> bool:
        """Whether a write may begin at this moment."""
        return self._clock() < self._until

    def permit(self) -> None:
        """Raise `NotLeaderError` unless a write may begin at this moment."""
        if not self.leading:
            raise NotLeaderError("the Lease isn't ours at this moment")

    async def acquire(self) -> None:
        """Wait until the Lease is ours."""
        s = self._settings
        while True:
            if await self._round():
                break
            await asyncio.sleep(s.retry)
        log.info("holding the Lease %s/%s as %s", s.namespace, s.name, s.identity)

    async def hold(self) -> None:
        """Renew the Lease until it is lost; then return."""
        while True:
            await asyncio.sleep(self._settings.retry)
            renewed = await self._round()
            if not renewed and (self._held is None or not self.leading):
                self._until = float("-inf")
                return

    async def release(self) -> None:
        """Give the Lease back, so that the next process needn't wait for its end. No write may follow."""
        s = self._settings
        self._held, self._until = None, float("-inf")
        try:
            # What is held may be newer than we know, or held without our knowing: the last attempt may have been cut
            # short before its answer.
            held = await self._client.get(LEASE, s.namespace, s.name)
            if (held.get("spec") or {}).get("holderIdentity") != s.identity:
                return
            spec = held["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._client.lease("PUT", held | {"spec": spec})
        except ApiError as error:
            if error.status != 404:
                log.warning("the Lease couldn't be given back, others wait for its end: %s", error)

    async def _round(self) -> bool:
        """Try once to get or keep the Lease; whether it is ours."""
        self._beat()
        began = self._clock()
        try:
            ours = await self._renew() if self._held is not None else await self._take()
        except ApiError as error:
            level = logging.DEBUG if error.status == 409 else logging.WARNING
            log.log(level, "no answer to holding the Lease: %s", error)
            return False
        if ours is None:
            return False
        self._held = ours
        self._until = began + self._settings.deadline
        return True

    async def _renew(self) -> Object:
        s, held = self._settings, self._held
        assert held is not None
        try:
            return await self._client.lease("PUT", _renewed(held))
        except ApiError as error:
            if error.status != 409:
                raise
            # A renewal whose answer got lost stands all the same: what we hold may only be an older version of it.
            found = await self._client.get(LEASE, s.namespace, s.name)
            if (found.get("spec") or {}).get("holderIdentity") != s.identity:
                self._held = None
                raise
            # Should the next answer get lost too, this is one missed round and no loss of the Lease.
            self._held = found
        return await self._client.lease("PUT", _renewed(found))

    async def _take(self) -> Object | None:
        s = self._settings
        try:
            lease = await self._client.get(LEASE, s.namespace, s.name)
        except ApiError as error:
            if error.status != 404:
                raise
            return await self._client.lease("POST", self._lease({"metadata": {}}, transitions=0))
        spec = lease.get("spec") or {}
        state = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if state != self._seen:
            self._seen, self._seen_at = state, self._clock()
        free = not spec.get("holderIdentity") or spec["holderIdentity"] == s.identity
        if not free and self._clock() < self._seen_at + float(spec.get("leaseDurationSeconds") or s.duration):
            return None
        return await self._client.lease("PUT", self._lease(lease, int(spec.get("leaseTransitions") or 0) + 1))

    def _lease(self, lease: Object, transitions: int) -> Object:
        s = self._settings
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": lease["metadata"] | {"namespace": s.namespace, "name": s.name},
            "spec": {
                "holderIdentity": s.identity,
                "leaseDurationSeconds": round(s.duration),
                "acquireTime": _now(),
                "renewTime": _now(),
                "leaseTransitions": transitions,
            },
        }


def _renewed(lease: Object) -> Object:
    return lease | {"spec": lease["spec"] | {"renewTime": _now()}}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
