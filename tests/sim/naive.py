"""What others do: a repeated z-test, threshold rules, Mann-Whitney. Each gives a score by run and look; larger means
worse for the canary, and one threshold a method, tuned on the worst scenario, turns it into a rule."""

from __future__ import annotations

import numpy as np

from tests.sim.ours import Counts
from tests.sim.traffic import POSITIONS, Array

_MINUTE = 12
_STRIDE = 6


def _sums(counts: Counts) -> tuple[Array, Array]:
    return counts.drafts.sum(axis=2), counts.accepted.sum(axis=2)


def z_test(canary: Counts, stable: Counts, margin: float) -> Array:
    """Two proportions, accepted of drafted tokens since the start, the canary's against (1 - margin) of stable's."""
    (dc, ac), (ds, sa) = _sums(canary), _sums(stable)
    nc, ns = np.cumsum(dc, axis=1) * POSITIONS, np.cumsum(ds, axis=1) * POSITIONS
    pc, ps = np.cumsum(ac, axis=1) / np.maximum(nc, 1.0), np.cumsum(sa, axis=1) / np.maximum(ns, 1.0)
    allowed = ((1.0 - margin) * (1.0 + POSITIONS * ps) - 1.0) / POSITIONS
    spread = np.maximum(pc * (1.0 - pc), 0.0) / np.maximum(nc, 1.0) + ps * (1.0 - ps) / np.maximum(ns, 1.0)
    error = np.sqrt(np.maximum(spread, 0.0))
    return np.where(nc > 0.0, (allowed - pc) / np.maximum(error, 1e-9), 0.0)


def _ratio(canary: Counts, stable: Counts) -> Array:
    """Accepted per draft over the last minute, stable's over the canary's."""
    rates = []
    for counts in (canary, stable):
        drafts, accepted = (np.cumsum(x, axis=1) for x in _sums(counts))
        for x in (drafts, accepted):
            x[:, _MINUTE:] = x[:, _MINUTE:] - x[:, :-_MINUTE].copy()
        rates.append(np.where(drafts > 0.0, accepted / np.maximum(drafts, 1.0), np.nan))
    return np.nan_to_num(rates[1] / np.maximum(rates[0], 1e-3), nan=0.0)


def argo(canary: Counts, stable: Counts, margin: float) -> Array:
    """An Argo Rollouts analysis: one failed measurement of the last minute's rate is enough (failureLimit 0)."""
    return _ratio(canary, stable)


def flagger(canary: Counts, stable: Counts, margin: float) -> Array:
    """A Flagger metric check every 10 s that fails for good at the fifth failed check (threshold 5)."""
    checks = _ratio(canary, stable)
    score = np.zeros_like(checks)
    for look in range(checks.shape[1]):
        seen = checks[:, 1 : look + 1 : 2]
        if seen.shape[1] >= 5:
            score[:, look] = np.partition(seen, -5, axis=1)[:, -5]
    return score


def mann_whitney(canary: Counts, stable: Counts, margin: float) -> Array:
    """Kayenta's judge on half-minute samples of the acceptance rate since the start: the U statistic's z."""
    runs, looks, _ = canary.drafts.shape
    count = looks // _STRIDE
    series = []
    for counts, keep in ((canary, 1.0), (stable, 1.0 - margin)):
        drafts, accepted = (x[:, : count * _STRIDE].reshape(runs, count, _STRIDE).sum(axis=2) for x in _sums(counts))
        # Kayenta leaves out what has no value (nanStrategy remove), and NaN is neither above nor below anything.
        rate = np.divide(accepted, drafts, out=np.full_like(drafts, np.nan), where=drafts > 0.0)
        series.append(keep * (1.0 + rate))
    mine, theirs = series
    score = np.zeros((runs, looks))
    wins, n, m = np.zeros(runs), np.zeros(runs), np.zeros(runs)
    for k in range(count):
        wins += (theirs[:, : k + 1] > mine[:, k : k + 1]).sum(axis=1) + (mine[:, :k] < theirs[:, k : k + 1]).sum(axis=1)
        n, m = n + np.isfinite(mine[:, k]), m + np.isfinite(theirs[:, k])
        z = (wins - n * m / 2.0) / np.sqrt(np.maximum(n * m * (n + m + 1.0), 1.0) / 12.0)
        score[:, (k + 1) * _STRIDE - 1 : (k + 2) * _STRIDE - 1] = np.where(np.minimum(n, m) >= 4.0, z, 0.0)[:, None]
    return score


METHODS = {"z-test": z_test, "argo": argo, "flagger": flagger, "mann-whitney": mann_whitney}
