"""From the outcomes of all runs to the table of cells and the bars that rest on them.

Each test of the oracle may err as often as ours gives its counterpart: the sequential probability ratio test as the
window from the beginning, the CUSUM as the later starts, the one for Pass as a step's planned and watched looks.
``oracle_undivided`` has all of the length test's error for the one test that the cell calls for, as if the onset's kind
were known too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import stats

from specdecode.acceptance.kernel import SHARES
from specdecode.acceptance.length import LATER_SHARE, PLANNED_SHARE, WATCHED_SHARE, WHOLE_SHARE
from tests.sim.naive import METHODS
from tests.sim.oracle import first_above, threshold
from tests.sim.ours import NEVER, Cell
from tests.sim.traffic import LOOK, Array

HARMLESS = (0.0, 0.025, 0.05)
FALLS = [Cell(f, on) for f in (0.1, 0.2) for on in (0, 120, 360)]
RATIO, SLACK, FREE = 1.5, 1.2, 1.25
_LOOKS = 720


def far_end(hits: int, runs: int) -> float:
    """The upper end of a rate's 95 % Clopper-Pearson interval."""
    return 1.0 if hits >= runs else float(stats.beta.ppf(0.975, hits + 1, runs - hits))


def rate(hits: int, runs: int) -> dict[str, float]:
    """A rate and its interval's far end."""
    return {"rate": hits / runs, "high": far_end(hits, runs), "runs": runs}


def delay(first: np.ndarray[Any, Any], onset: int, drafts: Array) -> dict[str, float]:
    """Median and tenths of drafts and seconds from the onset to the call; never is infinite."""
    kept = first > onset
    called = kept & (first < NEVER)
    index = np.minimum(first, drafts.shape[1]) - 1
    before = drafts[:, onset - 1] if onset else np.zeros(first.size)
    spent = np.where(called, drafts[np.arange(first.size), index] - before, np.inf)[kept]
    seconds = np.where(called, (first - onset) * LOOK, np.inf)[kept]
    if not spent.size:
        return dict.fromkeys(("drafts", "seconds", "seconds_10", "seconds_90"), math.inf)
    low, middle, high = (float(x) for x in np.quantile(seconds, [0.1, 0.5, 0.9], method="higher"))
    return {
        "drafts": float(np.quantile(spent, 0.5, method="higher")),
        "seconds": middle,
        "seconds_10": low,
        "seconds_90": high,
    }


