"""Pages of metrics as vLLM's API server and Envoy write them.

A vLLM page is what prometheus-client makes of it: HELP and TYPE lines, counters with `_total` and a gauge `_created`
beside them, histograms with `_created`, and the series of Python and the process before vLLM's own. Most of a real
page is no business of the operator's; it is there all the same, so that a scrape has its real size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from specdecode.api.names import PROXY_PORT
from tests.bed.fleet.simulation import (
    LATENCY_BOUNDS,
    PROXY_TIME_BOUNDS,
    TOKEN_TIME_BOUNDS,
    EngineCounters,
    Histogram,
    ProxyCounters,
)

INFO_METRIC: Final = "vllm:spec_decode_config_info"
PROXY_PREFIX: Final = "entry"
"""Envoy's stat_prefix of the listener that clients reach."""
MAX_MODEL_LEN: Final = 131072

_TOKEN_BOUNDS: Final = tuple(
    float(mantissa * 10**exponent)
    for exponent in range(6)
    for mantissa in (1, 2, 5)
    if mantissa * 10**exponent <= MAX_MODEL_LEN
)
_FIRST_TOKEN_BOUNDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_STEP_BOUNDS: Final = tuple(float(2**power) for power in (0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14))
_TRANSFER_BOUNDS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0,
)  # fmt: skip
_HTTP_BOUNDS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0,
                       7.5, 10.0, 30.0, 60.0)  # fmt: skip
