"""Scenario files: what they mean, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bed.fleet.scenario import Behaviour, Match, ScenarioError, Subject, depth_of, flags, load, parse

FOLDER = Path(__file__).parents[2] / "bed" / "scenarios"
SUBJECT = Subject(
    deployment="llm",
    namespace="team",
    revision=2,
    depth=3,
    image="registry.example/vllm:0.33.0",
    args={"--revision": "abc"},
    env={"MODE": "x"},
)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_scenario_that_we_ship_is_readable(path: Path) -> None:
    found = load(path)
    assert found.behaviour_of(SUBJECT, 100.0).positions(3)


def test_a_later_rule_wins_and_changes_only_what_it_names() -> None:
    scenario = parse(
        "behaviour: {failing: 0.1}\n"
        "rules:\n"
        "  - {match: {revision: 2}, acceptance: [0.5], draftRate: 7}\n"
        "  - {match: {depth: 3}, acceptance: [0.2, 0.1]}\n"
        "  - {match: {revision: 9}, failing: 1}\n"
    )
    found = scenario.behaviour_of(SUBJECT, None)
    assert (found.acceptance, found.draft_rate, found.failing) == ([0.2, 0.1], 7, 0.1)
    assert scenario.behaviour_of(Subject(), None) == scenario.behaviour


@pytest.mark.parametrize(
    ("match", "since", "holds"),
    [
        ({}, None, True),
        ({"revision": 2, "depth": 3}, None, True),
        ({"revision": 2, "depth": 4}, None, False),
        ({"revision_from": 2}, None, True),
        ({"revision_from": 3}, None, False),
        ({"deployment": "l.m"}, None, True),
        ({"deployment": "l"}, None, False),
        ({"namespace": "other"}, None, False),
        ({"image": "vllm:0\\.33"}, None, True),
        ({"image": "vllm:0\\.32"}, None, False),
        ({"args": {"--revision": "abc"}}, None, True),
        ({"args": {"--revision": "def"}}, None, False),
        ({"args": {"--other": "abc"}}, None, False),
        ({"env": {"MODE": "x"}}, None, True),
        ({"env": {"MODE": "y"}}, None, False),
        ({"after": 60.0}, None, False),
        ({"after": 60.0}, 59.9, False),
        ({"after": 60.0}, 60.0, True),
    ],
)
def test_a_match_holds_where_each_of_its_fields_does(
    match: dict[str, object], since: float | None, holds: bool
) -> None:
    assert Match.model_validate(match).holds(SUBJECT, since) is holds


@pytest.mark.parametrize(("depth", "positions"), [(1, [0.8]), (2, [0.8, 0.4]), (4, [0.8, 0.4, 0.2, 0.1])])
def test_positions_beyond_the_list_go_on_by_its_last_ratio(depth: int, positions: list[float]) -> None:
    assert Behaviour(acceptance=[0.8, 0.4]).positions(depth) == pytest.approx(positions)


@pytest.mark.parametrize("acceptance", [[0.0, 0.0], [0.3]])
def test_a_list_without_a_ratio_goes_on_as_it_is(acceptance: list[float]) -> None:
    assert Behaviour(acceptance=acceptance).positions(3) == [acceptance[0]] * 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("behaviour: {acceptance: [0.5, 0.6]}", ["acceptance", "0.6", "must not rise"]),
        ("behaviour: {acceptance: [1.2]}", ["acceptance", "1.2"]),
        ("behavior: {}", ["behavior", "not permitted"]),
        ("rules: [{match: {revison: 2}}]", ["revison"]),
        ("rules: [{match: {revision: 2}, acceptence: [0.1]}]", ["acceptence"]),
        ("traffic: {rate: -1}", ["rate", "-1"]),
        ("{", ["no YAML"]),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(text: str, words: list[str]) -> None:
    with pytest.raises(ScenarioError) as refused:
        parse(text, "file.yaml")
    for word in [*words, "file.yaml"]:
        assert word in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"absent\.yaml can't be read"):
        load(tmp_path / "absent.yaml")


def test_flags_of_a_command_line() -> None:
    found = flags(["serve", "m", "--a", "1", "--b=2", "--bare", "--c", '{"k": 1}', "stray"])
    assert found == {"--a": "1", "--b": "2", "--bare": "", "--c": '{"k": 1}'}


@pytest.mark.parametrize(
    ("config", "depth"), [('{"num_speculative_tokens": 5}', 5), ("{}", 0), ("", 0), ("not json", 0), ("[]", 0)]
)
def test_depth_of_a_command_line(config: str, depth: int) -> None:
    assert depth_of({"--speculative-config": config}) == depth
