"""The noise of a canary's two arms: stable's, from its history and its own time, and what the canary has above it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from specdecode.acceptance.arm import MAX_PODS
from specdecode.acceptance.dispersion import (
    Array,
    Curve,
    Dispersion,
    at_window,
    excess,
    kappa,
    known,
    merged,
    remeasure,
)
from specdecode.acceptance.history import History
from specdecode.acceptance.length import Noise
from specdecode.acceptance.types import Arm

_SCALES = 11
_PAST = ("squares", "weights", "batches")
# Both arms are measured at once, each as a run of its own.
_ROWS: dict[Arm, int] = {"stable": 0, "canary": 1}


class Noises:
    """Batch means of both arms at every scale of ``interval`` seconds."""

    def __init__(self, interval: float, history: History | None, positions: int) -> None:
        """``positions``: the common positions; the history knows a dispersion for each number of them."""
        self._interval = interval
        self._own = Dispersion(interval, _SCALES, len(_ROWS), MAX_PODS)
        self._past = history.known(positions, interval, _SCALES) if history is not None and positions else None
        self._measured: Noise | None = None

    def add(self, seconds: float, drafts: Mapping[Arm, Array], accepted: Mapping[Arm, Array]) -> None:
        """Take both arms' increments by Pod, each of shape (Pods,), over ``seconds``."""
        self._own.add(seconds, np.stack([drafts[arm] for arm in _ROWS]), np.stack([accepted[arm] for arm in _ROWS]))

    def measured(self, look: int) -> Noise:
        """What the kernel needs of it, measured anew at the looks at which it may have changed much."""
        if self._measured is None or remeasure(look):
            both = self._own.curve()
            stable, canary = both.row(_ROWS["stable"]), both.row(_ROWS["canary"])
            self._measured = Noise(*kappa(self._with_past(stable)), *excess(stable, canary), self._interval)
        return self._measured

    def awaited(self, seconds: float) -> float:
        """Seconds until the noise is known, with batches coming as in the ``seconds`` so far; 0 if it is known."""
        if self._measured is not None and np.isfinite(self._measured.kappas).all():
            return 0.0
        stable = self._own.curve().row(_ROWS["stable"])
        missing, own = 1.0 - float(known(self._with_past(stable))[0]), float(known(stable)[0])
        if missing <= 0.0:
            return 0.0
        return seconds * missing / own if own > 0.0 else math.inf

    def _with_past(self, stable: Curve) -> Curve:
        return stable if self._past is None else merged(self._past, stable)

    def at(self, arm: Arm, seconds: float, look: int) -> float | None:
        """An arm's kappa over a window of ``seconds``; None if unknown."""
        noise = self.measured(look)
        value = float(at_window(noise.kappas, noise.base, np.array([seconds]))[0][0, 0])
        value *= float(noise.excess[0]) if arm == "canary" else 1.0
        return value if np.isfinite(value) else None

    def state(self, arm: Arm, pods: int) -> dict[str, Any]:
        """JSON of an arm, with the batches under way of its first ``pods`` Pods."""
        past = self._past if arm == "stable" else None
        rows = None if past is None else [[float(f"{x:.5g}") for x in getattr(past, name)[0]] for name in _PAST]
        return {"noise": self._own.state(_ROWS[arm], pods), "past": rows}

    def restore(self, states: Mapping[Arm, Mapping[str, Any]]) -> None:
        """Take what ``state()`` gave of both arms."""
        # Batches under way go on together, so one arm's alone are of no use.
        whole = all(state["noise"]["_elapsed"] for state in states.values())
        for arm, state in states.items():
            self._own.restore(_ROWS[arm], state["noise"], under_way=whole)
        past = states["stable"]["past"]
        if past is not None:
            rows = [np.array([row], dtype=float) for row in past]
            self._past = Curve.without_steps(self._interval, *rows)
