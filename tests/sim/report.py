"""The bench's table and plots in the documentation, between markers, from the figures that were measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

BEGIN, END = "<!-- bench: written by make bench-analysis -->", "<!-- end of bench -->"


def write_page(page: Path, document: Mapping[str, Any]) -> None:
    """Put tables between the markers of ``page``, and ``analysis-delay.svg`` beside it.

    Raises ValueError if the page lacks the markers.
    """
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} has no lines {BEGIN!r} and {END!r}: put them where the tables belong")
    before, rest = text.split(BEGIN, 1)
    plot = page.with_name("analysis-delay.svg")
    draw(plot, document)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n\n{tables(document, plot.name)}\n\n{END}{after}")


def tables(document: Mapping[str, Any], plot: str) -> str:
    """Markdown of bars, delays, errors and troubles."""
    parts = [
        f"{document['runs']} runs a scenario, seed {document['seed']}.",
        _table(
            ["bar", "worst", "bound", "holds", "where"],
            [
                [b["name"], _figure(b["value"]), _figure(b["bound"]), _yes(b["holds"]), b["worst"]]
                for b in document["bars"]
            ],
        ),
        "Seconds to Fail: median, and tenth to ninetieth part of the runs. *least* is the lower bound over the "
        "oracle's median drafts.",
        _table(
            [
                "traffic",
                "fall",
                "after",
                "ours",
                "oracle",
                "drafts, of the oracle's",
                "of the undivided oracle's",
                "least",
                "fastest tuned naive",
            ],
            [_delay(r) for r in document["table"] if "oracle" in r],
        ),
        f"![Seconds to Fail, ours against the oracle]({plot})",
        "Seconds to Pass of an identical canary, one Pod:",
        _table(
            ["traffic", "ours", "oracle", "passed within the hour"],
            [
                [
                    r["scenario"],
                    _spread(r["to_pass"]),
                    _spread(r["oracle_pass"]),
                    f"{100.0 * r['passes']['rate']:.1f} %",
                ]
                for r in document["table"]
                if "oracle_pass" in r
            ],
        ),
        "Rolled back within the hour although harmless, with 1, 2 and 8 canary Pods, and the naive methods (1 Pod), "
        "each tuned to 1 % on the scenario that is worst for it:",
        _table(
            ["traffic", "fall", "1 Pod", "2 Pods", "8 Pods", *_naive(document)],
            _harmless(document),
        ),
        "Other troubles, 2 canary Pods; and how often the naive methods roll them back:",
        _table(
            ["what", "rolled back", "promoted", "runs", *_naive(document)],
            [
                [
                    r["cell"],
                    _percent(r["fails"]["rate"]),
                    _percent(r["passes"]["rate"]),
                    str(r["fails"]["runs"]),
                    *(_percent(x) for x in r["naive_fails"].values()),
                ]
                for r in document["table"]
                if "trouble" in r
            ],
        ),
    ]
    return "\n\n".join(parts)


def _naive(document: Mapping[str, Any]) -> list[str]:
    return next(list(r["naive_fails"]) for r in document["table"] if "naive_fails" in r)


def _harmless(document: Mapping[str, Any]) -> list[list[str]]:
    rows: dict[tuple[str, float], dict[int, Mapping[str, Any]]] = {}
    for r in document["table"]:
        if "trouble" not in r and r["fall"] <= 0.05:
            rows.setdefault((r["scenario"], r["fall"]), {})[r["pods"]] = r
    return [
        [
            scenario,
            _percent(fall),
            *(_percent(found[pods]["fails"]["rate"]) for pods in (1, 2, 8)),
            *(_percent(x) for x in found[1]["naive_fails"].values()),
        ]
        for (scenario, fall), found in rows.items()
    ]


def _delay(row: Mapping[str, Any]) -> list[str]:
    fastest = min(n["seconds"] for n in row["naive"].values())
    return [
        row["scenario"],
        _percent(row["fall"]),
        f"{row['onset'] / 60.0:.0f} min",
        _spread(row["to_fail"]),
        _spread(row["oracle"]),
        _figure(_ratio(row, "oracle")),
        _figure(_ratio(row, "oracle_undivided")),
        _figure(row.get("bound", math.nan)),
        _seconds(fastest),
    ]


def _ratio(row: Mapping[str, Any], against: str) -> float:
    drafts = row[against]["drafts"]
    return float(row["to_fail"]["drafts"] / drafts) if drafts < math.inf else math.nan


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _figure(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:.3g}"


def _yes(holds: bool) -> str:
    return "yes" if holds else "**no**"


def _percent(part: float) -> str:
    return f"{100.0 * part:.3g} %"


def _seconds(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "over the hour"


def _spread(delay: Mapping[str, float]) -> str:
    ends = [_seconds(delay["seconds_10"]), _seconds(delay["seconds_90"])]
    return f"{_seconds(delay['seconds'])} ({ends[0]} to {ends[1]})"


def draw(path: Path, document: Mapping[str, Any]) -> None:
    """The median seconds to Fail of every cell, ours over the oracle's, with the bar between."""
    cells = [r for r in document["table"] if "oracle" in r and math.isfinite(r["oracle"]["seconds"])]
    figure = Figure(figsize=(5.5, 4.0), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for onset, mark in ((0.0, "o"), (600.0, "s"), (1800.0, "^")):
        for fall, colour in ((0.1, "C0"), (0.2, "C1")):
            found = [r for r in cells if (r["onset"], r["fall"]) == (onset, fall)]
            axes.loglog(
                [r["oracle"]["seconds"] for r in found],
                [min(r["to_fail"]["seconds"], 3600.0) for r in found],
                mark,
                color=colour,
                label=f"{100 * fall:.0f} % after {onset / 60:.0f} min",
            )
    ends = [4.0, 3600.0]
    axes.loglog(ends, ends, color="0.6", linewidth=0.8)
    axes.loglog(ends, [1.5 * x for x in ends], color="0.6", linewidth=0.8, linestyle="--")
    axes.set_xlabel("oracle, median seconds to Fail")
    axes.set_ylabel("ours")
    axes.legend(fontsize="x-small")
    figure.savefig(path, metadata={"Date": None})
