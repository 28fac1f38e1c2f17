"""Increments from cumulative counters."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode.acceptance import Counters, Increment, Sample


def sample(t: float, drafts: float, accepted: tuple[float, ...], **more: object) -> Sample:
    base = Sample(t, "canary", "a", "0", len(accepted), drafts, drafts * len(accepted), sum(accepted), accepted)
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


def advanced(*samples: Sample) -> Increment | str | None:
    counters = Counters()
    result: Increment | str | None = None
    for item in samples:
        result = counters.advance(item)
    return result


def test_the_first_sample_is_only_an_origin() -> None:
    assert advanced(sample(0, 100, (80, 60))) is None


def test_an_increment_holds_the_differences() -> None:
    found = advanced(sample(0, 100, (80, 60)), sample(5, 150, (120, 80)))
    assert isinstance(found, Increment)
    assert (found.seconds, found.drafts, found.accepted, found.drafted) == (5, 50, (40, 20), (50, 50))


@pytest.mark.parametrize("late", [5.0, 4.0])
def test_late_and_duplicate_samples_move_nothing(late: float) -> None:
    assert advanced(sample(0, 0, (0,)), sample(5, 10, (5,)), sample(late, 10, (5,))) is None


def test_a_reset_is_an_origin_again() -> None:
    assert advanced(sample(0, 100, (80,)), sample(5, 20, (10,))) is None
    found = advanced(sample(0, 100, (80,)), sample(5, 20, (10,)), sample(10, 40, (25,)))
    assert isinstance(found, Increment)
    assert (found.drafts, found.accepted) == (20, (15,))


def test_a_new_start_time_is_a_reset_even_if_counters_rose() -> None:
    assert advanced(sample(0, 1, (1,), created=1.0), sample(5, 20, (10,), created=2.0)) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"drafts": math.nan},
        {"drafts": -1.0},
        {"accepted": math.inf},
        {"accepted_per_pos": (200.0, 0.0)},
        {"accepted": 500.0},
        {"requests_running": -2.0},
        {"depth": 400},
    ],
)
def test_garbage_is_told_and_skipped(wrong: dict[str, object]) -> None:
    counters = Counters()
    counters.advance(sample(0, 100, (80, 60)))
    assert isinstance(counters.advance(dataclasses.replace(sample(5, 150, (120, 80)), **wrong)), str)  # type: ignore[arg-type]
    found = counters.advance(sample(10, 160, (125, 85)))
    assert isinstance(found, Increment)
    assert (found.seconds, found.drafts) == (10, 60)


def test_empty_first_drafts_are_taken_off() -> None:
    more = {"empty_first_draft": True}
    found = advanced(
        sample(0, 100, (80,), requests_finished=10.0, requests_running=2.0, **more),
        sample(5, 160, (120,), requests_finished=14.0, requests_running=3.0, **more),
    )
    assert isinstance(found, Increment)
    assert (found.drafts, found.drafted) == (55, (55,))


def test_untold_dynamic_depth_leaves_position_one() -> None:
    found = advanced(sample(0, 0, (0, 0)), sample(5, 100, (80, 30), draft_tokens=150.0))
    assert isinstance(found, Increment)
    assert found.drafted == (100,)


def test_told_dynamic_depth_counts_by_position() -> None:
    found = advanced(
        sample(0, 0, (0, 0), drafted_per_pos=(0.0, 0.0)),
        sample(5, 100, (80, 30), draft_tokens=150.0, drafted_per_pos=(100.0, 50.0)),
    )
    assert isinstance(found, Increment)
    assert found.drafted == (100, 50)


@given(st.lists(st.tuples(st.integers(0, 500), st.floats(0, 1)), min_size=2, max_size=20), st.integers(0, 19))
def test_increments_add_up_without_resets(steps: list[tuple[int, float]], cut: int) -> None:
    counters, drafts, accepted, total = Counters(), 0.0, 0.0, 0.0
    for i, (more, part) in enumerate(steps):
        drafts, accepted = drafts + more, accepted + int(more * part)
        if i == cut:
            restored = Counters()
            restored.restore(counters.state())
            counters = restored
        found = counters.advance(sample(float(i), drafts, (accepted,)))
        total += found.drafts if isinstance(found, Increment) else 0.0
    assert total == drafts - steps[0][0]
