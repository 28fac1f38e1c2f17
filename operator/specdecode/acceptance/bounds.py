"""Bounds for bounded means, and the interval that is shown.

Sources: Hoeffding, JASA 58 (1963); Robbins, Ann. Math. Stat. 41 (1970); Howard, Ramdas, McAuliffe and Sekhon, Ann.
Stat. 49 (2021).
"""

from __future__ import annotations

import numpy as np

from specdecode.acceptance.dispersion import Array


def entropy(found: Array, expected: Array) -> Array:
    """Relative entropy of two Bernoulli rates, in nats."""
    a, b = np.clip(found, 1e-12, 1.0 - 1e-12), np.clip(expected, 1e-12, 1.0 - 1e-12)
    return np.asarray(a * np.log(a / b) + (1.0 - a) * np.log((1.0 - a) / (1.0 - b)))


def half_width(information: float, narrowest: float, error: float) -> float:
    """Half of a time-uniform interval for a change known with this information (Robbins' two-sided normal mixture).

    ``narrowest``: the information at which the mixture's scale makes it narrowest against its asymptotic width.
    """
    log = 2.0 * np.log(1.0 / error)
    rho = narrowest / (log + np.log1p(log))
    total = information + rho
    return float(np.sqrt(total * (np.log(total / rho) + log)) / information)
