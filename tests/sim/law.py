"""The exact second-order law of the simulated traffic, for the oracle and the lower bound.

Requests arrive as a Poisson process with rate lambda, live T, draft r times a second, and the surplus of their
acceptance over the mean has variance s2. An arm's surplus in (u, u + du) and (v, v + dv) then has covariance
r**2 s2 lambda E[(T - |u - v|)+] when stationary (Campbell's theorem), and r**2 s2 lambda times the integral of
P(T > x) over x from |u - v| to max(u, v) when the arm began empty at 0. Drafts themselves vary too, but by the same
requests in both arms' ratios, so only the surplus matters to first order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from tests.sim.traffic import LOOK, Array, Traffic, accepted_of, draft_noise

# Points within one look at which covariances are averaged.
_FINE = 5


def surplus_variance(traffic: Traffic) -> float:
    """Variance over requests of accepted tokens per draft."""
    return float(accepted_of(traffic.acceptance_table()).var())


def mean_accepted(traffic: Traffic) -> float:
    """Accepted tokens per draft."""
    return float(accepted_of(traffic.acceptance_table()).mean())


def accepting(traffic: Traffic, fall: float) -> float:
    """Of traffic whose requests have their tokens: what all acceptance is multiplied with so that the length, all
    tokens over all drafts, is lower by ``fall``."""
    accepted = accepted_of(traffic.acceptance_table())

    def length(part: float) -> float:
        return float(1.0 / (1.0 / (1.0 + part * accepted)).mean())

    return float(optimize.brentq(lambda part: length(part) - (1.0 - fall) * length(1.0), 0.0, 1.0))


def survival_integral(traffic: Traffic, x: Array) -> Array:
    """The integral of P(T > u) over u from x to infinity, E[(T - x)+], for log-normal T."""
    mu, sigma = np.log(traffic.life_median), traffic.sigma
    positive = np.maximum(x, 1e-12)
    d1 = (mu + sigma**2 - np.log(positive)) / sigma
    d2 = (mu - np.log(positive)) / sigma
    value = traffic.mean_life * stats.norm.cdf(d1) - positive * stats.norm.cdf(d2)
    return np.asarray(np.where(x <= 0.0, traffic.mean_life - np.minimum(x, 0.0), value))


def covariance(traffic: Traffic, running: float, looks: int, *, from_empty: bool) -> NDArray[np.float64]:
    """Covariance of an arm's surplus by look, shape (looks, looks)."""
    fine = looks * _FINE
    step = np.arange(fine)
    # The points of the grid are equally far apart, so that a lag and a latest point each take few values.
    lags = np.asarray(step * (LOOK / _FINE), dtype=np.float64)
    shared = survival_integral(traffic, lags)[np.abs(step[:, None] - step[None, :])]
    if from_empty:
        ends = survival_integral(traffic, np.asarray((step + 0.5) * (LOOK / _FINE), dtype=np.float64))
        shared -= ends[np.maximum(step[:, None], step[None, :])]
    scale = traffic.drafts_per_second**2 * surplus_variance(traffic) * running / traffic.mean_life
    matrix = scale * (LOOK / _FINE) ** 2 * shared.reshape(looks, _FINE, looks, _FINE).sum(axis=(1, 3))
    drafts = expected_drafts(traffic, running, looks, from_empty=from_empty)
    return np.asarray(matrix + np.diag(draft_noise(traffic) * drafts))


def expected_drafts(traffic: Traffic, running: float, looks: int, *, from_empty: bool) -> Array:
    """Expected drafts of an arm by look."""
    points = (np.arange(looks * _FINE) + 0.5) * (LOOK / _FINE)
    level = np.ones_like(points)
    if from_empty:
        level = 1.0 - survival_integral(traffic, np.asarray(points, dtype=np.float64)) / traffic.mean_life
    per_second = traffic.drafts_per_second * running * level.reshape(looks, _FINE).mean(axis=1)
    return np.asarray(per_second * LOOK)
