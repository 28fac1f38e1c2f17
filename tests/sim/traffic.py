"""Traffic of two arms as increments by look and Pod, vectorised over runs.

Requests arrive as a Poisson process; each has a life (log-normal), an acceptance of its own (Beta) that all its
drafts share, and drafts at a steady rate while it lives. Position i of a draft is accepted with probability a**i.
A look's increment is the requests' exact overlap with it, plus binomial noise of the single drafts (in its normal
limit: an arm drafts hundreds of times between two looks).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

LOOK = 5.0
POSITIONS = 3
_TABLE = 1 << 14


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the requests are like.

    ``running``: requests in flight on the canary once its weight is reached; stable has (1 - weight) / weight times
    as many. ``spread``: standard deviation of a request's acceptance around ``mean``. Lives have the median and the
    99th percentile given (seconds), whatever is accepted; with ``tokens`` above 0 a request has its tokens instead, so
    the more it accepts, all of it multiplied with ``tokens``, the sooner it ends.
    """

    running: float = 20.0
    spread: float = 0.15
    mean: float = 0.7
    life_median: float = 20.0
    life_p99: float = 300.0
    drafts_per_second: float = 15.0
    weight: float = 0.1
    tokens: float = 0.0

    @property
    def sigma(self) -> float:
        """Shape of the log-normal lives."""
        return float(np.log(self.life_p99 / self.life_median) / stats.norm.ppf(0.99))

    @property
    def mean_life(self) -> float:
        """Seconds."""
        return float(self.life_median * np.exp(0.5 * self.sigma**2))

    def stretch(self, a: Array) -> Array:
        """What lives of requests of this acceptance are multiplied with."""
        if not self.tokens:
            return np.ones_like(a)
        typical = 1.0 + float(accepted_of(self.acceptance_table()).mean())
        return np.asarray(typical / (1.0 + self.tokens * accepted_of(a)))

    def acceptance_table(self) -> Array:
        """Quantiles of a request's acceptance, evenly spaced."""
        return _acceptance_table(self.mean, self.spread)


@cache
def _acceptance_table(mean: float, spread: float) -> Array:
    size = mean * (1.0 - mean) / spread**2 - 1.0
    if size <= 0.0:
        raise ValueError(f"spread {spread} is too large for a mean of {mean}: take a smaller one")
    grid = (np.arange(_TABLE) + 0.5) / _TABLE
    return np.asarray(stats.beta.ppf(grid, mean * size, (1.0 - mean) * size))


@dataclass(frozen=True, slots=True)
class ArmTraffic:
    """Increments by run, look and Pod: drafts, accepted over all positions and at position 1 (both without the noise
    of single drafts); finished requests by run and look, and those in flight at each look's end.
    """

    drafts: Array
    accepted: Array
    first: Array
    finished: Array
    running: Array

    def rows(self, runs: NDArray[np.int64]) -> ArmTraffic:
        """These runs."""
        return ArmTraffic(
            self.drafts[runs], self.accepted[runs], self.first[runs], self.finished[runs], self.running[runs]
        )


def accepted_of(a: Array) -> Array:
    """Accepted tokens per draft of a request with this acceptance."""
    return np.asarray(a + a**2 + a**3)


def draft_noise(traffic: Traffic) -> float:
    """Mean variance of the tokens accepted in one draft, its request's acceptance given."""
    a = traffic.acceptance_table()
    second = a + 3.0 * a**2 + 5.0 * a**3
    return float((second - accepted_of(a) ** 2).mean())


def simulate(
    traffic: Traffic,
    rng: np.random.Generator,
    *,
    runs: int,
    looks: int,
    pods: int,
    running: float,
    from_empty: bool,
    look: float = LOOK,
    shares: Array | None = None,
) -> ArmTraffic:
    """One arm's traffic. ``from_empty``: no request is in flight when it begins, as on a canary that gets its weight.

    ``shares``: each Pod's share of the requests, even unless given.
    """
    horizon = looks * look
    groups = runs * pods
    table = traffic.acceptance_table()
    stretch = traffic.stretch(table)
    counts = rng.poisson(running / (traffic.mean_life * stretch.mean()) * horizon, runs)
    run = np.repeat(np.arange(runs), counts)
    start = rng.random(run.size) * horizon
    life = np.exp(np.log(traffic.life_median) + traffic.sigma * rng.standard_normal(run.size))
    kind = rng.integers(0, _TABLE, run.size)
    life *= stretch[kind]
    if not from_empty:
        # Requests in flight at the beginning are length-biased, and seen at a uniform moment of their lives.
        held = rng.poisson(running, runs)
        old = np.repeat(np.arange(runs), held)
        long = np.exp(np.log(traffic.life_median) + traffic.sigma**2 + traffic.sigma * rng.standard_normal(old.size))
        found = np.searchsorted(np.cumsum(stretch) / stretch.sum(), rng.random(old.size))
        kind = np.concatenate([kind, found])
        long *= stretch[found]
        run = np.concatenate([run, old])
        start = np.concatenate([start, -rng.random(old.size) * long])
        life = np.concatenate([life, long])
    end = start + life
    a = table[kind]
    pod = (
        rng.integers(0, pods, run.size)
        if shares is None
        else np.searchsorted(np.cumsum(shares), rng.random(run.size) * shares.sum())
    )
    group = run * pods + np.minimum(pod, pods - 1)

    rate = traffic.drafts_per_second
    width = looks + 2
    begin = np.maximum(start, 0.0)
    stop = np.minimum(end, horizon)
    cell_on, cell_off = (begin / look).astype(np.int64), (stop / look).astype(np.int64)
    index_on, index_off = group * width + cell_on, group * width + cell_off
    part_on, part_off = (cell_on + 1) * look - begin, (cell_off + 1) * look - stop

    def increments(weight: Array | None) -> Array:
        size = groups * width
        w = 1.0 if weight is None else weight
        partial = np.bincount(index_on, w * part_on, size) - np.bincount(index_off, w * part_off, size)
        ones_on = np.bincount(index_on, weight, size) - np.bincount(index_off, weight, size)
        full = np.cumsum(ones_on.reshape(groups, width), axis=1) * look
        full[:, 1:] = full[:, :-1]
        full[:, 0] = 0.0
        both = partial.reshape(groups, width) + full
        return np.asarray(rate * both[:, :looks].reshape(runs, pods, looks).transpose(0, 2, 1))

    ended = end < horizon
    finished = np.bincount(run[ended] * width + cell_off[ended], minlength=runs * width).reshape(runs, width)[:, :looks]
    arrived = np.bincount(run * width + cell_on, minlength=runs * width).reshape(runs, width)[:, :looks]
    return ArmTraffic(
        drafts=np.maximum(increments(None), 0.0),
        accepted=increments(accepted_of(a)),
        first=increments(a),
        finished=finished.astype(float),
        running=np.cumsum(arrived - finished, axis=1).astype(float),
    )
