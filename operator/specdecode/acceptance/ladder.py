"""Running sums of both arms, and their values at a thinned set of earlier looks: the starts of the windows judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdecode.acceptance.dispersion import Array

# A start at look i stays in the ladder until its age exceeds this many times the largest power of two dividing i, so
# windows are at most a sixth longer or shorter than wanted.
_RUNGS = 6


@dataclass(slots=True)
class Sums:
    """Running sums, each of shape (runs,) or, on the ladder, (runs, starts).

    ``accepted`` counts the common positions, ``first`` position 1 alone; ``finished`` requests that engines ended;
    ``running`` the change of requests in flight; ``busy`` request-seconds in flight; ``ended`` and ``failed`` are
    what the errors test goes by.
    """

    canary_drafts: Array
    canary_accepted: Array
    canary_first: Array
    canary_finished: Array
    canary_running: Array
    canary_ended: Array
    canary_failed: Array
    stable_drafts: Array
    stable_accepted: Array
    stable_first: Array
    stable_finished: Array
    stable_busy: Array
    stable_ended: Array
    stable_failed: Array


COLUMNS = tuple(field.name for field in fields(Sums))
STABLE = np.array([[name.startswith("stable")] for name in COLUMNS])


class Ladder:
    """Sums at the starts of the windows that are watched."""

    def __init__(self, runs: int, now: float) -> None:
        self.runs = runs
        self.looks = 0
        self.total: Array = np.zeros((len(COLUMNS), runs))
        self.indices: list[int] = [0]
        self.times: list[float] = [now]
        self.starts: Array = np.zeros((len(COLUMNS), runs, 1))

    def add(self, increments: Array) -> None:
        """Add one look's increments, shape (columns, runs)."""
        self.looks += 1
        self.total = self.total + increments

    def windows(self) -> Array:
        """Sums since each start, shape (columns, runs, starts)."""
        return np.asarray(self.total[:, :, None] - self.starts)

    def close(self, now: float) -> None:
        """Make this look a start, and drop the starts that are too old for their place."""
        keep = [k for k, index in enumerate(self.indices) if _stays(index, self.looks)]
        self.indices = [self.indices[k] for k in keep] + [self.looks]
        self.times = [self.times[k] for k in keep] + [now]
        self.starts = np.concatenate([self.starts[:, :, keep], self.total[:, :, None]], axis=2)

    def select(self, runs: NDArray[np.bool_]) -> None:
        """Keep these runs only."""
        self.total, self.starts = self.total[:, runs], self.starts[:, runs]
        self.runs = int(self.total.shape[1])

    def state(self) -> dict[str, Any]:
        """JSON of a ladder with one run."""
        return {
            "looks": self.looks,
            "total": short(self.total[:, 0]),
            "indices": self.indices,
            "times": [round(t, 3) for t in self.times],
            "starts": [short(row) for row in self.starts[:, 0].T],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Ladder:
        """The ladder whose ``state()`` this is."""
        ladder = cls(1, 0.0)
        ladder.looks = int(state["looks"])
        ladder.total = np.array([state["total"]], dtype=float).T
        ladder.indices = [int(i) for i in state["indices"]]
        ladder.times = [float(t) for t in state["times"]]
        ladder.starts = np.array(state["starts"], dtype=float).T[:, None, :]
        return ladder


def short(row: Array) -> list[float]:
    """A row of sums as JSON numbers."""
    # Counters are whole numbers but for corrections; a hundredth of a draft decides nothing.
    return [int(x) if x == int(x) else round(float(x), 2) for x in row]


def _stays(index: int, now: int) -> bool:
    return index == 0 or now - index < _RUNGS * (index & -index)
