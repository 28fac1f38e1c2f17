"""From a page of metrics to samples: the few series that the analysis reads, and nothing else of the page.

A page is in the Prometheus text format, version 0.0.4. vLLM serves some hundred kilobytes of it, most of it buckets
of histograms, so one expression picks the lines that matter and only those are parsed. Whatever is wrong with
such a line makes the whole page unusable: half a page would be evidence of something that didn't happen.

vLLM's names are those of its `/metrics`, with those that `docs/images.md` adds; the proxy's are Envoy's
(`envoy_http_downstream_rq_xx`, one series a class of status codes and HTTP connection manager).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from specdecode.acceptance.types import Arm, Sample

INFO_METRIC: Final = "vllm:spec_decode_config_info"
ENTRY_PREFIX: Final = "entry"
"""`stat_prefix` of the proxy's listener for clients."""

_DRAFTS: Final = "vllm:spec_decode_num_drafts_total"
_CREATED: Final = "vllm:spec_decode_num_drafts_created"
_DRAFT_TOKENS: Final = "vllm:spec_decode_num_draft_tokens_total"
_DRAFTED_PER_POS: Final = "vllm:spec_decode_num_draft_tokens_per_pos_total"
_ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"
_ACCEPTED_PER_POS: Final = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_GENERATION_TOKENS: Final = "vllm:generation_tokens_total"
_TPOT_SUM: Final = "vllm:request_time_per_output_token_seconds_sum"
_TPOT_COUNT: Final = "vllm:request_time_per_output_token_seconds_count"
_RUNNING: Final = "vllm:num_requests_running"
_FINISHED: Final = "vllm:request_success_total"
_FAILED_TRANSFERS: Final = ("vllm:nixl_num_failed_transfers_total", "vllm:nixl_num_refused_requests_total")
_STARTED: Final = "process_start_time_seconds"

_ENGINE_NAMES: Final = (
    INFO_METRIC,
    _DRAFTS,
    _CREATED,
    _DRAFT_TOKENS,
    _DRAFTED_PER_POS,
    _ACCEPTED,
    _ACCEPTED_PER_POS,
    _GENERATION_TOKENS,
    _TPOT_SUM,
    _TPOT_COUNT,
    _RUNNING,
    _FINISHED,
    *_FAILED_TRANSFERS,
    _STARTED,
)
_PROXY_NAMES: Final = ("envoy_http_downstream_rq_xx",)


def _picker(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"^(" + "|".join(re.escape(name) for name in names) + r")([{ \t].*)$", re.MULTILINE)


_ENGINE_LINES: Final = _picker(_ENGINE_NAMES)
_PROXY_LINES: Final = _picker(_PROXY_NAMES)
_REST: Final = re.compile(
    r'[ \t]*(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*"[ \t]*,?[ \t]*)*)\})?[ \t]+(\S+)(?:[ \t]+-?[0-9]+)?[ \t]*'
)
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class BadPageError(ValueError):
    """A page that can't be used, with the reason in one clause."""


