"""Planned looks: a normal test at a few levels of information, each with its own share of one error budget.

Looking at every scrape costs a test something at each, although a fall of a given size shows at one amount of
information: for a shift d of the mean and an error a, I = (z / d)**2 with z the normal quantile of a, where the test
sees it as often as not. So a plan names the shifts that matter and gives each a share of the error; the window is
judged at the first look whose information has reached the shift's level, and at no other. By the union bound the
error is the sum of the shares, whatever the dependence between the looks: nothing need have independent increments.
A look that reaches several levels at once has all of their shares.

Sources: spending an error over information: Lan and DeMets, Biometrika 70 (1983); Jennison and Turnbull, Group
Sequential Methods (2000), chapter 7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from specdecode.acceptance.dispersion import Array

# Standard errors by which a level lies beyond the one at which its shift is seen every second time: information is
# known to some per cent only, and what is not seen at its level is seen much later.
_BEYOND = 0.15


def quantile(error: float) -> float:
    """The z above which a standard normal variable lies with this probability."""
    return NormalDist().inv_cdf(1.0 - error)


def log_tail(z: Array) -> Array:
    """Log of an upper bound for the chance that a standard normal variable exceeds z; 0 for z below 0.

    Pollak, Archiv der Mathematik 7 (1956): a few per cent above the truth, and less the further out.
    """
    positive = np.maximum(z, 0.0)
    log = -0.5 * positive**2 - np.log(positive + np.sqrt(positive**2 + 8.0 / np.pi)) + 0.5 * np.log(2.0 / np.pi)
    return np.where(z > 0.0, log, 0.0)


def beyond(error: Array) -> Array:
    """The z at which ``log_tail`` is the log of ``error``, by Newton's method; for errors in (0, 0.02]."""
    wanted = np.log(error)
    z = np.sqrt(-2.0 * wanted - np.log(np.maximum(-4.0 * np.pi * wanted, 1.0)))
    for _ in range(2):
        # The tail's logarithm falls by about z + 1 / z at z.
        z = z + (log_tail(z) - wanted) / (z + 1.0 / z)
    return z


def ratio(z: Array, drift: Array) -> Array:
    """Log likelihood ratio of a standard normal variable's mean being ``drift`` against 0, at z.

    Watched over growing information it passes h with a chance of at most exp(-h) (Wald, Sequential Analysis, 1947).
    """
    return drift * z - 0.5 * drift**2


def level(unit: float, shares: Mapping[float, float], error: float, shift: float) -> float:
    """The information at which ``shift`` is judged, in a plan of these parts."""
    return ((quantile(error * shares[shift]) + _BEYOND) / (shift * unit)) ** 2


class Plan:
    """Levels of information and what each may spend."""

    def __init__(self, unit: float, shares: Mapping[float, float], error: float) -> None:
        """``shares``: the part of ``error`` for each shift, in units of ``unit``; they add up to 1."""
        levels = sorted((level(unit, shares, error, shift), share) for shift, share in shares.items())
        self._levels = np.array([level for level, _ in levels])
        spent = [0.0, *accumulate(error * share for _, share in levels)]
        # By the levels reached before and now.
        self._bounds = np.array([[_bound(now - before) for now in spent] for before in spent])

    def fires(self, z: Array, information: Array, judged: Array) -> NDArray[np.bool_]:
        """Where z is beyond what the levels between ``judged`` (the most information so far) and now may spend."""
        before, now = (np.searchsorted(self._levels, found, side="right") for found in (judged, information))
        return np.asarray(z >= self._bounds[before, now])


def _bound(error: float) -> float:
    return quantile(error) if error > 0.0 else math.inf
