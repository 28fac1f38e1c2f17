"""The pages are what vLLM and Envoy write, as prometheus-client's own parser reads them."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.bed.fleet.exposition import INFO_METRIC, engine_page, labels, number, proxy_page
from tests.bed.fleet.simulation import EngineCounters, ProxyCounters

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def counted() -> EngineCounters:
    counters = EngineCounters(created=1_700_000_000.25, drafts=100, draft_tokens=300, generation_tokens=310, running=4)
    counters.accepted[:3] = [90, 80, 40]
    counters.finished["stop"] = 7
    counters.failed_transfers = 2
    counters.token_time.observe(0.02)
    return counters


def samples(page: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(found: Samples, name: str, **on: str) -> float:
    return found[name, tuple(sorted(on.items()))]


ON = {"engine": "0", "model_name": "org/model"}


def test_an_engines_counters_are_on_its_page() -> None:
    found = samples(engine_page(counted(), model="org/model", depth=3))
    assert value(found, "vllm:spec_decode_num_drafts_total", **ON) == 100
    assert value(found, "vllm:spec_decode_num_draft_tokens_total", **ON) == 300
    assert value(found, "vllm:spec_decode_num_accepted_tokens_total", **ON) == 210
    per_position = [
        value(found, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(at), **ON) for at in range(3)
    ]
    assert per_position == [90, 80, 40]
    assert value(found, "vllm:spec_decode_num_drafts_created", **ON) == 1_700_000_000.25
    assert value(found, "vllm:generation_tokens_total", **ON) == 310
    assert value(found, "vllm:num_requests_running", **ON) == 4
    assert value(found, "vllm:request_success_total", finished_reason="stop", **ON) == 7
    assert value(found, "vllm:nixl_num_failed_transfers_total", **ON) == 2
    assert value(found, "vllm:request_time_per_output_token_seconds_bucket", le="0.025", **ON) == 1
    assert value(found, "vllm:request_time_per_output_token_seconds_bucket", le="0.01", **ON) == 0
    assert value(found, "vllm:request_time_per_output_token_seconds_count", **ON) == 1
    assert value(found, "vllm:request_time_per_output_token_seconds_sum", **ON) == 0.02


def test_a_page_has_the_size_of_a_real_one_and_each_name_is_typed_once() -> None:
    page = engine_page(counted(), model="org/model", depth=3)
    assert 50_000 < len(page) < 100_000
    typed = [line.split(" ")[2] for line in page.splitlines() if line.startswith("# TYPE ")]
    assert len(typed) == len(set(typed))


@pytest.mark.parametrize(("depth", "shown"), [(0, True), (3, False)])
def test_without_speculation_or_its_series_there_are_none(depth: int, shown: bool) -> None:
    assert "spec_decode" not in engine_page(counted(), model="m", depth=depth, speculative_metrics=shown)


def test_the_info_metric_is_there_where_the_image_has_it() -> None:
    page = engine_page(counted(), model="m", depth=3, info={"depth": "3", "host_copy": "never"})
    assert value(samples(page), INFO_METRIC, depth="3", host_copy="never") == 1
    assert INFO_METRIC not in engine_page(counted(), model="m", depth=3)


def test_a_broken_page_has_nan_where_speculation_is_counted() -> None:
    found = samples(engine_page(counted(), model="m", depth=3, broken=True))
    assert math.isnan(value(found, "vllm:spec_decode_num_drafts_total", engine="0", model_name="m"))
    assert value(found, "vllm:generation_tokens_total", engine="0", model_name="m") == 310


def test_a_proxys_counters_are_on_its_page() -> None:
    counters = ProxyCounters(total=12, active=2)
    for _ in range(7):
        counters.finish(2, 1.2)
    for _ in range(3):
        counters.finish(5, 0.02)
    found = samples(proxy_page(counters))
    entry = {"envoy_http_conn_manager_prefix": "entry"}
    name = "envoy_http_downstream_rq"
    # Envoy's counters don't all end in _total; the parser puts it there
    assert value(found, f"{name}_xx_total", envoy_response_code_class="2", **entry) == 7
    assert value(found, f"{name}_xx_total", envoy_response_code_class="5", **entry) == 3
    assert value(found, f"{name}_completed_total", **entry) == 10
    assert value(found, f"{name}_total", **entry) == 12
    assert value(found, f"{name}_active", **entry) == 2
    assert value(found, f"{name}_time_bucket", le="25", **entry) == 3
    assert value(found, f"{name}_time_bucket", le="+Inf", **entry) == 10
    assert value(found, f"{name}_time_sum", **entry) == pytest.approx(8460)


@pytest.mark.parametrize(
    ("given", "written"),
    [(3, "3.0"), (0.1, "0.1"), (1.5e-5, "1.5e-05"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")],
)
def test_values_are_written_as_prometheus_client_does(given: float, written: str) -> None:
    assert number(given) == written


def test_labels_are_escaped() -> None:
    assert labels({"a": 'x"y\\z\n'}) == '{a="x\\"y\\\\z\\n"}'
    assert labels({}) == ""
