from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from specdecode.telemetry import Metrics


def series(metrics: Metrics) -> dict[str, float]:
    """All samples about resources, as they are served."""
    page = generate_latest(metrics.registry).decode()
    return {
        f"{s.name}{sorted(s.labels.items())}": s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
        if "namespace" in s.labels
    }


def test_a_round_sets_what_it_names_and_removes_what_the_round_before_set() -> None:
    metrics = Metrics("1")
    first = metrics.of("a", "glm")
    first.set(metrics.acceptance_length, 3.5, "1", "stable")
    first.set(metrics.acceptance_length, 3.4, "2", "canary")
    first.close()
    other = metrics.of("a", "other")
    other.set(metrics.acceptance_length, 2.0, "1", "stable")
    other.close()
    second = metrics.of("a", "glm")
    second.set(metrics.acceptance_length, 3.6, "2", "stable")
    second.close()
    assert sorted(series(metrics).values()) == [2.0, 3.6]


def test_nothing_is_served_of_a_round_that_isn_t_closed() -> None:
    metrics = Metrics("1")
    metrics.of("a", "glm").set(metrics.weight_asked, 0.1)
    assert series(metrics) == {}


def test_a_total_in_a_round_only_grows() -> None:
    metrics = Metrics("1")
    for total in (10.0, 25.0, 20.0, 30.0):
        each = metrics.of("a", "glm")
        each.set(metrics.drafts_total, total, "1", "stable")
        each.close()
    assert list(series(metrics).values()) == [35.0]


def test_counted_series_outlive_rounds_and_all_end_with_the_resource() -> None:
    metrics = Metrics("1")
    metrics.count(metrics.rollbacks, "a", "glm", "AcceptanceFell")
    metrics.count(metrics.rollbacks, "a", "glm", "AcceptanceFell")
    for weight in (0.1, 0.5):
        each = metrics.of("a", "glm")
        each.set(metrics.weight_asked, weight)
        each.close()
    assert sorted(series(metrics).values()) == [0.5, 2.0]
    metrics.forget("a", "glm")
    assert series(metrics) == {}
    metrics.forget("a", "glm")


def test_a_state_is_one_series_of_one_and_zeros() -> None:
    metrics = Metrics("1")
    each = metrics.of("a", "glm")
    each.one_of(metrics.condition, "Unknown", ("True", "False", "Unknown"), "Ready")
    each.close()
    values = {
        status: metrics.registry.get_sample_value(
            "specdecode_condition", {"namespace": "a", "name": "glm", "type": "Ready", "status": status}
        )
        for status in ("True", "False", "Unknown")
    }
    assert values == {"True": 0.0, "False": 0.0, "Unknown": 1.0}


def test_every_metric_has_help_and_the_project_s_prefix() -> None:
    for family in Metrics("1").registry.collect():
        assert family.name.startswith("specdecode_")
        assert family.documentation.endswith(".")


def test_two_processes_parts_share_nothing() -> None:
    one, two = Metrics("1"), Metrics("2")
    one.leader.set(1)
    assert two.registry.get_sample_value("specdecode_leader") == 0.0
