"""Time per output token, compared between the arms only where their Pods ran as many requests at a time.

Within a bin of requests in flight per Pod, each scrape's mean time per output token is one observation, weighed by
the requests that ended; the arms' weighted log means differ by their relative slowness. Bins are pooled by inverse
variance; a bin that only one arm visits says nothing, and where no bin is shared nothing is compared. The bound is a
Student tail (few scrapes know their own spread badly) with the error spent over looks as 1 / (k (k + 1)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specdecode.acceptance.types import Arm

_BINS = 12
# Scrapes of each arm that a bin needs.
_LEAST = 8
# Neighbouring scrapes aren't quite independent: a request of the one delayed that of the next.
_INFLATION = 2.0


@dataclass(frozen=True, slots=True)
class Slowness:
    """The canary's log time per output token over stable's, its standard error, and scrapes behind the smaller arm."""

    change: float
    error: float
    scrapes: float


class Latency:
    """Sums per arm and bin: scrapes, requests, and first and second moments of log time per output token."""

    def __init__(self) -> None:
        self._sums: dict[Arm, list[list[float]]] = {
            "stable": [[0.0] * 4 for _ in range(_BINS)],
            "canary": [[0.0] * 4 for _ in range(_BINS)],
        }

    def add(self, arm: Arm, running: float | None, seconds: float | None, requests: float | None) -> None:
        """One scrape of one engine: ``seconds`` is the rise of the summed time per output token of ``requests``."""
        if running is None or seconds is None or requests is None or requests <= 0.0 or seconds <= 0.0:
            return
        row = self._sums[arm][min(_BINS - 1, int(math.log2(running + 1.0)))]
        value = math.log(seconds / requests)
        for i, term in enumerate((1.0, requests, requests * value, requests * value**2)):
            row[i] += term

    def slowness(self) -> Slowness | None:
        """The pooled comparison, or None where no bin is shared."""
        top = bottom = scrapes = 0.0
        for stable, canary in zip(self._sums["stable"], self._sums["canary"], strict=True):
            if min(stable[0], canary[0]) < _LEAST:
                continue
            means = [row[2] / row[1] for row in (stable, canary)]
            spread = [max((row[3] - row[2] ** 2 / row[1]) / (row[0] - 1.0), 1e-9) / row[1] for row in (stable, canary)]
            weight = 1.0 / (_INFLATION * sum(spread))
            top += weight * (means[1] - means[0])
            bottom += weight
            scrapes += min(stable[0], canary[0])
        return Slowness(top / bottom, 1.0 / math.sqrt(bottom), scrapes) if bottom > 0.0 else None

    def fails(self, margin: float, error: float, looks: int) -> bool:
        """Whether the canary is slower by more than ``margin`` (a fraction), at this share of the error."""
        found = self.slowness()
        if found is None:
            return False
        z = (found.change - math.log1p(margin)) / found.error
        freedom = max(found.scrapes - 1.0, 1.0)
        evidence = 0.5 * (freedom + 1.0) * math.log1p(z * z / freedom)
        return z > 0.0 and evidence >= math.log(max(looks, 1) * (looks + 1.0) / error)

    def state(self) -> dict[str, Any]:
        """JSON; empty bins are left out."""
        return {
            arm: {str(i): [float(f"{x:.8g}") for x in row] for i, row in enumerate(rows) if row[0]}
            for arm, rows in self._sums.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what ``state()`` gave."""
        for arm, rows in self._sums.items():
            for i, row in state[arm].items():
                rows[int(i)] = [float(x) for x in row]
