"""Every query of the dashboard and the alerts asks for metrics and labels that are really served."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from specdecode.telemetry import Metrics
from tests.bed.fleet import exposition
from tests.bed.fleet.simulation import EngineCounters, ProxyCounters
from tests.unit.chart import queries
from tools import dashboard
from tools.chart import ROOT

REAL = Path(__file__).parent / "vllm-0.32.0.txt"
"""A decode instance's page, from vLLM itself with NIXL and MTP; its numbers don't matter."""
TARGET = {"namespace", "name", "revision", "role", "le"}
"""Labels that scraping adds to engines and routers (see podmonitor.yaml), and that histograms have."""


def _proxy_page() -> str:
    return exposition.proxy_page(ProxyCounters())


def _engine_page() -> str:
    return exposition.engine_page(EngineCounters(created=0.0), model="m", depth=3)


def _operator() -> dict[str, set[str]]:
    """The operator's metrics with their labels; every series of its registry made once."""
    metrics = Metrics("0.0.0")
    for collector in vars(metrics).values():
        if labels := getattr(collector, "_labelnames", ()):
            collector.labels(*(["x"] * len(labels)))
    return queries.samples(generate_latest(metrics.registry).decode())


OPERATOR = _operator()
VLLM = queries.samples(REAL.read_text())


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ('max by (a, b) (x_total{c="rate(y)"}) < 0.95 * z', {"x_total", "z"}),
        ("sum by (source) (rate(s_total[10m])) / sum(t) > 0.2 or absent(u == 1)", {"s_total", "t", "u"}),
        ("(v_total unless v_total offset 15m) > 0", {"v_total"}),
        ("histogram_quantile(0.5, sum by (le) (rate(vllm:h_bucket{a=~'b'}[$__rate_interval])))", {"vllm:h_bucket"}),
    ],
)
def test_names_are_found(expression: str, found: set[str]) -> None:
    assert queries.names(expression) == found


def test_labels_are_found() -> None:
    assert queries.labels('x{a="1", b!~"2"} / y{c="3"}') == {("x", "a"), ("x", "b"), ("y", "c")}


EXPRESSIONS = [(title, text) for title, texts in queries.panels() for text in texts]
EXPRESSIONS += [(rule["alert"], rule["expr"]) for rule in queries.alerts()]


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_what_a_query_reads_is_served(where: str, expression: str) -> None:
    proxy = queries.samples(_proxy_page())
    served = OPERATOR | VLLM | proxy
    assert queries.names(expression), where
    for name in queries.names(expression):
        assert name in served, f"{where}: nothing serves {name}"
    for name, label in queries.labels(expression):
        added = set() if name in OPERATOR else TARGET
        assert label in served[name] | added, f"{where}: {name} has no label {label}"


def test_the_simulated_engine_serves_what_queries_read_too() -> None:
    simulated = queries.samples(_engine_page())
    asked = {name for _, text in EXPRESSIONS for name in queries.names(text) if name.startswith("vllm:")}
    assert asked
    assert asked <= simulated.keys()


def test_every_asked_for_panel_is_there() -> None:
    titles = {title for title, _ in queries.panels()}
    assert titles >= {
        "Acceptance length by arm",
        "Position acceptance",
        "Tokens a second",
        "Time per output token",
        "Canary's share of traffic",
        "Verdict on the canary",
        "Ready Pods",
        "KV transfer failures a second",
    }


def test_the_committed_dashboard_is_today_s() -> None:
    assert dashboard.FILE.read_text() == dashboard.text(), "run make chart-files"


def test_panels_don_t_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in queries.dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_alert_has_a_runbook_and_a_severity() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "runbooks").glob("SpecDecode*.md")}
    assert pages == {rule["alert"] for rule in queries.alerts()}
    for rule in queries.alerts():
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{rule['alert']}.md"
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert {"summary", "description"} <= rule["annotations"].keys()