@dataclass(frozen=True, slots=True)
class EnginePage:
    """What one Pod's page said: a sample for each engine, and the tunings in effect by engine label."""

    samples: tuple[Sample, ...]
    info: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels of the info metric by engine; empty without the patches."""


@dataclass(slots=True)
class _Engine:
    """The series of one engine label, as they are found."""

    values: dict[str, float] = field(default_factory=dict)
    positions: dict[str, dict[int, float]] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)
    info: dict[str, str] | None = None

    def set(self, name: str, value: float) -> None:
        if name in self.values:
            raise BadPageError(f"two series of {name} for one engine")
        self.values[name] = value

    def need(self, name: str) -> float:
        if name not in self.values:
            raise BadPageError(f"no {name}")
        return self.values[name]

    def per_position(self, name: str) -> tuple[float, ...]:
        found = self.positions.get(name, {})
        if sorted(found) != list(range(len(found))):
            raise BadPageError(f"{name} has positions {sorted(found)}, which aren't 0 to {len(found) - 1}")
        return tuple(found[i] for i in range(len(found)))


def engine_page(page: str, *, t: float, arm: Arm, pod: str, prefill_apart: bool) -> EnginePage:
    """Samples and tunings from an engine Pod's ``/metrics``.

    Args:
        page: the body, as text.
        t: when it arrived, Unix seconds.
        arm: the arm that the Pod belongs to.
        pod: the Pod's UID.
        prefill_apart: whether prefill runs in Pods of its own. Then an unpatched vLLM counts the first, padded step
            of each request as a draft; a patched one, known by its drafted-per-position counter, doesn't.

    Raises:
        BadPageError: the page is cut, isn't vLLM's, or one of the lines that matter is malformed.
    """
    _check_whole(page, "vllm:", "vLLM")
    engines: dict[str, _Engine] = {}
    started: float | None = None
    for name, labels, value in _lines(_ENGINE_LINES, page):
        if name == _STARTED:
            started = value
            continue
        engine = engines.setdefault(labels.get("engine", "0"), _Engine())
        if name == INFO_METRIC:
            engine.info = labels
        elif name in (_ACCEPTED_PER_POS, _DRAFTED_PER_POS):
            engine.positions.setdefault(name, {})[_position(name, labels)] = value
        elif name == _FINISHED:
            engine.finished[labels.get("finished_reason", "")] = value
        else:
            engine.set(name, value)
    speculating = {label: engine for label, engine in engines.items() if _DRAFTS in engine.values}
    if not speculating:
        raise BadPageError("no vllm:spec_decode_* series: speculation is off in this engine")
    return EnginePage(
        samples=tuple(
            _sample(label, engine, t=t, arm=arm, pod=pod, prefill_apart=prefill_apart, started=started)
            for label, engine in sorted(speculating.items())
        ),
        info={label: engine.info for label, engine in sorted(engines.items()) if engine.info is not None},
    )


def proxy_page(page: str, *, t: float, arm: Arm, pod: str) -> Sample:
    """Requests that the proxy of a router Pod answered, by its ``/stats/prometheus``.

    Failed are the answers of class 5xx, finished all others: a client's own mistakes (4xx) say nothing of a revision.

    Raises:
        BadPageError: the page is cut, isn't Envoy's, or lacks the entry listener.
    """
    _check_whole(page, "envoy_", "Envoy")
    classes: dict[str, float] = {}
    for _name, labels, value in _lines(_PROXY_LINES, page):
        if labels.get("envoy_http_conn_manager_prefix") == ENTRY_PREFIX:
            classes[labels.get("envoy_response_code_class", "")] = value
    if not classes:
        raise BadPageError(f"no envoy_http_downstream_rq_xx of the listener {ENTRY_PREFIX!r}")
    answered = sum(value for label, value in classes.items() if label in {"2", "3", "4"})
    return Sample(
        t=t,
        arm=arm,
        pod=pod,
        engine="proxy",
        depth=0,
        drafts=0.0,
        draft_tokens=0.0,
        accepted=0.0,
        accepted_per_pos=(),
        requests_finished=answered,
        requests_failed=classes.get("5", 0.0),
        source="router",
    )


def _sample(
    label: str, engine: _Engine, *, t: float, arm: Arm, pod: str, prefill_apart: bool, started: float | None
) -> Sample:
    accepted = engine.per_position(_ACCEPTED_PER_POS)
    drafted = engine.per_position(_DRAFTED_PER_POS) if _DRAFTED_PER_POS in engine.positions else None
    transfers = [engine.values[name] for name in _FAILED_TRANSFERS if name in engine.values]
    return Sample(
        t=t,
        arm=arm,
        pod=pod,
        engine=label,
        depth=len(accepted),
        drafts=engine.need(_DRAFTS),
        draft_tokens=engine.need(_DRAFT_TOKENS),
        accepted=engine.need(_ACCEPTED),
        accepted_per_pos=accepted,
        drafted_per_pos=drafted,
        generation_tokens=engine.values.get(_GENERATION_TOKENS),
        tpot_sum=engine.values.get(_TPOT_SUM),
        tpot_count=engine.values.get(_TPOT_COUNT),
        requests_running=engine.values.get(_RUNNING),
        requests_finished=sum(n for reason, n in engine.finished.items() if reason != "error")
        if engine.finished
        else None,
        requests_failed=engine.finished.get("error", 0.0) if engine.finished else None,
        transfers_failed=sum(transfers) if transfers else None,
        created=engine.values.get(_CREATED, started),
        empty_first_draft=prefill_apart and drafted is None,
    )


def _check_whole(page: str, prefix: str, owner: str) -> None:
    if not page.endswith("\n"):
        raise BadPageError("the page is cut: its last line has no end" if page else "the page is empty")
    if not page.startswith(prefix) and f"\n{prefix}" not in page:
        raise BadPageError(f"no series of {owner} on the page")


def _lines(picker: re.Pattern[str], page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for match in picker.finditer(page):
        name, rest = match.groups()
        parsed = _REST.fullmatch(rest)
        if parsed is None:
            raise BadPageError(f"malformed line {match.group(0)[:120]!r}")
        labels = {key: _unescape(value) for key, value in _LABEL.findall(parsed.group(1) or "")}
        try:
            value = float(parsed.group(2))
        except ValueError:
            raise BadPageError(f"{name} is {parsed.group(2)[:40]!r}, which is no number") from None
        if not math.isfinite(value) or value < 0.0:
            raise BadPageError(f"{name} is {value}, which no counter can be")
        yield name, labels, value


def _position(name: str, labels: Mapping[str, str]) -> int:
    position = labels.get("position", "")
    if not position.isdecimal() or int(position) >= 64:
        raise BadPageError(f"{name} has position {position[:20]!r}")
    return int(position)


def _unescape(value: str) -> str:
    if "\\" not in value:
        return value
    return re.sub(r"\\.", lambda m: _ESCAPES.get(m.group(0), m.group(0)), value)
