"""Pages of metrics as vLLM and Envoy serve them, for the tests of this folder."""

from __future__ import annotations

LABELS = 'engine="{engine}",model_name="org/some-model"'


def histogram(name: str, labels: str, total: float, count: float, buckets: int = 20) -> str:
    """A histogram in the text format."""
    lines = [f"# HELP {name} Histogram.", f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{{labels},le="{2.0**i}"}} {count}' for i in range(buckets)]
    lines += [f'{name}_bucket{{{labels},le="+Inf"}} {count}', f"{name}_count{{{labels}}} {count}"]
    lines += [f"{name}_sum{{{labels}}} {total}"]
    return "\n".join(lines) + "\n"


def engine(
    label: str = "0",
    drafts: float = 100.0,
    accepted: tuple[float, ...] = (90.0, 60.0, 30.0),
    drafted: tuple[float, ...] | None = None,
    info: str | None = None,
) -> str:
    """What one engine adds to a page."""
    labels = LABELS.format(engine=label)
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{labels}}} 3.0",
        f"vllm:num_requests_waiting{{{labels}}} 1.0",
        f"vllm:generation_tokens_total{{{labels}}} 280.0",
        f'vllm:request_success_total{{{labels},finished_reason="stop"}} 17.0',
        f'vllm:request_success_total{{{labels},finished_reason="length"}} 2.0',
        f'vllm:request_success_total{{{labels},finished_reason="abort"}} 1.0',
        f'vllm:request_success_total{{{labels},finished_reason="error"}} 4.0',
        f"vllm:nixl_num_failed_transfers_total{{{labels}}} 5.0",
        f"vllm:spec_decode_num_drafts_total{{{labels}}} {drafts}",
        f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.7e+09",
        f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {drafts * len(accepted)}",
        f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {sum(accepted)}",
    ]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {value}'
        for i, value in enumerate(accepted)
    ]
    lines += [
        f'vllm:spec_decode_num_draft_tokens_per_pos_total{{{labels},position="{i}"}} {value}'
        for i, value in enumerate(drafted or ())
    ]
    if info is not None:
        lines.append(f"vllm:spec_decode_config_info{{{labels},{info}}} 1.0")
    page = "\n".join(lines) + "\n"
    return page + histogram("vllm:request_time_per_output_token_seconds", labels, 12.5, 20.0)


def page(*engines: str) -> str:
    """A whole page: what Python and the process add, then the engines."""
    head = "# HELP process_start_time_seconds Start time.\n# TYPE process_start_time_seconds gauge\n"
    return head + "process_start_time_seconds 1.6e+09\n" + "".join(engines or (engine(),))


def large() -> str:
    """About a hundred kilobytes, most of it buckets, as a busy engine serves them."""
    labels = LABELS.format(engine="0")
    noise = "".join(histogram(f"vllm:noise_{i}_seconds", labels, 1.0, 2.0, buckets=30) for i in range(40))
    return page(engine()) + noise


PROXY = """# TYPE envoy_http_downstream_rq_completed counter
envoy_http_downstream_rq_completed{envoy_http_conn_manager_prefix="entry"} 57
# TYPE envoy_http_downstream_rq_xx counter
envoy_http_downstream_rq_xx{envoy_response_code_class="1",envoy_http_conn_manager_prefix="entry"} 0
envoy_http_downstream_rq_xx{envoy_response_code_class="2",envoy_http_conn_manager_prefix="entry"} 40
envoy_http_downstream_rq_xx{envoy_response_code_class="3",envoy_http_conn_manager_prefix="entry"} 0
envoy_http_downstream_rq_xx{envoy_response_code_class="4",envoy_http_conn_manager_prefix="entry"} 10
envoy_http_downstream_rq_xx{envoy_response_code_class="5",envoy_http_conn_manager_prefix="entry"} 7
envoy_http_downstream_rq_xx{envoy_response_code_class="5",envoy_http_conn_manager_prefix="metrics"} 99
"""
