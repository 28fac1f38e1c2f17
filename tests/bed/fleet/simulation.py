"""Requests running on simulated decode Pods, and the counters that rise with them.

Nothing here knows of Pods or clocks: engines and proxies are slots, time is an argument, chance a generator. All
running requests of all deployments are advanced together, as arrays, so that a tick costs the same few calls for one
request or for thousands.

The model of a request: its acceptance at position 1 is Beta-distributed around the revision's mean p_1 with
concentration c (shape parameters p_1 c and (1 - p_1) c), drawn once; position i > 1 is reached with the revision's
ratio p_i / p_(i-1). So the mean over requests is exactly p_i at every position, drafts of one request are alike, and
its positions move together, as they do in measurements. It drafts at a steady rate for a log-normal time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.bed.fleet.scenario import MAX_DEPTH, Behaviour, Traffic

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LATENCY_BOUNDS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
"""vLLM's buckets of a request's latency, in seconds."""
TOKEN_TIME_BOUNDS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
"""vLLM's buckets of the time per output token, in seconds."""
PROXY_TIME_BOUNDS: Final = (
    0.5, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0, 30000.0, 60000.0, 300000.0,
    600000.0, 1800000.0, 3600000.0,
)  # fmt: skip
"""Envoy's default buckets, in milliseconds."""


@dataclass
class Histogram:
    """A histogram by upper bounds, as Prometheus has it; `counts` are not cumulative and end with +Inf."""

    bounds: tuple[float, ...]
    counts: Ints = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.bounds) + 1, dtype=np.int64)

    def observe(self, value: float) -> None:
        self.counts[np.searchsorted(self.bounds, value)] += 1
        self.total += value


@dataclass
class EngineCounters:
    """What one engine has counted since `created` (Unix seconds)."""

    created: float
    drafts: int = 0
    draft_tokens: int = 0
    accepted: Ints = field(default_factory=lambda: np.zeros(MAX_DEPTH, dtype=np.int64))
    prompt_tokens: int = 0
    generation_tokens: int = 0
    running: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})
    failed_transfers: int = 0
    latency: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    token_time: Histogram = field(default_factory=lambda: Histogram(TOKEN_TIME_BOUNDS))


@dataclass
class ProxyCounters:
    """What one router Pod's proxy has counted; `classes` by first digit of the status."""

    total: int = 0
    active: int = 0
    classes: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(1, 6), 0))
    time: Histogram = field(default_factory=lambda: Histogram(PROXY_TIME_BOUNDS))

    def finish(self, status_class: int, seconds: float) -> None:
        self.classes[status_class] += 1
        self.time.observe(seconds * 1000)


@dataclass
class Engine:
    """A decode Pod's engine.

    Attributes:
        depth: drafted tokens of a draft; 0 without speculation.
        behaviour: how it behaves now.
        empty_first_draft: whether each request's first draft is the padded, empty one of P/D serving.
    """

    depth: int
    behaviour: Behaviour
    empty_first_draft: bool
    counters: EngineCounters


@dataclass
class Proxy:
    """A router Pod's proxy."""

    counters: ProxyCounters = field(default_factory=ProxyCounters)


_COLUMNS: Final = ("engine", "proxy", "left", "life", "factor", "failing", "tokens")


