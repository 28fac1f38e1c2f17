"""Traces: what is read, what is refused, what a replay says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specdecode.acceptance import Policy, Step, TraceError, read_trace, replay
from tests.sim.fleet import Behaviour, Fleet

LINE: dict[str, Any] = {
    "t": 1.0,
    "arm": "canary",
    "pod": "a",
    "engine": "0",
    "depth": 1,
    "drafts": 10,
    "draft_tokens": 10,
    "accepted": 5,
    "accepted_per_pos": [5],
}


def lines(fleet: Fleet, looks: int, **more: Any) -> list[str]:
    out = []
    for _ in range(looks):
        for s in fleet.step():
            fields = ("t", "arm", "pod", "engine", "depth", "drafts", "draft_tokens", "accepted", "accepted_per_pos")
            row = {f: getattr(s, f) for f in fields}
            row |= {"requests_finished": s.requests_finished, "requests_running": s.requests_running}
            out.append(json.dumps(row | more))
    return out


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"t": "x"}, "t is 'x'"),
        ({"arm": "old"}, "arm is 'old'"),
        ({"pod": ""}, "pod is ''"),
        ({"engine": None}, "engine is None"),
        ({"depth": 0}, "depth is 0"),
        ({"drafts": None}, "drafts is missing"),
        ({"accepted_per_pos": 3}, "accepted_per_pos is 3"),
        ({"weight": 120}, "weight is 120"),
        ({"split": "half"}, "split is 'half'"),
        ({"source": "proxy"}, "source is 'proxy'"),
        ({"empty_first_draft": True}, "requests_finished"),
        ({"requests_running": True}, "requests_running is True"),
        ({"t": 0.5}, "before the line above"),
    ],
)
def test_a_bad_line_is_named(change: dict[str, Any], word: str) -> None:
    with pytest.raises(TraceError, match="line 3: ") as caught:
        list(read_trace([json.dumps(LINE), "", json.dumps(LINE | change)]))
    assert word in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1]", "nonsense"])
def test_no_json_object_is_named(text: str) -> None:
    with pytest.raises(TraceError, match="line 1: "):
        list(read_trace([text]))


def test_unknown_fields_are_ignored_and_errors_are_read() -> None:
    error = {"t": 2.0, "arm": "stable", "pod": "b", "error": "timeout"}
    first, second = read_trace([json.dumps(LINE | {"colour": "red"}), json.dumps(error)])
    assert first.item.pod == "a"
    assert getattr(second.item, "error", None) == "timeout"


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(TraceError, match="no line"):
        replay(Policy(), [Step(10.0)], read_trace([]))


@pytest.mark.parametrize(
    ("keep", "verdict", "reason"), [(1.0, "Pass", "AcceptanceHeld"), (0.5, "Fail", "AcceptanceFell")]
)
def test_a_replay_ends_with_its_verdict(keep: float, verdict: str, reason: str) -> None:
    fleet = Fleet(3, Behaviour(running=60), Behaviour(running=60, keep=keep))
    result = replay(Policy(), [Step(10.0), Step(100.0)], read_trace(lines(fleet, 120)))
    assert (result["verdict"], result["reason"]) == (verdict, reason)
    assert result["at"] == result["timeline"][-1]["at"]
    assert [p["step"] for p in result["passes"]] == ([1] if verdict == "Pass" else [])
    assert set(result["timeline"][0]) >= {"at", "verdict", "reason", "estimate", "interval"}


def test_weights_make_steps_and_each_needs_its_pass() -> None:
    fleet = Fleet(4, Behaviour(running=150), Behaviour(running=150))
    trace = lines(fleet, 60, weight=10) + lines(fleet, 60, weight=50)
    result = replay(Policy(margin=0.2), [Step(10.0, 60.0), Step(50.0), Step(100.0)], read_trace(trace))
    assert [p["step"] for p in result["passes"]] == [1, 2]
    assert result["passes"][0]["at"] >= 60.0
    assert result["at"] == result["passes"][1]["at"]


def test_a_replay_is_repeatable() -> None:
    trace = lines(Fleet(5, Behaviour(), Behaviour(keep=0.8)), 40)
    first, second = (replay(Policy(), [Step(10.0)], read_trace(trace)) for _ in range(2))
    assert first == second
