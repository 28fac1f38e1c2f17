"""What real vLLM served while one decode server loaded KV that wasn't its requests' own.

``tests/vllm/test_disaggregated.py`` records the trace: both servers answered every request exactly.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdecode.cli.main import main

ROOT = Path(__file__).parents[3]
TRACE = ROOT / "tests/vllm/fixtures/wrong_kv.jsonl"


def scrapes(arm: str) -> list[dict[str, object]]:
    """The scrapes of one arm."""
    lines = [json.loads(line) for line in TRACE.read_text().splitlines()]
    return [line for line in lines if line["arm"] == arm]


@pytest.mark.parametrize(("arm", "low", "high"), [("stable", 0.7, 1.0), ("canary", 0.0, 0.05)])
def test_wrong_kv_shows_in_acceptance_alone(arm: str, low: float, high: float) -> None:
    first, last = scrapes(arm)[0], scrapes(arm)[-1]
    accepted, drafted = (float(str(last[name])) - float(str(first[name])) for name in ("accepted", "draft_tokens"))
    assert low <= accepted / drafted <= high
    assert last.get("requests_failed", 0) == first.get("requests_failed", 0)


def test_the_analysis_calls_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "-f", str(ROOT / "examples/01-plain.yaml"), "--trace", str(TRACE), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "Fail", told["reason"]
    assert told["passes"] == []
    begun = float(str(scrapes("canary")[0]["t"]))
    assert told["at"] - begun <= 120.0