_HANDLERS: Final = (
    "/health", "/metrics", "/v1/chat/completions", "/v1/completions", "/v1/models", "/version", "/tokenize",
)  # fmt: skip
_STEADY: Final[tuple[tuple[str, str, tuple[float, ...]], ...]] = (
    ("vllm:request_prompt_tokens", "Number of prefill tokens processed.", _TOKEN_BOUNDS),
    ("vllm:request_generation_tokens", "Number of generation tokens processed.", _TOKEN_BOUNDS),
    ("vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP_BOUNDS),
    (
        "vllm:request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        _TOKEN_BOUNDS,
    ),
    ("vllm:request_params_n", "Histogram of the n request parameter.", (1.0, 2.0, 5.0, 10.0, 20.0)),
    ("vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter.", _TOKEN_BOUNDS),
    ("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _FIRST_TOKEN_BOUNDS),
    ("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", TOKEN_TIME_BOUNDS),
    ("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", LATENCY_BOUNDS),
    ("vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", LATENCY_BOUNDS),
    ("vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", LATENCY_BOUNDS),
    ("vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", LATENCY_BOUNDS),
    ("vllm:request_prefill_kv_computed_tokens", "Histogram of new KV tokens computed during prefill.", _TOKEN_BOUNDS),
    ("vllm:nixl_xfer_time_seconds", "Histogram of transfer duration for NIXL KV Cache transfers.", _TRANSFER_BOUNDS),
    ("vllm:nixl_post_time_seconds", "Histogram of transfer post time for NIXL KV Cache transfers.", _TRANSFER_BOUNDS),
    (
        "vllm:nixl_bytes_transferred",
        "Histogram of bytes transferred per NIXL KV Cache transfers.",
        tuple(float(1 << (10 + 2 * power)) for power in range(12)),
    ),
    (
        "vllm:nixl_num_descriptors",
        "Histogram of number of descriptors per NIXL KV Cache transfers.",
        (10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10000.0, 20000.0, 50000.0),
    ),
)
"""Histograms that have their true name and size here, and no observations: nothing reads them."""


def number(value: float) -> str:
    """A sample's value as prometheus-client writes it: "3.0", "1.5e-05", "+Inf", "NaN"."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def plain(value: float) -> str:
    """A sample's value as Envoy writes it: whole numbers without a point."""
    return str(int(value)) if value == int(value) else repr(float(value))


def labels(pairs: Mapping[str, str]) -> str:
    """`{a="b"}`, with backslashes, quotes and line ends escaped; "" without labels."""
    escape = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    return "{" + ",".join(f'{name}="{value.translate(escape)}"' for name, value in pairs.items()) + "}" if pairs else ""


def _head(name: str, kind: str, documentation: str) -> list[str]:
    return [f"# HELP {name} {documentation}", f"# TYPE {name} {kind}"]


def gauge(name: str, documentation: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> list[str]:
    """Lines of a gauge."""
    return _head(name, "gauge", documentation) + [f"{name}{labels(on)} {number(value)}" for on, value in samples]


def counter(
    name: str, documentation: str, samples: Sequence[tuple[Mapping[str, str], float]], created: float
) -> list[str]:
    """Lines of a counter (`name` without `_total`) and of the gauge that says since when it counts."""
    lines = _head(f"{name}_total", "counter", documentation)
    lines += [f"{name}_total{labels(on)} {number(value)}" for on, value in samples]
    return lines + gauge(f"{name}_created", documentation, [(on, created) for on, _ in samples])


def histogram(
    name: str, documentation: str, on: Mapping[str, str], observed: Histogram | tuple[float, ...], created: float
) -> list[str]:
    """Lines of a histogram; bare bounds stand for one without observations."""
    found = observed if isinstance(observed, Histogram) else Histogram(observed)
    lines = _head(name, "histogram", documentation)
    rising = np.cumsum(found.counts).tolist()
    inside = labels(on)[1:-1]
    for bound, count in zip([*found.bounds, float("inf")], rising, strict=True):
        lines.append(f'{name}_bucket{{le="{number(bound)}",{inside}}} {number(count)}')
    lines.append(f"{name}_count{labels(on)} {number(rising[-1])}")
    lines.append(f"{name}_sum{labels(on)} {number(found.total)}")
    return lines + gauge(f"{name}_created", documentation, [(on, created)])


def engine_page(
    counters: EngineCounters,
    *,
    model: str,
    depth: int,
    speculative_metrics: bool = True,
    info: Mapping[str, str] | None = None,
    broken: bool = False,
) -> str:
    """The page of a vLLM API server with one engine.

    Args:
        counters: what the engine has counted.
        model: the label model_name.
        depth: number of positions; 0 without speculation, and then there are no series of it.
        speculative_metrics: false leaves them out all the same.
        info: labels of the info metric; None leaves it out.
        broken: every value of speculation is NaN.
    """
    on = {"engine": "0", "model_name": model}
    created = counters.created
    lines: list[str] = []
    lines += gauge("vllm:num_requests_running", "Number of requests in model execution batches.",
                   [(on, counters.running)])  # fmt: skip
    lines += gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", [(on, 0)])
    lines += gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
                   [(on, min(1.0, counters.running / 256))])  # fmt: skip
    simple = {
        "vllm:num_preemptions": ("Cumulative number of preemption from the engine.", 0),
        "vllm:prompt_tokens": ("Number of prefill tokens processed.", counters.prompt_tokens),
        "vllm:generation_tokens": ("Number of generation tokens processed.", counters.generation_tokens),
        "vllm:nixl_num_failed_transfers": ("Number of failed NIXL KV Cache transfers.", counters.failed_transfers),
        "vllm:nixl_num_failed_notifications": ("Number of failed NIXL KV Cache notifications.", 0),
        "vllm:nixl_num_kv_expired_reqs": ("Number of requests that had their KV expire.", 0),
    }
    for name, (documentation, value) in simple.items():
        lines += counter(name, documentation, [(on, value)], created)
    lines += counter(
        "vllm:request_success",
        "Count of successfully processed requests.",
        [(on | {"finished_reason": reason}, count) for reason, count in counters.finished.items()],
        created,
    )
    lines += histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", on,
                       counters.latency, created)  # fmt: skip
    lines += histogram("vllm:request_time_per_output_token_seconds",
                       "Histogram of time_per_output_token_seconds per request.", on,
                       counters.token_time, created)  # fmt: skip
    if depth and speculative_metrics:
        lines += _speculation(counters, on, depth, broken)
    if info is not None:
        lines += gauge(INFO_METRIC, "Effective configuration of speculative decoding.", [(info, 1)])
    return _steady(model, created) + "\n".join(lines) + "\n"


def _speculation(counters: EngineCounters, on: dict[str, str], depth: int, broken: bool) -> list[str]:
    def shown(value: int) -> float:
        return float("nan") if broken else value

    prefix = "vllm:spec_decode_num"
    created = counters.created
    positions = [(on | {"position": str(at)}, shown(int(counters.accepted[at]))) for at in range(depth)]
    accepted = int(counters.accepted[:depth].sum())
    return [
        *counter(f"{prefix}_drafts", "Number of spec decoding drafts.", [(on, shown(counters.drafts))], created),
        *counter(f"{prefix}_draft_tokens", "Number of draft tokens.", [(on, shown(counters.draft_tokens))], created),
        *counter(f"{prefix}_accepted_tokens", "Number of accepted tokens.", [(on, shown(accepted))], created),
        *counter(f"{prefix}_accepted_tokens_per_pos", "Accepted tokens per draft position.", positions, created),
    ]


@lru_cache(maxsize=512)
def _steady(model: str, created: float) -> str:
    """What stands still on a page: Python's and the process's series, HTTP's, and histograms that nothing reads."""
    on = {"engine": "0", "model_name": model}
    lines: list[str] = []
    for name, what in (
        ("python_gc_objects_collected", "Objects collected during gc"),
        ("python_gc_objects_uncollectable", "Uncollectable objects found during GC"),
        ("python_gc_collections", "Number of times this generation was collected"),
    ):
        lines += _head(f"{name}_total", "counter", what)
        lines += [f'{name}_total{{generation="{at}"}} {number(1000 / (at + 1))}' for at in range(3)]
    version = {"implementation": "CPython", "major": "3", "minor": "12", "patchlevel": "3", "version": "3.12.3"}
    lines += gauge("python_info", "Python platform information", [(version, 1)])
    for name, what, value in (
        ("process_virtual_memory_bytes", "Virtual memory size in bytes.", 2.3e10),
        ("process_resident_memory_bytes", "Resident memory size in bytes.", 1.9e9),
        ("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", created),
        ("process_open_fds", "Number of open file descriptors.", 61),
        ("process_max_fds", "Maximum number of open file descriptors.", 65535),
    ):
        lines += gauge(name, what, [({}, value)])
    lines += _head("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.")
    lines += ["process_cpu_seconds_total 213.4"]
    cache = {"block_size": "16", "cache_dtype": "auto", "engine": "0", "num_gpu_blocks": "31250"}
    lines += gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", [(cache, 1)])
    for name, what, bounds in _STEADY:
        lines += histogram(name, what, on, bounds, created)
    ways = [{"handler": handler, "method": method} for method in ("GET", "POST") for handler in _HANDLERS]
    lines += counter(
        "http_requests",
        "Total number of requests by method, status and handler.",
        [(at | {"status": status}, 0) for at in ways for status in ("2xx", "4xx", "5xx")],
        created,
    )
    for index, at in enumerate(ways):
        found = histogram("http_request_duration_seconds", "Latency by handler.", at, _HTTP_BOUNDS, created)
        lines += found if index == 0 else [line for line in found if not line.startswith("#")]
    return "\n".join(lines) + "\n"


_PROXY_QUIET: Final = (
    "cx_total", "cx_destroy", "cx_http1_total", "cx_rx_bytes_total", "cx_tx_bytes_total", "rq_rx_reset", "rq_tx_reset",
    "rq_timeout", "rq_too_large", "rq_idle_timeout", "rq_max_duration_reached", "cx_max_duration_reached",
    "cx_drain_close", "rq_overload_close", "flow_control_paused_reading_total",
)  # fmt: skip


def proxy_page(counters: ProxyCounters, *, broken: bool = False) -> str:
    """The page of an Envoy that stands before a router: its /stats/prometheus, with the listener `PROXY_PREFIX`.

    As on a real page, the admin interface's own requests come first under the same names, and those of the listener
    are repeated under others.

    Args:
        counters: what it has counted.
        broken: the listener's values are not numbers.
    """
    where = {"envoy_http_conn_manager_prefix": PROXY_PREFIX}
    idle = {"envoy_http_conn_manager_prefix": "admin"}
    http = "envoy_http_downstream"
    lines: list[str] = []

    def put(name: str, kind: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> None:
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{labels(on)} {'nan' if broken and on != idle else plain(value)}" for on, value in samples)

    def by_class(on: Mapping[str, str], counted: Mapping[int, int]) -> list[tuple[Mapping[str, str], float]]:
        return [({"envoy_response_code_class": str(digit)} | dict(on), count) for digit, count in counted.items()]

    done = sum(counters.classes.values())
    for name in _PROXY_QUIET:
        put(f"{http}_{name}", "counter", [(idle, 0), (where, 0)])
    put(f"{http}_rq_total", "counter", [(idle, 1), (where, counters.total)])
    put(f"{http}_rq_completed", "counter", [(idle, 1), (where, done)])
    unused = dict.fromkeys(counters.classes, 0)
    put(f"{http}_rq_xx", "counter", by_class(idle, unused | {2: 1}) + by_class(where, counters.classes))
    at = where | {"envoy_listener_address": f"0.0.0.0_{PROXY_PORT}"}
    put("envoy_listener_http_downstream_rq_completed", "counter", [(at, done)])
    put("envoy_listener_http_downstream_rq_xx", "counter", by_class(at, counters.classes))
    router = {"envoy_cluster_name": "router"}
    for name in ("upstream_rq_total", "upstream_rq_completed", "upstream_rq_retry", "upstream_cx_connect_fail"):
        put(f"envoy_cluster_{name}", "counter", [(router, 0)])
    put("envoy_cluster_membership_healthy", "gauge", [(router, 1)])
    put(f"{http}_rq_active", "gauge", [(idle, 0), (where, counters.active)])
    put("envoy_server_live", "gauge", [({}, 1)])
    lines.append(f"# TYPE {http}_rq_time histogram")
    for on, found in ((idle, Histogram(PROXY_TIME_BOUNDS)), (where, counters.time)):
        rising = np.cumsum(found.counts).tolist()
        for bound, count in zip([*map(plain, PROXY_TIME_BOUNDS), "+Inf"], rising, strict=True):
            lines.append(f"{http}_rq_time_bucket{labels(on | {'le': bound})} {count}")
        lines.append(f"{http}_rq_time_sum{labels(on)} {plain(found.total)}")
        lines.append(f"{http}_rq_time_count{labels(on)} {rising[-1]}")
    return "\n".join(lines) + "\n"
