"""Rounds of scrapes of one resource: at a fixed cadence, singly or in pairs, and at once if a Pod was never seen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from specdecode.scrape import Scraped, Scraper
from specdecode.telemetry import Metrics

from .evidence import Aim, Evidence

log: Final = logging.getLogger(__name__)

_LONGEST: Final = 5.0
_FAILING: Final = 3
"""Scrapes of a Pod that fail in a row before it is said: a Pod that starts or ends refuses one or two."""
_RETRY: Final = 1.0
"""Seconds before a Pod that has never answered is asked again."""


class Rounds:
    """Scrapes one resource's Pods for as long as it exists.

    Args:
        scraper: fetches pages.
        evidence: takes them in and judges.
        metrics: counts scrapes.
        clock: Unix seconds.
        done: called after each whole round, and after a first answer of new Pods, with whether something is new.
    """

    def __init__(
        self,
        scraper: Scraper,
        evidence: Evidence,
        metrics: Metrics,
        clock: Callable[[], float],
        done: Callable[[bool], None],
    ) -> None:
        self._scraper = scraper
        self._evidence = evidence
        self._metrics = metrics
        self._clock = clock
        self._done = done
        self._aims: Sequence[Aim] = ()
        self._asked: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._name = ""
        self._kick = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.interval = 30.0
        """Seconds between the starts of two rounds, or of two pairs."""
        self.short: float | None = None
        """Seconds between the starts of a pair's two rounds; None for no pairs."""

    def start(self, name: str) -> None:
        """Begin."""
        self._name = name
        self._task = asyncio.create_task(self._run(), name=f"scraping {name}")

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def follow(self, aims: Sequence[Aim], interval: float, short: float | None = None) -> None:
        """From now on scrape these Pods at this interval, twice each time if ``short`` is given; new ones at once."""
        faster = interval < self.interval
        self._aims, self.interval, self.short = aims, interval, short
        aimed = {aim.target.pod for aim in aims}
        self._asked = {pod: at for pod, at in self._asked.items() if pod in aimed}
        self._failures = {pod: count for pod, count in self._failures.items() if pod in aimed}
        if faster or self._evidence.unseen(aims):
            self._kick.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        first = False
        while True:
            self._kick.clear()
            whole = loop.time() >= due
            if whole:
                first = self.short is not None and not first
                step = self.interval if self.short is None else self.short if first else self.interval - self.short
                # Keep to the beat; a round that came too late doesn't make the next one early.
                due = max(due + step, loop.time() + 0.5 * step)
            aims = list(self._aims) if whole else self._new(loop.time())
            if aims:
                self._asked |= {aim.target.pod: loop.time() for aim in aims}
                await self._round(aims, whole=whole)
            next_look = min(due, loop.time() + _RETRY) if self._evidence.unseen(self._aims) else due
            try:
                async with asyncio.timeout_at(next_look):
                    await self._kick.wait()
            except TimeoutError:
                continue
            due = min(due, loop.time() + self.interval)

    def _new(self, now: float) -> list[Aim]:
        """Pods that have never answered and weren't asked just now: however often we are kicked, nobody is hammered."""
        return [
            aim for aim in self._evidence.unseen(self._aims) if now - self._asked.get(aim.target.pod, -inf) >= _RETRY
        ]

    async def _round(self, aims: list[Aim], *, whole: bool) -> None:
        limit = min(_LONGEST, 0.8 * (self.short or self.interval))
        scraped = await self._scraper.scrape([aim.target for aim in aims], limit)
        self._count(aims, scraped)
        unseen = len(self._evidence.unseen(aims))
        try:
            self._evidence.take(aims, scraped)
            news = len(self._evidence.unseen(aims)) != unseen
            if whole:
                news = self._evidence.look(self._clock()) or news
        except Exception:
            # Evidence that can't be digested is no evidence; the next round may be.
            log.exception("a round of scrapes couldn't be used")
            return
        if whole or news:
            self._done(news)

    def _count(self, aims: Sequence[Aim], scraped: Sequence[Scraped]) -> None:
        for aim, got in zip(aims, scraped, strict=True):
            failures = self._failures.pop(aim.target.pod, 0)
            if got.error is not None:
                self._failures[aim.target.pod] = failures + 1
                if failures + 1 == _FAILING:
                    log.warning("%s: scrapes of Pod %s fail: %s", self._name, aim.pod, got.error.error)
            elif failures >= _FAILING:
                log.info("%s: scrapes of Pod %s succeed again", self._name, aim.pod)
            self._metrics.scrapes.labels(got.target.source, "ok" if got.error is None else "error").inc()
            self._metrics.scrape_seconds.observe(got.took)
