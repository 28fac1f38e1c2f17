"""Dispersion, mixtures and the ladder against what they must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdecode.acceptance.bounds import entropy, half_width
from specdecode.acceptance.dispersion import Curve, Dispersion, at_window, excess, kappa, merged, resampled
from specdecode.acceptance.kernel import SHARES
from specdecode.acceptance.ladder import COLUMNS, Ladder
from specdecode.acceptance.length import FALLS, GAINS, LengthTest, Windows, needed_information, predicted, stretches
from specdecode.acceptance.planned import Plan, level, log_tail, quantile


def test_shares_add_up() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert sum(FALLS.values()) == pytest.approx(1.0)
    assert sum(GAINS.values()) == pytest.approx(1.0)


@given(st.floats(-5, 35))
def test_the_tail_is_a_close_upper_bound(z: float) -> None:
    found, exact = float(log_tail(np.array(z))), float(stats.norm.logsf(z))
    assert found >= exact - 1e-9
    if z > 0.0:
        assert found <= exact + 0.08


def walks(correlation: float, drift: float, runs: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Standardised sums (z) and information of runs whose increments are correlated: z by run and look."""
    rng, looks = np.random.default_rng(0), 200
    noise = rng.standard_normal((runs, looks))
    for look in range(1, looks):
        noise[:, look] = correlation * noise[:, look - 1] + math.sqrt(1.0 - correlation**2) * noise[:, look]
    lags = correlation ** np.abs(np.arange(looks)[:, None] - np.arange(looks)[None, :])
    variance = np.diag(np.cumsum(np.cumsum(lags, axis=0), axis=1))
    information = 20.0 * (1.0 + correlation) / (1.0 - correlation) * np.arange(1, looks + 1) ** 2 / variance
    z = np.cumsum(noise, axis=1) / np.sqrt(variance) + drift * np.sqrt(information)
    return z, information


@pytest.mark.parametrize("shares", [FALLS, GAINS])
@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_a_plan_errs_no_more_than_promised_and_sees_its_shift(shares: dict[float, float], correlation: float) -> None:
    plan, error = Plan(0.05, shares, 0.05), 0.05

    def fired(drift: float, until: float = math.inf) -> float:
        z, information = walks(correlation, drift)
        judged, out = np.zeros(z.shape[0]), np.zeros(z.shape[0], dtype=bool)
        for look in range(z.shape[1]):
            if information[look] > until:
                break
            now = np.full(z.shape[0], information[look])
            out |= plan.fires(z[:, look], now, judged)
            judged = np.maximum(judged, now)
        return float(out.mean())

    assert 0.0 < fired(0.0) <= error + 3.0 * math.sqrt(error / 4000)
    assert fired(0.05, 1.05 * level(0.05, shares, error, 1.0)) >= 0.5


def test_a_look_that_reaches_many_levels_may_spend_all_of_them() -> None:
    plan, z = Plan(0.05, FALLS, 0.01), np.array([quantile(0.01) + 0.02])
    assert plan.fires(z, np.array([1e9]), np.zeros(1))[0]
    assert not plan.fires(z, np.array([1e9]), np.array([1e9]))[0]
    assert not plan.fires(z, np.array([level(0.05, FALLS, 0.01, 3.0)]), np.zeros(1))[0]


def test_the_stretch_before_a_window_predicts_requests_that_outlast_both() -> None:
    rng, runs = np.random.default_rng(0), 20000
    lasting = rng.normal(0.0, 1.0, (runs, 1))
    window, before = (lasting + 0.5 * rng.normal(0.0, 1.0, (runs, 1)) for _ in range(2))
    rest = 0.1 * rng.normal(0.0, 1.0, (runs, 1))

    def known(change: np.ndarray, variance: float, drafts: float) -> Windows:
        flat = np.full((runs, 1), variance)
        return Windows(change, 0.9 * flat, 0.1 * flat, flat, np.full((runs, 1), drafts))

    surplus, left = predicted(
        known(window, 1.25, 1.0),
        known(0.5 * (window + before), 1.125, 2.0),
        known(before, 1.25, 1.0),
        known(rest, 0.01, 100.0),
    )
    assert left == pytest.approx(np.full((runs, 1), 1.0 - 1.0 / 1.26 / 1.25), rel=0.01)
    assert float((window - surplus).var()) == pytest.approx(1.25 * float(left[0, 0]), rel=0.03)


@given(st.lists(st.floats(1, 400), min_size=1, max_size=40))
def test_stretches_lie_between_their_windows(gaps: list[float]) -> None:
    ages = np.cumsum(gaps)[::-1]
    windows, earlier = stretches(ages)
    assert (ages[earlier] > ages[windows]).all()
    assert (earlier > 0).all()


def test_later_windows_spend_less_the_longer_a_canary_lasts() -> None:
    test = LengthTest(0.05, 0.009, 0.01, 1)

    def fails(z: float, elapsed: float) -> bool:
        return bool(
            test.later_fails(np.array([[-z]]), np.ones((1, 1)), np.full((1, 1), 1e9), np.array([60.0]), elapsed)[0, 0]
        )

    assert not fails(3.5, 1800.0)
    assert fails(4.9, 1800.0)
    assert not fails(4.9, 40000.0)
    assert fails(7.0, 40000.0)


@given(st.floats(0, 1), st.floats(0.01, 0.99))
def test_entropy_is_zero_only_at_equality(a: float, b: float) -> None:
    value = float(entropy(np.array(a), np.array(b)))
    assert value >= 2.0 * (a - b) ** 2 - 1e-9


def test_the_interval_shrinks_and_meets_the_margin_near_a_pass() -> None:
    needed = needed_information(0.05, 0.01)
    assert half_width(2.0 * needed, needed, 0.01) < half_width(needed, needed, 0.01) < 0.08


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
    bare = values / (1.0 + 5.0 / (np.maximum.accumulate(count[:, ::-1], axis=1)[:, ::-1] + 24.0))
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
