"""A fleet of engines as the scrapers see it: cumulative counters, request by request, draft by draft.

Slower than ``traffic.py`` and closer to the real thing: depth, Pods, resets, hanging Pods, failing requests, the
empty first draft of prefill/decode serving and dynamic depth. For single runs through the whole analysis.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specdecode.acceptance import Arm, Sample


@dataclass(slots=True)
class Behaviour:
    """How an arm's engines behave; may be changed between two looks.

    ``keep`` multiplies every accepted token's chance to count; ``failing`` is the share of requests that fail, and
    ``silent`` engines draft nothing. ``depths`` are chosen by turns (dynamic depth); ``tells_drafted`` serves the
    drafts by position. ``empty_first`` counts one empty draft a request and says so.
    """

    depth: int = 3
    keep: float = 1.0
    failing: float = 0.0
    silent: bool = False
    empty_first: bool = False
    depths: tuple[int, ...] = ()
    tells_drafted: bool = False
    running: float = 20.0
    tpot: float = 0.02
    mean: float = 0.7
    spread: float = 0.15


@dataclass(slots=True)
class Engine:
    """One engine's counters and the requests in flight: remaining life (seconds) and acceptance."""

    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted: list[float] = field(default_factory=lambda: [0.0] * 8)
    drafted: list[float] = field(default_factory=lambda: [0.0] * 8)
    finished: float = 0.0
    failed: float = 0.0
    tpot_sum: float = 0.0
    tpot_count: float = 0.0
    life: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    chance: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))


class Fleet:
    """Both arms' Pods on one seeded clock."""

    def __init__(self, seed: int, stable: Behaviour, canary: Behaviour, pods: tuple[int, int] = (4, 1)) -> None:
        self.rng = np.random.default_rng(seed)
        self.now = 0.0
        self.behaviour: dict[Arm, Behaviour] = {"stable": stable, "canary": canary}
        self.engines: dict[tuple[Arm, str], Engine] = {}
        for arm, count in zip(("stable", "canary"), pods, strict=True):
            for i in range(count):
                self.engines[("stable" if arm == "stable" else "canary", f"{arm}-{i}")] = Engine()

    def restart(self, arm: Arm, pod: str) -> None:
        """The process starts anew: counters at 0, its requests lost."""
        self.engines[(arm, pod)] = Engine()

    def step(self, seconds: float = 5.0) -> list[Sample]:
        """Let time pass and scrape every engine."""
        self.now += seconds
        samples = []
        for (arm, pod), engine in self.engines.items():
            self._serve(engine, self.behaviour[arm], seconds)
            samples.append(self._sample(arm, pod, engine))
        return samples

    def _serve(self, engine: Engine, behaviour: Behaviour, seconds: float) -> None:
        rng = self.rng
        mean, spread = behaviour.mean, behaviour.spread
        size = mean * (1.0 - mean) / spread**2 - 1.0
        new = int(rng.poisson(behaviour.running / 39.4 * seconds))
        if behaviour.empty_first:
            engine.drafts += new
            engine.draft_tokens += new * behaviour.depth
        life = np.concatenate([engine.life, rng.lognormal(3.0, 1.16, new)])
        chance = np.concatenate([engine.chance, rng.beta(mean * size, (1.0 - mean) * size, new)])
        if not behaviour.silent:
            self._draft(engine, behaviour, rng.poisson(15.0 * np.minimum(seconds, life)), chance)
        life = life - seconds
        over = int(np.count_nonzero(life <= 0.0))
        engine.life, engine.chance = life[life > 0.0], chance[life > 0.0]
        failed = int(rng.binomial(over, behaviour.failing))
        engine.failed += failed
        engine.finished += over - failed
        engine.tpot_sum += behaviour.tpot * float(rng.lognormal(0.0, 0.2, over - failed).sum())
        engine.tpot_count += over - failed

    def _draft(
        self, engine: Engine, behaviour: Behaviour, drafts: NDArray[np.int64], chance: NDArray[np.float64]
    ) -> None:
        depths = behaviour.depths or (behaviour.depth,)
        share = drafts // len(depths)
        for k, depth in enumerate(depths):
            left = share if k else drafts - share * (len(depths) - 1)
            count = int(left.sum())
            engine.drafts += count
            engine.draft_tokens += count * depth
            for i in range(depth):
                engine.drafted[i] += count
                left = self.rng.binomial(left, chance * (behaviour.keep if i == 0 else 1.0))
                engine.accepted[i] += int(left.sum())

    def _sample(self, arm: Arm, pod: str, engine: Engine) -> Sample:
        behaviour = self.behaviour[arm]
        depth = max(behaviour.depths) if behaviour.depths else behaviour.depth
        return Sample(
            t=self.now,
            arm=arm,
            pod=pod,
            engine="0",
            depth=depth,
            drafts=engine.drafts,
            draft_tokens=engine.draft_tokens,
            accepted=sum(engine.accepted[:depth]),
            accepted_per_pos=tuple(engine.accepted[:depth]),
            drafted_per_pos=tuple(engine.drafted[:depth]) if behaviour.tells_drafted else None,
            tpot_sum=engine.tpot_sum,
            tpot_count=engine.tpot_count,
            requests_running=float(engine.life.size),
            requests_finished=engine.finished,
            requests_failed=engine.failed,
            empty_first_draft=behaviour.empty_first,
        )
