from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode.cluster.statuswrite import essence, status_due

OLD: dict[str, Any] = {
    "observedGeneration": 3,
    "conditions": [{"type": "Ready", "status": "True", "reason": "UpToDate", "message": "2 of 2"}],
    "verdict": {"revision": 2, "verdict": "Pass", "reason": "AcceptanceHeld", "message": "1 %", "at": "noon"},
    "acceptance": [{"revision": 1, "length": "3.49"}],
    "summary": {"rollout": "Ready", "acceptance": "3.49"},
    "weight": {"asked": 10, "reached": 0},
    "evidence": {"drafts": 10},
}


def changed(**fields: Any) -> dict[str, Any]:
    return OLD | fields


NUMBERS = changed(acceptance=[{"revision": 1, "length": "3.50"}], summary={"rollout": "Ready", "acceptance": "3.50"})
SENTENCE = changed(conditions=[OLD["conditions"][0] | {"message": "other numbers"}])
EVIDENCE = changed(evidence={"drafts": 11})
TRANSITIONS = [
    changed(observedGeneration=4),
    changed(conditions=[OLD["conditions"][0] | {"status": "False"}]),
    changed(conditions=[OLD["conditions"][0] | {"reason": "Analysing"}]),
    changed(conditions=[]),
    changed(verdict=OLD["verdict"] | {"verdict": "Fail"}),
    changed(verdict=OLD["verdict"] | {"reason": "AcceptanceFell"}),
    changed(weight={"asked": 10, "reached": 10}),
    changed(summary={"rollout": "Canary 10% 1/3", "acceptance": "3.49"}),
    {},
]


@pytest.mark.parametrize(
    ("new", "since", "interval", "wait"),
    [
        (OLD, 1e9, None, None),
        (OLD, 1e9, 2.0, None),
        (NUMBERS, 0.0, None, 300.0),
        (NUMBERS, 299.0, None, 1.0),
        (NUMBERS, 300.0, None, 0.0),
        (NUMBERS, 0.0, 2.0, 300.0),
        (SENTENCE, 100.0, None, 200.0),
        (EVIDENCE, 0.0, None, 600.0),
        (EVIDENCE, 601.0, None, 0.0),
        (EVIDENCE, 0.5, 2.0, 1.5),
        (EVIDENCE, 2.0, 2.0, 0.0),
        (EVIDENCE | {"acceptance": []}, 2.0, 2.0, 0.0),
        (EVIDENCE | {"acceptance": []}, 2.0, None, 298.0),
        *[(transition, 0.0, None, 0.0) for transition in TRANSITIONS],
        *[(transition, 0.0, 2.0, 0.0) for transition in TRANSITIONS],
    ],
)
def test_when_a_status_is_due(new: dict[str, Any], since: float, interval: float | None, wait: float | None) -> None:
    assert status_due(OLD, new, last_write=1000.0, now=1000.0 + since, interval=interval) == wait


def test_the_first_status_is_due_at_once() -> None:
    assert status_due({}, OLD, last_write=float("-inf"), now=0.0, interval=None) == 0.0


fields = st.dictionaries(
    st.sampled_from(["acceptance", "evidence", "baseline", "weight", "summary", "conditions", "verdict"]),
    st.sampled_from([{}, {"a": 1}, {"message": "x"}]),
)


@given(fields, fields, st.floats(0.0, 1e4), st.none() | st.floats(1.0, 60.0))
def test_a_difference_is_never_forgotten_and_never_waits_long(
    old: dict[str, Any], new: dict[str, Any], since: float, interval: float | None
) -> None:
    old.pop("conditions", None)
    new.pop("conditions", None)
    wait = status_due(old, new, last_write=0.0, now=since, interval=interval)
    if old == new:
        assert wait is None
    else:
        assert wait is not None
        assert 0.0 <= wait <= 600.0
        assert wait == 0.0 or essence(old) == essence(new)
