"""The alerts, as Prometheus's own tool evaluates them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.unit.chart import queries
from tools.chart import CHART

RULES = CHART / "files" / "alerts.yaml"
CASES = Path(__file__).parent / "alerts_test.yaml"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def promtool() -> Run:
    path = shutil.which("promtool")
    assert path, "promtool isn't on PATH: install Prometheus (Debian: apt-get install prometheus)"

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, timeout=60)

    return run


def test_the_rules_are_well_formed(promtool: Run) -> None:
    ran = promtool("check", "rules", RULES)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(queries.alerts())} rules found" in ran.stdout


def test_each_alert_fires_and_keeps_silent_as_it_should(promtool: Run) -> None:
    ran = promtool("test", "rules", CASES)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("name", [rule["alert"] for rule in queries.alerts()])
def test_the_cases_notice_an_alert_that_always_or_never_fires(promtool: Run, tmp_path: Path, name: str) -> None:
    cases = yaml.safe_load(CASES.read_text())
    about = [case for case in cases["tests"] if any(c["alertname"] == name for c in case["alert_rule_test"])]
    firing = [c for case in about for c in case["alert_rule_test"] if c["alertname"] == name]
    assert {bool(c["exp_alerts"]) for c in firing} == {True, False}
    for expression in ("vector(1) > 0", "vector(1) > 1"):
        changed = yaml.safe_load(RULES.read_text())
        for group in changed["groups"]:
            for rule in group["rules"]:
                if rule["alert"] == name:
                    rule["expr"] = expression
                    rule.pop("for", None)
        (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(changed))
        (tmp_path / "test.yaml").write_text(yaml.safe_dump(cases | {"rule_files": ["alerts.yaml"], "tests": about}))
        assert promtool("test", "rules", tmp_path / "test.yaml").returncode != 0


def test_the_dashboard_s_expressions_are_well_formed(promtool: Run, tmp_path: Path) -> None:
    texts = [text for _, found in queries.panels() for text in found]
    filled = [text.replace("$__rate_interval", "1m").replace("$namespace", "n").replace("$name", "m") for text in texts]
    records = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(filled)]
    rules = tmp_path / "panels.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))
    ran = promtool("check", "rules", rules)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(records)} rules found" in ran.stdout
