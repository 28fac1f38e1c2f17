"""Dispersion, mixtures and the ladder against what they must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdecode.acceptance.bounds import entropy, half_width
from specdecode.acceptance.dispersion import Curve, Dispersion, at_window, excess, kappa, kept, merged, resampled
from specdecode.acceptance.kernel import SHARES
from specdecode.acceptance.ladder import COLUMNS, Ladder
from specdecode.acceptance.length import (
    FALLS,
    GAINS,
    LATER_DIM_FALLS,
    LATER_FALLS,
    LATER_SHARE,
    SLOW_FALLS,
    WHOLE_SHARE,
    LengthTest,
    needed_information,
)
from specdecode.acceptance.planned import Plan, beyond, level, log_tail, quantile


def test_shares_add_up() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
    for shares in (FALLS, SLOW_FALLS, GAINS, LATER_FALLS, LATER_DIM_FALLS):
        assert sum(shares.values()) == pytest.approx(1.0)
    assert LATER_DIM_FALLS.keys() == LATER_FALLS.keys()
    assert WHOLE_SHARE + LATER_SHARE <= 1.0


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


@pytest.mark.parametrize(("shares", "shift"), [(FALLS, 1.0), (SLOW_FALLS, 3.0), (GAINS, 1.0)])
@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_a_plan_errs_no_more_than_promised_and_sees_its_shift(
    shares: dict[float, float], shift: float, correlation: float
) -> None:
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
    # Information comes in steps of at most 400.
    assert fired(shift * 0.05, max(1.05 * level(0.05, shares, error, shift), 400.0)) >= 0.5


def test_a_look_that_reaches_many_levels_may_spend_all_of_them() -> None:
    plan, z = Plan(0.05, FALLS, 0.01), np.array([quantile(0.01) + 0.02])
    assert plan.fires(z, np.array([1e9]), np.zeros(1))[0]
    assert not plan.fires(z, np.array([1e9]), np.array([1e9]))[0]
    assert not plan.fires(z, np.array([level(0.05, FALLS, 0.01, 3.0)]), np.zeros(1))[0]


def whole(looks: list[tuple[float, float]], z: float) -> list[bool]:
    """Whether the window that knows most fails, by look: (seconds, information) each, all at the same z."""
    test, requests = LengthTest(0.05, 0.009, 0.01, 1), np.full(1, 1e9)
    found = []
    for elapsed, information in looks:
        known, change = np.array([information]), np.array([-0.05 - z / math.sqrt(information)])
        found.append(bool(test.whole_fails(change, known, requests, np.ones(1), elapsed)[0]))
    return found


def test_a_slow_canary_spends_on_the_fall_that_it_can_show() -> None:
    error = WHOLE_SHARE * 0.009
    slow, quick = (level(0.05, shares, error, 3.0) for shares in (SLOW_FALLS, FALLS))
    z = 0.5 * (quantile(error * (SLOW_FALLS[6.0] + SLOW_FALLS[3.0])) + quantile(error * FALLS[3.0]))
    assert slow < quick
    # As much at either look, but the one canary had known it for long.
    assert whole([(590.0, 0.5 * slow), (605.0, 0.6 * slow), (900.0, 1.01 * quick)], z) == [False, False, True]
    assert whole([(300.0, 1.01 * quick), (900.0, 1.02 * quick)], z) == [False, False]
    # Of one whose noise wasn't known until then it isn't said that it is slow.
    assert whole([(590.0, 1e-12), (605.0, 1.01 * quick)], z) == [False, False]
    # Between the levels when it was asked, it stays with the plan that it began with.
    between = 0.5 * (slow + quick)
    assert whole([(590.0, between), (605.0, between), (900.0, 1.01 * quick)], z) == [False, False, False]
    # What one plan has spent isn't spent again by the other: above the level that tells them apart they are alike.
    assert {s: p for s, p in FALLS.items() if s > 3.0} == {s: p for s, p in SLOW_FALLS.items() if s > 3.0}


@given(st.floats(1e-300, 0.02))
def test_beyond_is_where_the_tail_is_that_small(error: float) -> None:
    assert float(log_tail(beyond(np.array([error])))[0]) == pytest.approx(math.log(error), abs=1e-3)


def later(z: float, elapsed: float, slope: float = 0.0, seconds: float = 60.0) -> bool:
    """Whether a later window fails that has just the information at which a fall of two margins shows at z."""
    test, information = LengthTest(0.05, 0.009, 0.01, 1), np.array([[(z / 0.05) ** 2]])
    requests, change = np.full((1, 1), 1e9), np.array([[-0.1]])
    return bool(
        test.later_fails(change, information, requests, np.array([seconds]), np.array([[slope]]), elapsed)[0, 0]
    )


def test_later_windows_spend_less_the_longer_a_canary_lasts() -> None:
    assert not later(3.5, 1800.0)
    assert later(4.9, 1800.0)
    assert not later(4.9, 40000.0)
    assert later(7.0, 40000.0)


def test_the_fewer_unlike_windows_a_period_has_the_more_each_may_spend() -> None:
    assert not later(4.2, 1800.0)
    assert later(4.2, 1800.0, seconds=600.0)
    assert later(4.2, 1800.0, slope=0.95)


def test_the_fewer_lengths_of_window_hold_requests_enough_the_more_each_may_spend() -> None:
    def fails(short: float) -> bool:
        """The longer of two windows; the one of 10 s has the information given."""
        test, requests = LengthTest(0.05, 0.009, 0.01, 1), np.full((1, 2), 1e9)
        information, change = np.array([[(4.0 / 0.05) ** 2, short]]), np.array([[-0.1, 0.0]])
        return bool(
            test.later_fails(change, information, requests, np.array([600.0, 10.0]), np.zeros((1, 2)), 1800.0)[0, 0]
        )

    assert fails(0.0)
    assert not fails(1.0)


def test_a_canary_at_the_margin_or_better_never_fails_later() -> None:
    test = LengthTest(0.05, 0.009, 0.01, 1)
    requests, information = np.full((1, 3), 1e9), np.full((1, 3), 1e12)
    fails = test.later_fails(
        np.array([[-0.05, 0.0, 0.4]]), information, requests, np.full(3, 60.0), np.zeros((1, 3)), 1800.0
    )
    assert not fails.any()


@pytest.mark.parametrize(("life", "least", "most"), [(1e9, 0.9, 1.1), (120.0, 0.95, 1.6), (1e-3, 0.9, 1.1)])
def test_kappa_of_short_windows_goes_by_the_growth_above(life: float, least: float, most: float) -> None:
    """From batches of 40 s and longer: noise that lasts ``life`` seconds, 100 a draft over long windows."""
    scales = 5.0 * 2.0 ** np.arange(11)
    true = 100.0 * np.minimum(scales / life, 1.0) if life > 1e6 else 100.0 * _smoothed(scales / life)
    true = true * (1e7 if life > 1e6 else 1.0)
    batches = np.where(scales < 40.0, 0.0, 1e6)[None, :]
    found, _ = kappa(Curve.without_steps(5.0, true[None, :] * batches, batches, batches))
    assert (found[0] >= least * true).all()
    assert (found[0] <= most * true + 3.0).all()


def _smoothed(ratio: np.ndarray) -> np.ndarray:
    return np.asarray(1.0 - (1.0 - np.exp(-ratio)) / ratio)


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


@pytest.mark.parametrize(
    "gaps",
    [[30.0], [5.0], [5.0, 25.0], [4.9, 5.1, 5.05, 4.95, 5.0, 5.1], [28.5, 31.0], [12.0]],
    ids=["as long", "shorter", "pairs", "jitter", "late and early", "no divisor"],
)
def test_a_batch_is_as_long_as_its_scale_says_however_often_its_arm_is_scraped(gaps: list[float]) -> None:
    found, total = Dispersion(30.0, 4, 1, 2), 7200.0
    for k in range(int(total / (sum(gaps) / len(gaps)))):
        found.add(gaps[k % len(gaps)], np.full((1, 2), 10.0), np.full((1, 2), 5.0))
    for scale in range(4):
        # The first batch of an arm counts too: its Pods are compared with each other.
        assert found.curve().batches[0, scale] == pytest.approx(total / (30.0 * 2.0**scale), rel=0.26, abs=1.0)


@pytest.mark.parametrize("pods", [1, 4])
def test_independent_noise_has_one_kappa_at_all_scales(pods: int) -> None:
    curve = white(1024, 1.5, pods).curve()
    raw = curve.squares.sum(axis=0) / curve.weights.sum(axis=0)
    assert raw[:5] == pytest.approx(np.full(5, 1.5), rel=0.12)


def test_kappa_rises_by_at_most_the_window_and_never_falls() -> None:
    count = white(300, 1.5).curve().batches
    certain = np.maximum.accumulate(count[:, ::-1], axis=1)[:, ::-1]
    for values, caution, leant in zip(kappa(white(300, 1.5).curve()), (5.0, 3.0), (6.0, 12.0), strict=True):
        bare = values / (1.0 + caution / (certain + leant))
        ratio = bare[:, 1:] / bare[:, :-1]
        assert (ratio >= 1.0 - 1e-9).all()
        assert (ratio <= 2.0 + 1e-9).all()


def test_what_is_uncertain_of_the_noise_costs_a_fail_more_than_a_pass() -> None:
    failing, passing = kappa(white(300, 1.5).curve())
    assert (failing > passing).all()
    # The less the longer a scale has been measured.
    assert (np.diff(failing / passing, axis=1) >= -1e-9).all()


@pytest.mark.parametrize(("looks", "known"), [(22, False), (23, True)])
def test_a_handful_of_batches_says_nothing(looks: int, known: bool) -> None:
    assert np.isfinite(kappa(white(looks, 1.5).curve())[0]).all() == known


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
    for of_a_fall, of_noise in zip(excess(stable, arm(2, 1.0, 80.0)), excess(stable, arm(3, 3.0, 0.0)), strict=True):
        assert of_a_fall.mean() < 1.15
        assert of_noise.mean() > 2.0


@pytest.mark.parametrize("pods", [1, 2, 8])
@pytest.mark.parametrize("looks", [6, 12, 40, 200])
def test_what_two_largest_steps_take_with_them_is_known(pods: int, looks: int) -> None:
    """So that an arm seen for a minute isn't thought calmer than one seen for an hour."""
    rng, out = np.random.default_rng(1), Dispersion(5.0, 8, 4000, pods)
    for _ in range(2 * looks):
        out.add(5.0, np.full((4000, pods), 100.0), rng.normal(150.0, 10.0, (4000, pods)))
    curve = out.curve()
    left = curve.steps[:, 1] / curve.step_weights[:, 1]
    # Each step's weight is half a batch's drafts of which the mean of two has half the variance.
    assert float(left.mean() / kept(curve)[:, 1].mean()) == pytest.approx(1.0, abs=0.15)


