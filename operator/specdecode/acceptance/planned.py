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

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from specdecode.acceptance.dispersion import Array

# Standard errors by which a level lies beyond the one at which its shift is seen every second time: without it the
# median would hang on the last digit of the information.
_BEYOND = 0.12


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


def level(unit: float, shares: Mapping[float, float], error: float, shift: float) -> float:
    """The information at which ``shift`` is judged, in a plan of these parts."""
    return ((quantile(error * shares[shift]) + _BEYOND) / (shift * unit)) ** 2


class Plan:
    """Levels of information and what each may spend."""

    def __init__(self, unit: float, shares: Mapping[float, float], error: float) -> None:
        """``shares``: the part of ``error`` for each shift, in units of ``unit``; they add up to 1."""
        levels = sorted((level(unit, shares, error, shift), share) for shift, share in shares.items())
        self._levels = np.array([level for level, _ in levels])
        self._spent = np.concatenate([[0.0], np.cumsum([error * share for _, share in levels])])

    def fires(self, z: Array, information: Array, judged: Array) -> NDArray[np.bool_]:
        """Where z is beyond what the levels between ``judged`` (the most information so far) and now may spend."""
        now = self._spent[np.searchsorted(self._levels, information, side="right")]
        before = self._spent[np.searchsorted(self._levels, judged, side="right")]
        error = now - before
        due = error > 0.0
        return np.asarray(due & (log_tail(z) <= np.log(np.where(due, error, 1.0))))
