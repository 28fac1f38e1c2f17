"""What no procedure can beat: the least drafts at which a fall can be called in half of the runs at a given error.

A procedure that fails at time T has error at least P0(T <= t) and calls by t with P1(T <= t). The event belongs to
what was seen up to t, so by Neyman and Pearson P1 <= Phi(d(t) - z), z the normal quantile of the error and d(t)**2 the
information of everything seen: delta' C**-1 delta, for Gaussian surplus of covariance C and the shift delta of its
mean. A median at t or before needs P1 >= 1/2, hence d(t) >= z. It holds for every procedure that judges the
difference of the arms, whatever else it knows: size, onset and law of the traffic.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg, stats

from tests.sim.law import mean_accepted
from tests.sim.oracle import oracle
from tests.sim.ours import factor as kept
from tests.sim.traffic import Traffic

LOOKS = 720


def lower_bound(traffic: Traffic, margin: float, error: float, falls: tuple[tuple[float, int], ...]) -> list[float]:
    """Expected drafts from the onset to that moment, for each fall and onset (look); infinite beyond the hour."""
    law = oracle(traffic, LOOKS, margin)
    drafts = law.drafts
    # Whitened: what is new in each look, given all before.
    factor = linalg.cholesky(law.whole, lower=True)
    accepted, out = mean_accepted(traffic), []
    for fall, onset in falls:
        shift = np.where(np.arange(LOOKS) >= onset, (fall - margin) * law.length * drafts, 0.0)
        information = np.cumsum(linalg.solve_triangular(factor, shift, lower=True) ** 2)
        # A canary that accepts less has less noise; as if it had had no more before.
        information /= kept(fall, accepted) ** 2
        reached = information >= float(stats.norm.isf(error)) ** 2
        out.append(float(drafts[onset : int(reached.argmax()) + 1].sum()) if reached.any() else float("inf"))
    return out
