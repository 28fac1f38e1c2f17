"""The Grafana dashboard: `python -m tools.dashboard` writes charts/specdecode-operator/files/dashboard.json.

Its panels show one SpecDecodeDeployment, from the operator's own metrics and from those of engines and routers. The
latter carry `namespace`, `name`, `revision` and `role`, as the chart's PodMonitor and docs/installation.md have them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, statetimeline, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, VisibilityMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)

FILE: Final = Path(__file__).parents[1] / "charts" / "specdecode-operator" / "files" / "dashboard.json"
UID: Final = "specdecode-deployment"
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
ONE: Final = 'namespace="$namespace", name="$name"'
"""Matchers of the series of the chosen resource."""

Query = tuple[str, str]
"""An expression and the legend of its series."""


def _target(query: Query, number: int = 0) -> prometheus.Dataquery:
    expression, legend = query
    name = chr(ord("A") + number)
    return prometheus.Dataquery().ref_id(name).expr(expression).legend_format(legend).datasource(SOURCE).range()


def _lines(title: str, description: str, unit: str, *queries: Query) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(12)
        .height(8)
        .line_width(1)
        .fill_opacity(0)
        .show_points(VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    for number, query in enumerate(queries):
        panel = panel.with_target(_target(query, number))
    return panel


def _acceptance_length() -> timeseries.Panel:
    panel = _lines(
        "Acceptance length by arm",
        "Tokens a decode step, with the 95 % interval; dashed: what was recorded when stable was promoted.",
        "short",
        (f"max by (revision, arm) (specdecode_acceptance_length{{{ONE}}})", "{{arm}} {{revision}}"),
        (f"max by (arm) (specdecode_acceptance_length_low{{{ONE}}})", "{{arm}} low"),
        (f"max by (arm) (specdecode_acceptance_length_high{{{ONE}}})", "{{arm}} high"),
        (f"max(specdecode_baseline_acceptance_length{{{ONE}}})", "at promotion"),
    )
    unlisted = {"legend": True, "tooltip": False, "viz": False}
    for arm in ("stable", "canary"):
        edge = [DynamicConfigValue("custom.lineWidth", 0), DynamicConfigValue("custom.hideFrom", unlisted)]
        between = [DynamicConfigValue("custom.fillBelowTo", f"{arm} low"), DynamicConfigValue("custom.fillOpacity", 15)]
        panel = panel.override_by_name(f"{arm} low", edge).override_by_name(f"{arm} high", [*edge, *between])
    dashes = {"fill": "dash", "dash": [10, 10]}
    return panel.override_by_name("at promotion", [DynamicConfigValue("custom.lineStyle", dashes)])


def _verdicts() -> statetimeline.Panel:
    steps = [Threshold(value=None, color="transparent"), Threshold(value=1.0, color="blue")]
    return (
        statetimeline.Panel()
        .title("Verdict on the canary")
        .description("The last verdict: 1 while it stands. Inconclusive and NoData hold the step, Fail rolls back.")
        .datasource(SOURCE)
        .span(12)
        .height(8)
        .thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .show_value(VisibilityMode.NEVER)
        .with_target(_target((f"max by (verdict) (specdecode_verdict{{{ONE}}})", "{{verdict}}")))
    )


def _token_time(quantile: float) -> Query:
    rate = f'rate(vllm:request_time_per_output_token_seconds_bucket{{{ONE}, role="decode"}}[$__rate_interval])'
    return (
        f"histogram_quantile({quantile}, sum by (revision, le) ({rate}))",
        f"revision {{{{revision}}}} p{quantile * 100:g}",
    )


def _rate(metric: str, matchers: str, by: str, legend: str) -> Query:
    return f"sum by ({by}) (rate({metric}{{{matchers}}}[$__rate_interval]))", legend


def build() -> Dashboard:
    """The dashboard."""
    decode = f'{ONE}, role="decode"'
    entry = f'{ONE}, envoy_http_conn_manager_prefix="entry"'
    return (
        dashboard.Dashboard("SpecDecodeDeployment")
        .uid(UID)
        .description("Acceptance, rollout and capacity of one SpecDecodeDeployment.")
        .tags(["vllm", "speculative-decoding"])
        .refresh("30s")
        .time("now-3h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_variable("namespace", "Namespace", "label_values(specdecode_condition, namespace)"))
        .with_variable(_variable("name", "Name", 'label_values(specdecode_condition{namespace="$namespace"}, name)'))
        .with_row(Row("Acceptance"))
        .with_panel(_acceptance_length())
        .with_panel(
            _lines(
                "Position acceptance",
                "Accepted over proposed drafts at each position.",
                "percentunit",
                (
                    f"max by (revision, arm, position) (specdecode_position_acceptance_ratio{{{ONE}}})",
                    "{{arm}} {{revision}} position {{position}}",
                ),
            ).min(0)
        )
        .with_panel(
            _lines(
                "Drafts a second",
                "What the operator has counted; a canary without drafts gets no verdict.",
                "short",
                _rate("specdecode_drafts_total", ONE, "revision, arm", "{{arm}} {{revision}}"),
            ).min(0)
        )
        .with_panel(
            _lines(
                "Tunings in force",
                "Values that all Pods of a role of the stable revision report.",
                "short",
                (
                    f"max by (role, tuning, value) (specdecode_tunings_effective{{{ONE}}})",
                    "{{role}} {{tuning}} = {{value}}",
                ),
            )
        )
        .with_row(Row("Rollout"))
        .with_panel(
            _lines(
                "Canary's share of traffic",
                "What its step asks for, and what it has: the share that its ready Pods carry.",
                "percentunit",
                (f"max(specdecode_traffic_weight_asked_ratio{{{ONE}}})", "asked"),
                (f"max(specdecode_traffic_weight_reached_ratio{{{ONE}}})", "reached"),
            )
            .min(0)
            .max(1)
        )
        .with_panel(_verdicts())
        .with_panel(
            _lines(
                "Ready Pods",
                "Ready Pods of each role and arm, and how many the resource asks for.",
                "short",
                (f"max by (role, arm) (specdecode_ready_pods{{{ONE}}})", "{{role}} {{arm}}"),
                (f"max by (role) (specdecode_wanted_pods{{{ONE}}})", "{{role}} wanted"),
            ).min(0)
        )
        .with_panel(
            _lines(
                "Answers by class",
                "At the proxies that clients reach.",
                "reqps",
                _rate(
                    "envoy_http_downstream_rq_xx",
                    entry,
                    "revision, envoy_response_code_class",
                    "revision {{revision}} {{envoy_response_code_class}}xx",
                ),
            ).min(0)
        )
        .with_row(Row("Engines"))
        .with_panel(
            _lines(
                "Tokens a second",
                "Generated by decode Pods.",
                "short",
                _rate("vllm:generation_tokens_total", decode, "revision", "revision {{revision}}"),
            ).min(0)
        )
        .with_panel(
            _lines(
                "Time per output token",
                "Of whole requests, by decode Pods.",
                "s",
                _token_time(0.5),
                _token_time(0.95),
            ).min(0)
        )
        .with_panel(
            _lines(
                "KV transfer failures a second",
                "Transfers and notifications that failed, and blocks that nobody fetched in time.",
                "short",
                *(
                    _rate(f"vllm:nixl_num_{what}_total", ONE, "revision, role", f"{{{{role}}}} {{{{revision}}}} {what}")
                    for what in ("failed_transfers", "failed_notifications", "kv_expired_reqs")
                ),
            ).min(0)
        )
        .with_panel(
            _lines(
                "Requests running and waiting",
                "In decode Pods.",
                "short",
                (f"sum by (revision) (vllm:num_requests_running{{{decode}}})", "revision {{revision}} running"),
                (f"sum by (revision) (vllm:num_requests_waiting{{{decode}}})", "revision {{revision}} waiting"),
            ).min(0)
        )
        .with_row(Row("Operator"))
        .with_panel(
            _lines(
                "Reconciles",
                "How long they take, and how many end in errors.",
                "s",
                (
                    "histogram_quantile(0.99, sum by (le) "
                    "(rate(specdecode_reconcile_duration_seconds_bucket[$__rate_interval])))",
                    "p99",
                ),
                ("sum(rate(specdecode_reconcile_errors_total[$__rate_interval]))", "errors a second"),
            ).min(0)
        )
        .with_panel(
            _lines(
                "Scrapes and the Lease",
                "Pages of metrics asked for a second, and how many operators may write: one.",
                "short",
                _rate("specdecode_scrapes_total", "", "source, result", "{{source}} {{result}}"),
                ("sum(specdecode_leader)", "leaders"),
            ).min(0)
        )
    )


def _variable(name: str, label: str, query: str) -> QueryVariable:
    return (
        QueryVariable(name)
        .label(label)
        .query({"query": query, "refId": f"variable-{name}"})
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def text() -> str:
    """The dashboard as Grafana imports it."""
    return json.dumps(json.loads(JSONEncoder(sort_keys=True, indent=1).encode(build().build())), indent=1) + "\n"


def main() -> None:
    """Write the file."""
    FILE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
