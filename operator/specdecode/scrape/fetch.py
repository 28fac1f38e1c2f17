"""Scraping: pages of metrics from engine Pods and from the proxies before routers, many at once, each within bounds.

A scrape either yields samples or one `ScrapeError`; nothing that a Pod answers, or fails to answer, raises.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Literal

import aiohttp

from specdecode.acceptance.types import Arm, Sample, ScrapeError

from .exposition import BadPageError, engine_page, proxy_page

MAX_PAGE: Final = 8 * 1024 * 1024
"""Bytes of one page at most; beyond them it's no page of metrics that we could want."""
CONCURRENCY: Final = 64
_KEEPALIVE: Final = 75.0


@dataclass(frozen=True, slots=True)
class Target:
    """One Pod's page."""

    arm: Arm
    pod: str
    """The Pod's UID."""
    host: str
    port: int
    source: Literal["engine", "router"] = "engine"
    prefill_apart: bool = False

    @property
    def url(self) -> str:
        """Where its page is."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"


@dataclass(frozen=True, slots=True)
class Scraped:
    """What one scrape brought: samples and tunings, or the error."""

    target: Target
    samples: tuple[Sample, ...] = ()
    info: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    error: ScrapeError | None = None
    took: float = 0.0
    """Seconds from asking to having parsed it."""


class Scraper:
    """Fetches pages with bounded concurrency, one kept connection a Pod.

    Args:
        clock: Unix seconds; gives samples their time.
    """

    def __init__(self, clock: Callable[[], float] = time.time, concurrency: int = CONCURRENCY) -> None:
        self._clock = clock
        self._concurrency = concurrency
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Scraper:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._concurrency, limit_per_host=1, keepalive_timeout=_KEEPALIVE, use_dns_cache=False
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "text/plain;version=0.0.4", "User-Agent": "specdecode-operator"},
            auto_decompress=True,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def scrape(self, targets: Iterable[Target], limit: float) -> list[Scraped]:
        """One page of each target, in the order given, each within ``limit`` seconds."""
        return await asyncio.gather(*(self._one(target, limit) for target in targets))

    async def _one(self, target: Target, limit: float) -> Scraped:
        began = time.monotonic()
        try:
            page = await self._page(target.url, limit)
            scraped = self._parse(target, page, self._clock())
        except BadPageError as error:
            scraped = self._failed(target, str(error))
        except TimeoutError:
            scraped = self._failed(target, f"timeout: no whole page within {limit:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            scraped = self._failed(target, f"{type(error).__name__}: {error}"[:200])
        return Scraped(scraped.target, scraped.samples, scraped.info, scraped.error, time.monotonic() - began)

    async def _page(self, url: str, limit: float) -> str:
        if self._session is None:
            raise RuntimeError("the scraper isn't open: use it as a context manager")
        async with self._session.get(
            url, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=limit)
        ) as response:
            if response.status != 200:
                raise BadPageError(f"status {response.status}")
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_PAGE:
                    raise BadPageError(f"the page is longer than {MAX_PAGE} bytes")
        return body.decode("utf-8")

    def _parse(self, target: Target, page: str, t: float) -> Scraped:
        if target.source == "router":
            return Scraped(target, (proxy_page(page, t=t, arm=target.arm, pod=target.pod),))
        parsed = engine_page(page, t=t, arm=target.arm, pod=target.pod, prefill_apart=target.prefill_apart)
        return Scraped(target, parsed.samples, parsed.info)

    def _failed(self, target: Target, why: str) -> Scraped:
        return Scraped(target, error=ScrapeError(t=self._clock(), arm=target.arm, pod=target.pod, error=why))
