"""A work queue of keys: no key twice, no key at two workers, back-off by key, keys for later.

The semantics are those of client-go's workqueue: a key added while it is being worked on comes back once that is
done, however often it was added. Times come from one monotonic clock.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K")

BASE: Final = 0.2
"""Seconds before the first retry."""
MOST: Final = 60.0
"""Seconds between retries at most."""


def backoff(failures: int, draw: float) -> float:
    """Seconds to wait after so many failures in a row: doubling, between half and all of it by ``draw`` in [0, 1)."""
    whole: float = min(MOST, BASE * 2.0 ** min(failures - 1, 30))
    return whole * (0.5 + 0.5 * draw)


class QueueClosedError(Exception):
    """The queue gives out no more keys."""


class WorkQueue(Generic[K]):
    """Keys waiting for a worker.

    Args:
        clock: monotonic seconds, the event loop's.
        depth: called with the number of waiting keys when it changes.
        draw: random numbers in [0, 1).
    """

    def __init__(
        self,
        clock: Callable[[], float],
        depth: Callable[[int], None] = lambda _: None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._depth = depth
        self._draw = draw
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        """Give out no more keys; workers may end the ones that they hold."""
        self._closed = True
        self._wake.set()

    def add(self, key: K) -> None:
        """This key needs a look now."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = None
            self._depth(len(self._ready))
            self._wake.set()

    def add_after(self, key: K, delay: float) -> None:
        """This key needs a look in ``delay`` seconds, or sooner if it is already due sooner."""
        if delay <= 0:
            self.add(key)
            return
        at = self._clock() + delay
        if self._due.get(key, float("inf")) <= at:
            return
        self._due[key] = at
        self._serial += 1
        heapq.heappush(self._heap, (at, self._serial, key))
        self._wake.set()

    def failed(self, key: K, at_least: float = 0.0) -> float:
        """This key's work failed: it comes back after a back-off, which is returned, in seconds."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(at_least, backoff(self._failures[key], self._draw()))
        self.add_after(key, delay)
        return delay

    def succeeded(self, key: K) -> None:
        """This key's work went well: the next failure is the first again."""
        self._failures.pop(key, None)

    def done(self, key: K) -> None:
        """The worker lets go of the key."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def forget(self, key: K) -> None:
        """Nothing is due for this key any more."""
        self._failures.pop(key, None)
        self._due.pop(key, None)

    async def take(self) -> K:
        """The next key; it belongs to the caller until `done`.

        Raises:
            QueueClosedError: there is none any more.
        """
        while True:
            if self._closed:
                raise QueueClosedError
            self._ripen()
            if self._ready:
                key, _ = self._ready.popitem(last=False)
                self._working.add(key)
                self._depth(len(self._ready))
                if self._ready:
                    self._wake.set()
                return key
            self._wake.clear()
            wait = self._heap[0][0] - self._clock() if self._heap else None
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _ripen(self) -> None:
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == at:
                del self._due[key]
                self.add(key)