def test_curves_are_merged_and_resampled_on_one_grid() -> None:
    curve = white(256, 1.5).curve()
    again = resampled(curve, 5.0, 8)
    assert again.squares == pytest.approx(curve.squares)
    assert merged(again, again).batches == pytest.approx(2.0 * curve.batches)
    with pytest.raises(ValueError, match="resample"):
        merged(curve, resampled(curve, 10.0, 8))
    value, slope = at_window(kappa(curve)[0], 5.0, np.array([5.0, 7.0, 1e6]))
    assert value.shape == slope.shape == (40, 3)
    assert (np.diff(value, axis=1) >= -1e-9).all()


def test_dispersion_goes_on_where_it_was_saved() -> None:
    rng = np.random.default_rng(5)
    whole, saved = Dispersion(5.0, 6, 2, 3), Dispersion(5.0, 6, 2, 3)
    for look in range(70):
        drafts = rng.integers(50, 100, (2, 3)).astype(float)
        accepted = np.floor(drafts * rng.random((2, 3)))
        for one in (whole, saved):
            one.add(5.0, drafts, accepted)
        if look == 33:
            states = [saved.state(run, 3) for run in range(2)]
            saved = Dispersion(5.0, 6, 2, 3)
            for run, state in enumerate(states):
                saved.restore(run, state, under_way=True)
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
