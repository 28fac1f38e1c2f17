"""Status as it is read, whatever somebody wrote into it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode.api import SpecDecodeDeploymentStatus

GOOD: dict[str, Any] = {"revision": 1, "length": "2.50", "interval": ["2.40", "2.60"], "positions": ["0.900", "0.600"]}
NUMBERS = st.one_of(
    st.text(max_size=8),
    st.floats().map(str),
    st.sampled_from(["", "x", "n/a", "nan", "-inf", "Infinity", "1e999", "2.5 tokens", "2,5"]),
)
ARM = st.fixed_dictionaries(
    {"revision": st.integers(1, 9)},
    optional={
        "length": NUMBERS,
        "interval": st.lists(NUMBERS, max_size=2),
        "positions": st.lists(NUMBERS, max_size=16),
    },
)


@given(acceptance=st.lists(ARM, max_size=4), baseline=st.none() | ARM)
def test_every_number_that_is_left_is_one(acceptance: list[dict[str, Any]], baseline: dict[str, Any] | None) -> None:
    status = SpecDecodeDeploymentStatus.model_validate({"acceptance": acceptance, "baseline": baseline})
    for arm in (*status.acceptance, *([status.baseline] if status.baseline else [])):
        assert all(math.isfinite(float(text)) for text in (arm.length or "0", *arm.interval, *arm.positions))
        assert len(arm.interval) in (0, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"length": "x"},
        {"length": "n/a"},
        {"length": "nan"},
        {"interval": ["2.40"]},
        {"interval": ["2.40", "inf"]},
        {"positions": ["0.900", "x"]},
        {"positions": ["-Infinity"]},
    ],
)
def test_an_entry_that_can_t_be_read_is_dropped_and_the_others_stay(wrong: dict[str, Any]) -> None:
    status = SpecDecodeDeploymentStatus.model_validate(
        {"acceptance": [GOOD | wrong, GOOD | {"revision": 2}], "baseline": GOOD | wrong}
    )
    assert [arm.model_dump(exclude_unset=True) for arm in status.acceptance] == [GOOD | {"revision": 2}]
    assert status.baseline is None
    assert SpecDecodeDeploymentStatus.model_validate({"baseline": GOOD}).baseline is not None
