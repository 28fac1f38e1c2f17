"""A small part of the bench, with bounds that a broken kernel, dispersion or plan can't meet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdecode.acceptance.dispersion import Curve
from specdecode.acceptance.ladder import COLUMNS, Sums
from specdecode.acceptance.length import Windows, fresh
from tests.sim import checks, report, trouble
from tests.sim.bound import lower_bound
from tests.sim.judge import FALLS, delay, far_end, judge
from tests.sim.law import accepting, mean_accepted
from tests.sim.naive import METHODS, mann_whitney, z_test
from tests.sim.oracle import first_above, oracle, threshold
from tests.sim.ours import NEVER, Cell, Counts, Outcome, fallen, observed, pasts, play, settings
from tests.sim.traffic import Traffic, simulate

LOOKS, RUNS, MARGIN = 360, 120, 0.05
TRAFFIC = Traffic(running=60.0, spread=0.15)
CELLS = [Cell(), Cell(MARGIN), Cell(0.1), Cell(0.2), Cell(0.2, 120)]


@pytest.fixture(scope="module")
def played() -> tuple[dict[Cell, Outcome], np.ndarray, float]:
    """Outcomes by cell, the canary's drafts so far by run and look, and the z-test's rate of false rollbacks."""
    rng = np.random.default_rng(11)
    stable = simulate(TRAFFIC, rng, runs=RUNS, looks=LOOKS, pods=4, running=540.0, from_empty=False)
    canary = simulate(TRAFFIC, rng, runs=RUNS, looks=LOOKS, pods=1, running=60.0, from_empty=True)
    known = pasts(TRAFFIC, 3, 4, (4,), 1.0)[4]
    past = Curve(known.base, *(np.resize(a, (RUNS, a.shape[1])) for a in known.arrays()))
    other = observed(stable, TRAFFIC, np.ones(LOOKS), rng)
    seen = [fallen(canary, TRAFFIC, cell, LOOKS, rng) for cell in CELLS]
    outcomes = play(seen, other, past, settings())
    naive = float((z_test(seen[1], other, MARGIN).max(axis=1) > 2.33).mean())
    return dict(zip(CELLS, outcomes, strict=True)), np.cumsum(canary.drafts.sum(axis=2), axis=1), naive


def fails(outcome: Outcome) -> int:
    return int((outcome.fail < NEVER).sum())


def test_harmless_canaries_stay_and_those_beyond_the_margin_are_not_promoted(
    played: tuple[dict[Cell, Outcome], np.ndarray, float],
) -> None:
    outcomes, _, naive = played
    assert fails(outcomes[Cell()]) <= 3
    assert fails(outcomes[Cell(MARGIN)]) <= 5
    for cell in (Cell(MARGIN), Cell(0.1)):
        assert int((outcomes[cell].passed < outcomes[cell].fail).sum()) <= 5
    # The same traffic is what a naive test can't stand.
    assert naive > 0.3


def test_falls_are_called_soon(played: tuple[dict[Cell, Outcome], np.ndarray, float]) -> None:
    outcomes, drafts, _ = played
    for cell, most in ((Cell(0.1), 800.0), (Cell(0.2), 60.0), (Cell(0.2, 120), 90.0)):
        assert delay(outcomes[cell].fail, cell.onset, drafts)["seconds"] <= most
    passed = outcomes[Cell()].passed
    assert delay(passed, 0, drafts)["seconds"] <= 700.0


def test_the_oracle_obeys_its_error_and_no_bound_is_above_it() -> None:
    law = oracle(TRAFFIC, LOOKS, MARGIN)
    rng = np.random.default_rng(5)
    stable = simulate(TRAFFIC, rng, runs=60, looks=LOOKS, pods=1, running=540.0, from_empty=False)
    canary = simulate(TRAFFIC, rng, runs=60, looks=LOOKS, pods=1, running=60.0, from_empty=True)
    other = observed(stable, TRAFFIC, np.ones(LOOKS), rng)
    null, fallen_ = (fallen(canary, TRAFFIC, cell, LOOKS, rng) for cell in (Cell(MARGIN), Cell(0.2)))
    level = threshold(law.from_start(null, other, -0.15), 0.05)
    assert float((law.from_start(null, other, -0.15).max(axis=1) > level).mean()) <= 0.05
    first = first_above(law.from_start(fallen_, other, -0.15), level)
    drafts = np.cumsum(canary.drafts.sum(axis=2), axis=1)
    least = lower_bound(TRAFFIC, MARGIN, 0.05, ((0.2, 0), (0.1, 0)))
    assert least[0] < least[1]
    assert least[0] <= 1.1 * float(np.median(drafts[np.arange(60), np.minimum(first, LOOKS) - 1]))


@pytest.mark.parametrize("empty", [True, False])
def test_a_few_requests_that_live_long_make_a_window_noisier_as_much_as_is_said(empty: bool) -> None:
    traffic, runs, window, start = Traffic(running=2.0, spread=0.15), 4000, 150, 0 if empty else 60
    rng, looks = np.random.default_rng(2), start + window
    arm = simulate(traffic, rng, runs=runs, looks=looks, pods=1, running=2.0, from_empty=empty)
    drafts, accepted = (x[:, start:, 0].sum(axis=1) for x in (arm.drafts, arm.accepted))
    surplus = accepted - mean_accepted(traffic) * drafts
    before = arm.running[:, start - 1] if start else np.zeros(runs)
    columns = dict.fromkeys(COLUMNS, np.zeros((runs, 1))) | {
        "canary_drafts": drafts[:, None],
        "canary_finished": arm.finished[:, start:].sum(axis=1)[:, None],
        "canary_running": (arm.running[:, -1] - before)[:, None],
        # Stable has seen so many that its means are known.
        "stable_drafts": np.full((runs, 1), 1e6 * traffic.drafts_per_second),
        "stable_busy": np.full((runs, 1), 1e6),
        "stable_finished": np.full((runs, 1), 1e6 / traffic.mean_life),
    }
    ones = np.ones((runs, 1))
    measured = Windows(ones, ones, ones, 0.2 * ones, 0.0 * ones)
    seconds = np.array([window * 5.0])
    told = fresh(Sums(**columns), seconds, arm.running[:, -1], measured, 20.0)[:, 0] * drafts
    order = np.argsort(drafts / np.maximum(columns["canary_finished"][:, 0], 1.0))
    thirds = [float((surplus[rows] ** 2).sum() / told[rows].sum()) for rows in np.array_split(order, 3)]
    plain = [float((surplus[rows] ** 2).sum() / drafts[rows].sum()) for rows in np.array_split(order, 3)]
    assert plain[2] / plain[0] > 1.8
    # Calm windows are given no credit.
    assert thirds[0] < thirds[1] < thirds[2] < 1.35 * thirds[1]


def test_requests_that_end_by_their_tokens_fall_by_what_is_said() -> None:
    traffic, looks = Traffic(running=400.0, spread=0.3, tokens=1.0), 300
    rng, lengths = np.random.default_rng(6), []
    for part in (1.0, accepting(traffic, 0.2)):
        arm = simulate(replace(traffic, tokens=part), rng, runs=8, looks=looks, pods=1, running=400.0, from_empty=False)
        lengths.append(1.0 + part * arm.accepted.sum() / arm.drafts.sum())
    assert lengths[1] / lengths[0] == pytest.approx(0.8, abs=0.01)
    # All of a request's drafts count, and those of one that accepts little are many.
    assert lengths[0] < 1.0 + mean_accepted(traffic) - 0.1


def test_half_minutes_without_a_draft_are_no_sample() -> None:
    shape = (1, 120, 1)
    busy = np.where(np.arange(120) % 12 < 6, 100.0, 0.0).reshape(shape)
    stable = Counts(np.full(shape, 1000.0), np.full(shape, 2000.0), np.zeros(shape), np.zeros(shape[:2]), busy[..., 0])
    canary = replace(stable, drafts=busy, accepted=2.0 * busy)
    assert mann_whitney(canary, stable, 0.05).max() <= 0.0


def test_troubles_roll_back_nothing() -> None:
    found = [trouble.run(seed, 4, traffics=(TRAFFIC,), looks=180) for seed in (3, 4)]
    rows = trouble.joined(found)
    assert len({row["cell"] for row in rows}) == len(rows) > 10
    assert sum(row["fails"] for row in rows if "split" not in row["cell"]) <= 2
    tuned_on = trouble.tuned_on(found)
    assert len(tuned_on) == len([row for row in rows if "split" not in row["cell"]])
    assert {score.shape for _, scores in tuned_on for score in scores.values()} == {(8,)}


def simple(runs: int) -> tuple[dict[str, dict[str, Any]], dict[str, list[float]], list[dict[str, Any]]]:
    """What ``judge`` needs of one scenario, in which every score of a fall rises from 0 to 9 over the hour."""
    rng = np.random.default_rng(0)
    looks = 720
    calls = Outcome(np.full(runs, 30), np.full(runs, NEVER), np.ones(runs, dtype=np.int64))
    never = Outcome(np.full(runs, NEVER), np.full(runs, 40), np.zeros(runs, dtype=np.int64))
    falling = np.tile(np.linspace(0.0, 9.0, looks), (runs, 1))
    quiet = rng.random((runs, 1))
    harmless = [Cell(f) for f in (0.0, 0.025, MARGIN)]
    result = {
        "drafts": np.tile(np.arange(1.0, looks + 1), (runs, 1)),
        "ours": {(1, cell): calls for cell in FALLS if not cell.onset}
        | {(1, cell): Outcome(calls.fail + cell.onset, calls.passed, calls.finding) for cell in FALLS if cell.onset}
        | {(pods, cell): never for pods in (1, 2, 8) for cell in harmless},
        "oracle": {("pass", None): quiet, ("pass", Cell()): falling}
        | {(kind, fall, None): quiet for kind in ("start", "late") for fall in (0.1, 0.2)}
        | {("late" if c.onset else "start", c.fall, c): np.roll(falling, c.onset, axis=1) for c in FALLS},
        "naive": {(m, c): (falling if c in FALLS else quiet) for m in METHODS for c in (*FALLS, *harmless)},
    }
    scores = dict.fromkeys(METHODS, quiet[:, 0])
    troubles = [{"cell": "drift, fall 0", "fall": 0.0, "runs": runs, "fails": 0, "passes": runs, "naive": scores}]
    return {"plain": result}, {"plain": [10.0] * 6}, troubles


def test_the_naive_are_tuned_where_it_is_hardest_for_them_and_may_err_there_as_often_as_ours() -> None:
    scores = np.linspace(0.0, 6.0, 100)

    def seconds(*unlike: float) -> float:
        rows, _ = judge(*simple(50), [(ours, dict.fromkeys(METHODS, scores)) for ours in unlike], MARGIN, 0.01)
        row = next(r for r in rows if r["fall"] == 0.2 and r["onset"] == 0)
        return float(row["naive"]["z-test"]["seconds"])

    assert seconds() < seconds(0.5) < seconds(0.0)
    assert seconds(0.0) == seconds(0.01) == seconds(0.5, 0.0)


@pytest.mark.parametrize("title", ["collapse", "errors", "no_data", "restart"])
def test_single_runs_keep_their_bars(title: str) -> None:
    found = {bar["name"]: bar for bar in checks.bars([checks.tally(title, 3, 4)])}
    assert found[title]["holds"]
    # A bar that nothing was run for doesn't hold.
    assert not found["depth"]["holds"]


def test_a_page_and_its_bars_come_from_the_figures(tmp_path: Path) -> None:
    rows, bars = judge(*simple(50), [], MARGIN, 0.01)
    found = {bar["name"]: bar for bar in bars}
    assert found["false_rollback"]["value"] == pytest.approx(far_end(0, 50))
    assert not found["false_rollback"]["holds"]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.write_page(page, {"seed": 1, "runs": 50, "bars": bars, "table": json.loads(json.dumps(rows))})
    text = page.read_text()
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "\nold\n" not in text
    assert "| plain | 10 % | 0 min | 150" in text
    assert (tmp_path / "analysis-delay.svg").read_text().startswith("<?xml")
