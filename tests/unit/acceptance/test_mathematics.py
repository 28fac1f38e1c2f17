"""Dispersion, mixtures and the ladder against what they must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode.acceptance.dispersion import Curve, Dispersion, at_window, excess, kappa, merged, resampled
from specdecode.acceptance.kernel import SHARES
from specdecode.acceptance.ladder import COLUMNS, Ladder
from specdecode.acceptance.mixture import (
    FALL_WEIGHTS,
    FALLS,
    GAIN_WEIGHTS,
    GAINS,
    crossed,
    entropy,
    half_width,
    log_mixture,
    needed_information,
)


def test_shares_and_weights_add_up() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert FALL_WEIGHTS.sum() == pytest.approx(1.0)
    assert GAIN_WEIGHTS.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(("shifts", "weights"), [(FALLS, FALL_WEIGHTS), (GAINS, GAIN_WEIGHTS)])
def test_the_mixture_errs_no_more_than_promised(shifts: np.ndarray, weights: np.ndarray) -> None:
    rng, runs = np.random.default_rng(0), 4000
    steps = rng.normal(0.0, math.sqrt(50.0), (runs, 200))
    score = np.cumsum(steps, axis=1)
    information = np.broadcast_to(50.0 * np.arange(1, 201), score.shape)
    top = log_mixture(score, information, 0.05 * shifts, weights).max(axis=1)
    for error in (0.1, 0.01):
        hits = int((top >= math.log(1.0 / error)).sum())
        assert 0 < hits <= runs * error + 3.0 * math.sqrt(runs * error)


@given(st.floats(-300, 300), st.floats(0.1, 1e4), st.floats(0.1, 20))
def test_crossed_is_the_mixture_at_the_bound(score: float, information: float, bound: float) -> None:
    s, i, b = (np.array([x]) for x in (score, information, bound))
    shifts = 0.05 * FALLS
    expected = bool((s > 0)[0] and log_mixture(s, i, shifts, FALL_WEIGHTS)[0] >= bound)
    assert bool(crossed(s, i, shifts, FALL_WEIGHTS, b)[0]) == expected


@given(st.floats(0, 1), st.floats(0.01, 0.99))
def test_entropy_is_zero_only_at_equality(a: float, b: float) -> None:
    value = float(entropy(np.array(a), np.array(b)))
    assert value >= 2.0 * (a - b) ** 2 - 1e-9


def test_the_interval_shrinks_and_meets_the_margin_near_a_pass() -> None:
    needed = needed_information(0.05, 0.01)
    assert half_width(2.0 * needed, 0.05, 0.01) < half_width(needed, 0.05, 0.01) < 0.08


def white(looks: int, variance: float, pods: int = 4, seed: int = 1) -> Dispersion:
    rng, out = np.random.default_rng(seed), Dispersion(5.0, 8, 40, pods)
    for _ in range(looks):
        drafts = np.full((40, pods), 100.0)
        out.add(5.0, drafts, 150.0 + rng.normal(0.0, math.sqrt(100.0 * variance), (40, pods)))
    return out


@pytest.mark.parametrize("pods", [1, 4])
def test_independent_noise_has_one_kappa_at_all_scales(pods: int) -> None:
    curve = white(1024, 1.5, pods).curve()
    raw = curve.squares.sum(axis=0) / curve.weights.sum(axis=0)
    assert raw[:5] == pytest.approx(np.full(5, 1.5), rel=0.12)


def test_kappa_rises_by_at_most_the_window_and_never_falls() -> None:
    values = kappa(white(300, 1.5).curve()) / 1.0
    count = white(300, 1.5).curve().batches
    bare = values / (1.0 + 7.0 / (np.maximum.accumulate(count[:, ::-1], axis=1)[:, ::-1] + 24.0))
    ratio = bare[:, 1:] / bare[:, :-1]
    assert (ratio >= 1.0 - 1e-9).all()
    assert (ratio <= 2.0 + 1e-9).all()


def test_common_drift_drops_out() -> None:
    out = Dispersion(5.0, 6, 1, 4)
    for look in range(256):
        out.add(5.0, np.full((1, 4), 100.0), np.full((1, 4), 150.0 + 40.0 * math.sin(look / 20.0)))
    assert out.curve().squares.max() == pytest.approx(0.0, abs=1e-9)


def test_a_fall_is_no_excess_but_noise_is() -> None:
    def arm(seed: int, variance: float, fall: float) -> Curve:
        rng, out = np.random.default_rng(seed), Dispersion(5.0, 8, 40, 1)
        for look in range(240):
            mean = 150.0 - (fall if look >= 120 else 0.0)
            out.add(5.0, np.full((40, 1), 100.0), mean + rng.normal(0.0, math.sqrt(100.0 * variance), (40, 1)))
        return out.curve()

    stable = arm(1, 1.0, 0.0)
    assert excess(stable, arm(2, 1.0, 80.0)).mean() < 1.1
    assert excess(stable, arm(3, 3.0, 0.0)).mean() > 2.0


def test_curves_are_merged_and_resampled_on_one_grid() -> None:
    curve = white(256, 1.5).curve()
    again = resampled(curve, 5.0, 8)
    assert again.squares == pytest.approx(curve.squares)
    assert merged(again, again).batches == pytest.approx(2.0 * curve.batches)
    with pytest.raises(ValueError, match="resample"):
        merged(curve, resampled(curve, 10.0, 8))
    value, slope = at_window(kappa(curve), 5.0, np.array([5.0, 7.0, 1e6]))
    assert value.shape == slope.shape == (40, 3)
    assert (np.diff(value, axis=1) >= -1e-9).all()


def test_dispersion_goes_on_where_it_was_saved() -> None:
    rng = np.random.default_rng(5)
    whole, saved = Dispersion(5.0, 6, 1, 3), Dispersion(5.0, 6, 1, 3)
    for look in range(70):
        drafts = rng.integers(50, 100, (1, 3)).astype(float)
        accepted = np.floor(drafts * rng.random((1, 3)))
        for one in (whole, saved):
            one.add(5.0, drafts, accepted)
        if look == 33:
            state = saved.state(3)
            saved = Dispersion(5.0, 6, 1, 3)
            saved.restore(state)
    for a, b in zip(whole.curve().arrays(), saved.curve().arrays(), strict=True):
        assert a == pytest.approx(b, rel=1e-4)


@pytest.mark.parametrize("looks", [1, 2, 7, 64, 333])
def test_the_ladder_has_a_start_for_every_age(looks: int) -> None:
    ladder = Ladder(1, 0.0)
    for look in range(1, looks + 1):
        ladder.add(np.ones((len(COLUMNS), 1)))
        ladder.close(5.0 * look)
    assert ladder.indices[0] == 0
    assert len(ladder.indices) < 45
    for age in range(1, looks):
        nearest = min(abs(looks - i - age) for i in ladder.indices)
        assert nearest <= max(1, age / 3)
    restored = Ladder.restored(ladder.state())
    assert restored.windows() == pytest.approx(ladder.windows())
