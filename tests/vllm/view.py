"""A server's /metrics as the operator's own scraper reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode.acceptance.types import Arm, Sample
from specdecode.scrape.exposition import engine_page
from tests.vllm.servers import Engine


@dataclass(frozen=True)
class View:
    """The counters and the info metric's labels of a server with one engine."""

    sample: Sample
    info: Mapping[str, str] | None

    @property
    def per_draft(self) -> tuple[float, ...]:
        """Accepted drafts over drafts, by position."""
        return tuple(accepted / self.sample.drafts for accepted in self.sample.accepted_per_pos)


def look(engine: Engine, t: float = 0.0, arm: Arm = "stable", pod: str = "uid") -> View:
    """Scrape a server."""
    page = engine_page(engine.metrics(), t=t, arm=arm, pod=pod, prefill_apart=False)
    (sample,) = page.samples
    return View(sample, page.info.get(sample.engine))


def since(before: View, after: View) -> Sample:
    """Increase of the counters from one look to another."""
    start, end = before.sample.drafted_per_pos, after.sample.drafted_per_pos
    assert start is not None
    assert end is not None
    return Sample(
        t=after.sample.t,
        arm=after.sample.arm,
        pod=after.sample.pod,
        engine=after.sample.engine,
        depth=after.sample.depth,
        drafts=after.sample.drafts - before.sample.drafts,
        draft_tokens=after.sample.draft_tokens - before.sample.draft_tokens,
        accepted=after.sample.accepted - before.sample.accepted,
        accepted_per_pos=tuple(
            b - a for a, b in zip(before.sample.accepted_per_pos, after.sample.accepted_per_pos, strict=True)
        ),
        drafted_per_pos=tuple(b - a for a, b in zip(start, end, strict=True)),
    )
