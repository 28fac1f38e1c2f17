"""Mixtures of likelihood ratios, their intervals, and the relative entropy of bounded means.

The normal limit of a test statistic S with information I under a shift d of the mean has the likelihood ratio
exp(d S - d**2 I / 2) against no shift. A mixture of such ratios over d is a supermartingale while the shift is at or
beyond the boundary, so that by Ville's inequality it exceeds 1 / a ever with probability a at most.

Sources: Robbins, Ann. Math. Stat. 41 (1970); Howard, Ramdas, McAuliffe and Sekhon, Ann. Stat. 49 (2021); Hoeffding,
JASA 58 (1963).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdecode.acceptance.dispersion import Array

# Falls beyond the margin that the mixture looks for, in margins, and their prior weights.
FALLS = np.array([1.0, 3.0])
FALL_WEIGHTS = np.array([0.5, 0.5])
# For Pass: how far above the boundary the canary is hoped to be; 1 is as good as stable.
GAINS = np.array([1.0, 2.0])
GAIN_WEIGHTS = np.array([0.85, 0.15])


def entropy(found: Array, expected: Array) -> Array:
    """Relative entropy of two Bernoulli rates, in nats."""
    a, b = np.clip(found, 1e-12, 1.0 - 1e-12), np.clip(expected, 1e-12, 1.0 - 1e-12)
    return np.asarray(a * np.log(a / b) + (1.0 - a) * np.log((1.0 - a) / (1.0 - b)))


def log_mixture(score: Array, information: Array, shifts: Array, weights: Array) -> Array:
    """Log of the mixture over shifts d of exp(d * score - d**2 / 2 * information)."""
    exponents = score[..., None] * shifts - 0.5 * information[..., None] * shifts**2 + np.log(weights)
    top = exponents.max(axis=-1)
    return np.asarray(top + np.log(np.exp(exponents - top[..., None]).sum(axis=-1)))


def crossed(score: Array, information: Array, shifts: Array, weights: Array, bound: Array) -> NDArray[np.bool_]:
    """Where the mixture reaches ``bound`` (a log)."""
    out = np.zeros(score.shape, dtype=bool)
    # No mixture exceeds the largest likelihood ratio, score**2 / (2 * information).
    near = (score > 0.0) & (score**2 >= 2.0 * bound * information) & (information > 0.0)
    if near.any():
        out[near] = log_mixture(score[near], information[near], shifts, weights) >= bound[near]
    return out


def needed_information(margin: float, error: float) -> float:
    """Information at which a canary as good as stable is expected to pass."""
    return float(2.0 * (np.log(1.0 / error) - np.log(GAIN_WEIGHTS[0])) / margin**2)


def half_width(information: float, margin: float, error: float) -> float:
    """Half of the time-uniform interval for the change of length (Robbins' two-sided normal mixture).

    The mixture's scale makes it narrowest near the information that a Pass needs.
    """
    log = 2.0 * np.log(1.0 / error)
    rho = needed_information(margin, error) / (log + np.log1p(log))
    total = information + rho
    return float(np.sqrt(total * (np.log(total / rho) + log)) / information)
