"""The picture of a replayed trace: estimate, interval and margin over time. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class PlotUnavailableError(RuntimeError):
    """matplotlib isn't installed."""


def draw(result: Mapping[str, Any], margin: float, path: str) -> None:
    """Write the timeline of ``trace.replay`` to ``path``; its ending (.png, .svg, .pdf) says how.

    Raises PlotUnavailableError without matplotlib, and ValueError for an ending that matplotlib can't write.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotUnavailableError(
            "--plot needs matplotlib, which isn't installed: install the extra, specdecode-operator[plot]"
        ) from None
    known = [entry for entry in result["timeline"] if entry["estimate"] is not None]
    start = result["timeline"][0]["at"] if result["timeline"] else 0.0
    figure = Figure(figsize=(9.0, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    times = [entry["at"] - start for entry in known]
    axes.plot(times, [100.0 * entry["estimate"] for entry in known], color="C0", label="canary against stable")
    banded = [entry for entry in known if entry["interval"] is not None]
    axes.fill_between(
        [entry["at"] - start for entry in banded],
        [100.0 * entry["interval"][0] for entry in banded],
        [100.0 * entry["interval"][1] for entry in banded],
        color="C0",
        alpha=0.2,
        linewidth=0,
        label="interval, valid at all times at once",
    )
    axes.axhline(-100.0 * margin, color="C3", linestyle="--", label=f"margin, {100.0 * margin:g} %")
    axes.axhline(0.0, color="0.6", linewidth=0.8)
    axes.axvline(result["at"] - start, color="0.3", linestyle=":")
    low = min([-300.0 * margin, *(100.0 * entry["estimate"] for entry in known)])
    axes.set_ylim(max(-100.0, 1.2 * low), 300.0 * margin)
    axes.set_xlabel("seconds")
    axes.set_ylabel("change of acceptance length, %")
    axes.set_title(f"{result['verdict']}: {result['reason']} at {result['at'] - start:.0f} s")
    axes.legend(loc="upper right", fontsize="small")
    figure.savefig(path)