class Simulation:
    """All requests that run now. Engines and proxies are named by any hashable key, a Pod's UID for example."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.engines: dict[str, Engine] = {}
        self.proxies: dict[str, Proxy] = {}
        self._slots: dict[str, int] = {}
        self._names: list[str] = []
        self._requests: dict[str, Any] = {
            "engine": np.zeros(0, dtype=np.int64),  # slot of the decode Pod; -1: it never reached one
            "proxy": np.zeros(0, dtype=np.int64),  # slot of the router Pod
            "left": np.zeros(0),  # seconds to run
            "life": np.zeros(0),  # seconds in all
            "factor": np.zeros(0),  # its acceptance at position 1 over the revision's
            "failing": np.zeros(0, dtype=bool),
            "tokens": np.zeros(0, dtype=np.int64),
        }

    def __len__(self) -> int:
        return len(self._requests["left"])

    def forget_engine(self, name: str) -> None:
        """A decode Pod is gone; what it had not finished was drained, and ends well now."""
        engine = self.engines.pop(name, None)
        slot = self._slots.get(name)
        if engine is not None and slot is not None:
            here = self._requests["engine"] == slot
            self._requests["left"][here] = 0.0

    def forget_proxy(self, name: str) -> None:
        """A router Pod is gone."""
        self.proxies.pop(name, None)

    def arrive(
        self, traffic: Traffic, routers: Sequence[str], shares: Floats, engines: Mapping[str, Sequence[str]], count: int
    ) -> None:
        """`count` requests come to one deployment.

        Args:
            traffic: how long they run.
            routers: keys of the proxies that they can reach.
            shares: how likely each of these is; sums to 1.
            engines: for each of `routers`, the engines behind it; none makes a request fail with 503.
            count: of requests.
        """
        chosen = self.rng.choice(len(routers), size=count, p=shares)
        self.arrive_at(traffic, [routers[index] for index in chosen], engines)

    def arrive_at(self, traffic: Traffic, routers: Sequence[str], engines: Mapping[str, Sequence[str]]) -> None:
        """One request comes to each of `routers` (which may repeat)."""
        rows: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        for router in routers:
            proxy = self.proxies[router]
            proxy.counters.total += 1
            proxy.counters.active += 1
            behind = engines[router]
            key = behind[int(self.rng.integers(len(behind)))] if behind else None
            engine = self.engines[key] if key is not None else None
            failing = engine is None or bool(self.rng.random() < engine.behaviour.failing)
            if engine is None:
                life = 0.01
            elif failing:
                life = engine.behaviour.fail_after
            else:
                life = float(traffic.life.median * np.exp(traffic.life.sigma * self.rng.standard_normal()))
            if engine is not None:
                self._begin(engine, traffic, failing)
            rows["engine"].append(-1 if key is None else self._slot(key))
            rows["proxy"].append(self._slot(router))
            rows["left"].append(life)
            rows["life"].append(life)
            rows["factor"].append(1.0 if engine is None else self._factor(engine.behaviour))
            rows["failing"].append(failing)
            rows["tokens"].append(0)
        self._requests = {
            name: np.concatenate([held, np.asarray(rows[name], dtype=held.dtype)])
            for name, held in self._requests.items()
        }

    def _begin(self, engine: Engine, traffic: Traffic, failing: bool) -> None:
        counters = engine.counters
        counters.running += 1
        counters.prompt_tokens += traffic.prompt_tokens
        if self.rng.random() < engine.behaviour.failed_transfers:
            counters.failed_transfers += 1
        if engine.empty_first_draft and engine.depth and engine.behaviour.drafting and not failing:
            counters.drafts += 1
            counters.draft_tokens += engine.depth

    def _factor(self, behaviour: Behaviour) -> float:
        mean = behaviour.acceptance[0]
        if behaviour.concentration is None or not 0 < mean < 1:
            return 1.0
        return float(self.rng.beta(mean * behaviour.concentration, (1 - mean) * behaviour.concentration)) / mean

    def _slot(self, name: str) -> int:
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = len(self._names)
            self._names.append(name)
        return slot

    def advance(self, seconds: float) -> None:
        """Runs all requests for so long, and ends those whose time is up."""
        requests = self._requests
        if not len(self):
            return
        ran = np.minimum(requests["left"], seconds)
        first, ratios, depth, rate = self._by_slot()
        at = requests["engine"]  # -1 reads the last row, which is all zero
        drafting = rate[at] * ran * ~requests["failing"]
        drafts = np.floor(drafting + self.rng.random(len(ran))).astype(np.int64)  # exact in the mean
        tokens = drafts.copy()
        reached = self.rng.binomial(drafts, np.minimum(1.0, first[at] * requests["factor"]))
        accepted = np.zeros((len(first), MAX_DEPTH), dtype=np.int64)
        for position in range(int(depth.max(initial=0))):
            if position:
                reached = self.rng.binomial(reached, ratios[at, position])
            reached = np.where(position < depth[at], reached, 0)
            np.add.at(accepted[:, position], at, reached)
            tokens += reached
        requests["tokens"] += tokens
        requests["left"] = requests["left"] - ran
        self._count(at, drafts, tokens, accepted)
        self._finish()

    def _by_slot(self) -> tuple[Floats, Floats, Ints, Floats]:
        rows = len(self._names) + 1
        first, ratios = np.zeros(rows), np.zeros((rows, MAX_DEPTH))
        depth, rate = np.zeros(rows, dtype=np.int64), np.zeros(rows)
        for name, engine in self.engines.items():
            slot = self._slots.get(name)
            if slot is None:
                continue
            behaviour = engine.behaviour
            rate[slot] = behaviour.draft_rate
            if engine.depth and behaviour.drafting:
                positions = behaviour.positions(engine.depth)
                depth[slot] = engine.depth
                first[slot] = positions[0]
                for index in range(1, engine.depth):
                    before = positions[index - 1]
                    ratios[slot, index] = positions[index] / before if before > 0 else 0.0
        return first, ratios, depth, rate

    def _count(self, at: Ints, drafts: Ints, tokens: Ints, accepted: Ints) -> None:
        rows = len(self._names) + 1
        drafted, generated = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        np.add.at(drafted, at, drafts)
        np.add.at(generated, at, tokens)
        for slot in np.flatnonzero(generated[:-1]):
            engine = self.engines.get(self._names[slot])
            if engine is None:
                continue
            counters = engine.counters
            counters.generation_tokens += int(generated[slot])
            if engine.depth and engine.behaviour.drafting:
                counters.drafts += int(drafted[slot])
                counters.draft_tokens += int(drafted[slot]) * engine.depth
                counters.accepted += accepted[slot]

    def _finish(self) -> None:
        requests = self._requests
        done = requests["left"] <= 1e-9
        if not done.any():
            return
        for row in np.flatnonzero(done):
            life, failing = float(requests["life"][row]), bool(requests["failing"][row])
            proxy = self.proxies.get(self._names[requests["proxy"][row]])
            if proxy is not None:
                proxy.counters.active -= 1
                proxy.counters.finish(5 if failing else 2, life)
            slot = requests["engine"][row]
            engine = self.engines.get(self._names[slot]) if slot >= 0 else None
            if engine is not None:
                self._finish_on(engine.counters, life, failing, int(requests["tokens"][row]))
        self._requests = {name: column[~done] for name, column in requests.items()}

    def _finish_on(self, counters: EngineCounters, life: float, failing: bool, tokens: int) -> None:
        counters.running = max(0, counters.running - 1)  # its counters may have been reset meanwhile
        if failing:
            counters.finished["error"] += 1
            return
        counters.finished["stop" if self.rng.random() < 0.8 else "length"] += 1
        counters.latency.observe(life)
        if tokens > 1:
            counters.token_time.observe(life / (tokens - 1))