def judge(
    results: dict[str, dict[str, Any]],
    bounds: dict[str, list[float]],
    troubles: list[dict[str, Any]],
    unlike: list[tuple[float, dict[str, Array]]],
    margin: float,
    error: float,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The table of cells and the bars.

    Args:
        results: by scenario, as ``bench.joined()`` gives them.
        bounds: by scenario, the least drafts for each of ``FALLS``.
        troubles: rows of ``trouble.joined()``.
        unlike: ``trouble.tuned_on()``: there a naive method may err as often as ours does.
        margin: of the policy.
        error: of the policy.
    """
    rows: list[dict[str, Any]] = []
    tuned = {
        m: max(
            [threshold(r["naive"][(m, Cell(margin))], error) for r in results.values()]
            + [threshold(scores[m][:, None], max(error, ours)) for ours, scores in unlike]
        )
        for m in METHODS
    }
    for scenario, result in results.items():
        for (pods, cell), o in result["ours"].items():
            row: dict[str, Any] = {
                "cell": f"{scenario}, {pods} Pods, fall {cell.fall:g} at {cell.onset * LOOK:g} s",
                "scenario": scenario,
                "pods": pods,
                "fall": cell.fall,
                "onset": cell.onset * LOOK,
                "fails": rate(int((o.fail < NEVER).sum()), o.fail.size),
                "passes": rate(int((o.passed < o.fail).sum()), o.fail.size),
                "to_fail": delay(o.fail, cell.onset, result["drafts"]),
                "to_pass": delay(np.where(o.passed < o.fail, o.passed, NEVER), 0, result["drafts"]),
            }
            if pods == 1:
                row |= _against(result, cell, tuned, margin, error)
                if cell in FALLS and row["oracle"]["drafts"] < math.inf:
                    row["bound"] = bounds[scenario][FALLS.index(cell)] / row["oracle"]["drafts"]
            rows.append(row)
    rows += [
        {
            "cell": r["cell"],
            "trouble": True,
            "fall": r["fall"],
            "onset": 0.0,
            "fails": rate(r["fails"], r["runs"]),
            "passes": rate(r["passes"], r["runs"]),
            "naive_fails": {m: float((high > tuned[m]).mean()) for m, high in r["naive"].items()},
        }
        for r in troubles
    ]
    return rows, _bars(rows, margin)


def _against(
    result: dict[str, Any], cell: Cell, tuned: dict[str, float], margin: float, error: float
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    best, naive, drafts = result["oracle"], result["naive"], result["drafts"]
    if cell in FALLS:
        kind = "late" if cell.onset else "start"
        null, score = best[(kind, cell.fall, None)], best[(kind, cell.fall, cell)]
        share = LATER_SHARE if cell.onset else WHOLE_SHARE
        for title, part in (("oracle", share), ("oracle_undivided", 1.0)):
            level = threshold(null, part * SHARES["length"] * error)
            out[title] = delay(first_above(score, level, cell.onset), cell.onset, drafts)
        out["naive"] = {
            m: delay(first_above(naive[(m, cell)], tuned[m], cell.onset), cell.onset, drafts) for m in METHODS
        }
    if cell == Cell():
        level = threshold(best[("pass", None)], (PLANNED_SHARE + WATCHED_SHARE) * error)
        out["oracle_pass"] = delay(first_above(best[("pass", cell)], level), 0, drafts)
    if cell.fall <= margin:
        out["naive_fails"] = {m: float((naive[(m, cell)].max(axis=1) > tuned[m]).mean()) for m in METHODS}
    return out


def _bars(rows: list[dict[str, Any]], margin: float) -> list[dict[str, Any]]:
    bars = []

    def worst(title: str, cells: list[tuple[float, str]], unit: str, bound: float) -> None:
        value, cell = max(cells, default=(math.inf, "none"))
        bars.append(
            {"name": title, "value": value, "unit": unit, "bound": bound, "holds": value <= bound, "worst": cell}
        )

    main = [r for r in rows if "trouble" not in r]
    harmless = [r for r in main if r["fall"] <= margin]
    worst("false_rollback", [(r["fails"]["high"], r["cell"]) for r in harmless], "rate, far end", 0.016)
    bad = [r for r in main if r["fall"] in (margin, 2.0 * margin) and r["onset"] == 0]
    worst("false_promotion", [(r["passes"]["high"], r["cell"]) for r in bad], "rate, far end", 0.016)
    # Where the oracle's own median, times the bar, is beyond the hour, the hour can't tell.
    hour = _LOOKS * LOOK
    told = [r for r in main if "oracle" in r and RATIO * r["oracle"]["seconds"] + r["onset"] <= hour]
    least = max((r.get("bound", 0.0) for r in told), default=0.0)
    bound = SLACK * least if least > FREE else RATIO
    ratios = [(r["to_fail"]["drafts"] / r["oracle"]["drafts"], r["cell"]) for r in told]
    worst("fail_ratio", ratios, "times the oracle", bound)
    slower = []
    for r in told:
        fastest = min(n["drafts"] for n in r["naive"].values())
        if fastest < math.inf:
            slower.append((r["to_fail"]["drafts"] / fastest, r["cell"]))
    worst("fail_against_naive", slower, "times the fastest tuned naive method", 1.0)
    told = [r for r in main if "oracle_pass" in r and RATIO * r["oracle_pass"]["seconds"] <= hour]
    ratios = [(r["to_pass"]["drafts"] / r["oracle_pass"]["drafts"], r["cell"]) for r in told]
    worst("pass_ratio", ratios, "times the oracle", RATIO)
    drift = [r for r in rows if r["cell"].startswith("drift")]
    worst("drift", [(r["fails"]["high"], r["cell"]) for r in drift], "rate, far end", 0.016)
    # Of a split by connection and of a noisier canary less is promised: docs/analysis.md.
    trouble = [r for r in rows if "trouble" in r and not r["cell"].startswith(("drift", "split", "requests less"))]
    worst("troubles", [(r["fails"]["high"], r["cell"]) for r in trouble], "rate, far end", 0.016)
    return bars
