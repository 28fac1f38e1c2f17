"""Prefill and decode over NIXL: the late hand-over, peers that disagree, and KV that isn't the request's own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import yaml

from specdecode.acceptance.types import Arm
from specdecode.api import SpecDecodeDeployment
from specdecode.engine.tunings import report
from tests.vllm.exposition import counter
from tests.vllm.install import ROOT, VENV
from tests.vllm.servers import (
    CPU_UNTOUCHED,
    Engine,
    completion,
    disaggregated,
    engine,
    in_parallel,
    nixl,
    post,
    run,
    speculative,
    wait_until_healthy,
)
from tests.vllm.tiny_mtp import TinyModel, build
from tests.vllm.view import look, since

DEPTH = 3
TOKENS = 30
TRACE = Path(__file__).parent / "fixtures/wrong_kv.jsonl"
RESOURCE = ROOT / "examples/07-cpu.yaml"
TOLD = "num_speculative_tokens=3, lookahead_backoff=late (3 tokens)"


@dataclass(frozen=True)
class Pair:
    """A prefill server, two decode servers, and the model whose MTP layer needs the transferred KV."""

    model: TinyModel
    prefill: Engine
    decode: Engine
    other: Engine


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, logs: Path) -> Iterator[Pair]:
    model = build(tmp_path_factory.mktemp("model"), 0.9, needs_kv=True)
    with ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        roles = ("kv_producer", "kv_consumer", "kv_consumer")
        started = [
            engine(model.path, 8120 + at, logs / f"{at}.log", speculative(DEPTH) | nixl(role), side_channel=5620 + at)
            for at, role in enumerate(roles)
        ]
        yield Pair(model, *pool.map(stack.enter_context, started))


def test_late_hand_over_gives_exact_answers_and_the_acceptance_of_aggregated_serving(pair: Pair) -> None:
    for server, role in ((pair.prefill, "kv_producer"), (pair.decode, "kv_consumer")):
        info = look(server).info
        assert info is not None
        assert (info["kv_role"], info["lookahead_backoff"], info["lookahead_backoff_tokens"]) == (role, "late", "3")
        assert info["lookahead_backoff_asked"] == "auto"
    before = look(pair.decode)
    prompts = pair.model.prompts(30, 200, seed=1)
    answers = in_parallel([lambda p=prompt: disaggregated(pair.prefill, pair.decode, p, 60) for prompt in prompts])
    assert [answer.token_ids for answer in answers] == [pair.model.successors(prompt[-1], 60) for prompt in prompts]
    seen, predicted = since(before, look(pair.decode)), pair.model.predict(DEPTH)
    assert seen.accepted / seen.draft_tokens == pytest.approx(predicted.draft_acceptance, abs=0.03)
    # Upstream would count one empty draft a request more.
    assert seen.drafted_per_pos == (seen.drafts,) * DEPTH
    assert seen.drafts == pytest.approx(30 * 59 / predicted.mean_length, rel=0.06)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 31, 32, 33, 34, 35, 36, 64, 67])
def test_prompts_of_any_length(pair: Pair, length: int) -> None:
    (prompt,) = pair.model.prompts(1, length, seed=length)
    transfers = counter(pair.decode.metrics(), "vllm:nixl_xfer_time_seconds_count")
    answer = disaggregated(pair.prefill, pair.decode, prompt, TOKENS)
    assert answer.status == 200, answer.body
    assert answer.token_ids == pair.model.successors(prompt[-1], TOKENS)
    # Nothing is loaded for a prompt that the decode instance computes whole.
    loaded = counter(pair.decode.metrics(), "vllm:nixl_xfer_time_seconds_count") - transfers
    assert loaded == (length > DEPTH)


def test_a_prompt_seen_before_is_found_in_the_prefix_caches(pair: Pair) -> None:
    (prompt,) = pair.model.prompts(1, 170, seed=11)
    first, longer = prompt[:100], prompt
    for asked in (first, first, longer, longer):
        before = look(pair.decode)
        answer = disaggregated(pair.prefill, pair.decode, asked, TOKENS)
        assert answer.token_ids == pair.model.successors(asked[-1], TOKENS)
        seen = since(before, look(pair.decode))
        assert seen.accepted / seen.draft_tokens > 0.5
        assert seen.drafted_per_pos == (seen.drafts,) * DEPTH


def test_through_the_router(pair: Pair, logs: Path) -> None:
    command = [str(VENV / "bin/vllm-router"), "--host", "127.0.0.1", "--port", "8130"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", "8131", "--policy", "round_robin"]
    command += ["--vllm-pd-disaggregation", "--kv-connector", "nixl"]
    command += ["--prefill", pair.prefill.url, "--decode", pair.decode.url, "--decode", pair.other.url]
    with run(command, logs / "router.log", os.environ) as process:
        wait_until_healthy("http://127.0.0.1:8130/readiness", process, logs / "router.log")
        before = [look(server).sample.drafts for server in (pair.decode, pair.other)]
        prompts = pair.model.prompts(8, 120, seed=2)
        answers = [post("http://127.0.0.1:8130/v1/completions", completion(prompt, TOKENS)) for prompt in prompts]
        wanted = [pair.model.successors(prompt[-1], TOKENS) for prompt in prompts]
        assert [answer.token_ids for answer in answers] == wanted
        after = [look(server).sample.drafts for server in (pair.decode, pair.other)]
        assert all(a > b for a, b in zip(after, before, strict=True))


def test_threads_are_bound_to_no_core(pair: Pair) -> None:
    """As vLLM comes, a NIXL connector binds its worker to one core, told ``nobind`` or not."""
    cores = os.sched_getaffinity(0)
    bound = [os.sched_getaffinity(int(thread.name)) for thread in pair.prefill.threads() + pair.decode.threads()]
    assert len(bound) > 20
    assert all(found == cores for found in bound)


def test_idle_engines_leave_the_cpu_alone(pair: Pair) -> None:
    """As NIXL comes, each keeps a core busy."""
    (prompt,) = pair.model.prompts(1, 100, seed=8)
    assert disaggregated(pair.prefill, pair.decode, prompt, TOKENS).status == 200
    engines = (pair.prefill, pair.decode, pair.other)
    before = [server.cpu_seconds() for server in engines]
    time.sleep(5)
    used = [server.cpu_seconds() - earlier for server, earlier in zip(engines, before, strict=True)]
    assert all(seconds < 1.5 for seconds in used), used


@pytest.mark.parametrize(
    ("depth", "backoff", "policy", "says", "reported"),
    [
        (
            2,
            "auto",
            "recompute",
            "num_speculative_tokens=2, lookahead_backoff=late (2 tokens)",
            "Pods don't agree in depth: decode 2; prefill 3",
        ),
        (
            3,
            "upstream",
            "fail",
            "num_speculative_tokens=3, lookahead_backoff=upstream (0 tokens)",
            "Pods don't agree in lookahead_backoff: decode upstream; prefill late",
        ),
    ],
    ids=("depth", "backoff"),
)
def test_a_decode_instance_that_disagrees_refuses_in_clear(
    pair: Pair, logs: Path, depth: int, backoff: str, policy: str, says: str, reported: str
) -> None:
    assert told_apart(pair.prefill, pair.decode) == ()
    told = speculative(depth) | nixl("kv_consumer", policy, lookahead_backoff=backoff)
    with engine(pair.model.path, 8125, logs / f"{depth}{backoff}.log", told, side_channel=5625) as stranger:
        # The operator needs no request for it.
        assert reported in told_apart(pair.prefill, stranger)
        for refused in (1, 2):
            (prompt,) = pair.model.prompts(1, 100, seed=refused)
            answer = disaggregated(pair.prefill, stranger, prompt, TOKENS)
            assert answer.status == 500
            message = json.dumps(answer.body)
            assert f"Prefill: {TOLD}" in message
            assert f"Decode: {says}" in message
            assert counter(stranger.metrics(), "vllm:nixl_num_refused_requests_total") == refused
        # It lives, and serves what needs no transfer.
        (prompt,) = pair.model.prompts(1, 100, seed=9)
        assert stranger.complete(prompt, TOKENS).token_ids == pair.model.successors(prompt[-1], TOKENS)


def told_apart(prefill: Engine, decode: Engine) -> tuple[str, ...]:
    """What the operator finds wrong with the two, by their info metrics alone."""
    spec = SpecDecodeDeployment.parse(yaml.safe_load(RESOURCE.read_text())).spec
    found = report(
        1,
        spec,
        {"prefill": {"p-0": look(prefill).info}, "decode": {"d-0": look(decode).info}},
        {"prefill": ["p-0"], "decode": ["d-0"]},
    )
    assert found.complete
    assert not found.unhonoured
    return found.wrong


def test_push_mode(pair: Pair, logs: Path) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        started = [
            engine(
                pair.model.path,
                8132 + at,
                logs / f"push{at}.log",
                speculative(DEPTH) | nixl(role, connector="NixlPushConnector"),
                side_channel=5632 + at,
            )
            for at, role in enumerate(("kv_producer", "kv_consumer"))
        ]
        prefill, decode = pool.map(stack.enter_context, started)
        before = look(decode)
        assert before.info is not None
        assert before.info["lookahead_backoff"] == "late"
        for length in (2, 3, 4, 34, 35, 36, 200):
            (prompt,) = pair.model.prompts(1, length, seed=length)
            answer = disaggregated(prefill, decode, prompt, TOKENS)
            assert answer.status == 200, answer.body
            assert answer.token_ids == pair.model.successors(prompt[-1], TOKENS)
        seen = since(before, look(decode))
        assert seen.accepted / seen.draft_tokens > 0.5


def test_without_the_series_the_same_pair_is_not_refused(pair: Pair, logs: Path) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        started = [
            engine(
                pair.model.path,
                8127 + at,
                logs / f"untouched{at}.log",
                speculative(depth) | nixl(role),
                side_channel=5627 + at,
                platform=CPU_UNTOUCHED,
            )
            for at, (role, depth) in enumerate((("kv_producer", 3), ("kv_consumer", 2)))
        ]
        prefill, decode = pool.map(stack.enter_context, started)
        assert look(decode).info is None
        (prompt,) = pair.model.prompts(1, 100, seed=1)
        assert disaggregated(prefill, decode, prompt, TOKENS).status == 200


def test_foreign_kv_leaves_answers_exact_and_acceptance_near_zero(pair: Pair) -> None:
    """Two decode servers in one window: one loads its requests' blocks, the other blocks of nobody.

    With SPECDECODE_RECORD_TRACE=1 the scrapes are written to the trace that the analysis is tested with.
    """
    rounds, width = 8, 4
    arms: tuple[tuple[Arm, Engine], ...] = (("stable", pair.decode), ("canary", pair.other))
    scrapes: list[dict[str, object]] = []
    before = look(pair.decode), look(pair.other)
    started = time.monotonic()
    prompts = iter(pair.model.prompts(2 * rounds * width, 200, seed=7))

    def ask(server: Engine) -> bool:
        prompt = next(prompts)
        changed: dict[str, object] = {}
        if server is pair.other:
            # The pool's null block, which no request ever writes.
            changed = {"remote_block_ids": [[0] * ((len(prompt) - DEPTH + 31) // 32)]}
        answer = disaggregated(pair.prefill, server, prompt, 20, **changed)
        return answer.token_ids == pair.model.successors(prompt[-1], 20)

    def scrape() -> None:
        at = round(time.monotonic() - started, 2)
        scrapes.extend(asdict(look(server, at, arm, f"{arm}-0").sample) for arm, server in arms)

    scrape()
    with ThreadPoolExecutor(2 * width) as pool:
        for _ in range(rounds):
            assert all(pool.map(ask, (pair.decode, pair.other) * width))
            scrape()
    right, foreign = since(before[0], look(pair.decode)), since(before[1], look(pair.other))
    assert right.accepted / right.draft_tokens > 0.7
    assert foreign.accepted / foreign.draft_tokens < 0.05
    if os.environ.get("SPECDECODE_RECORD_TRACE"):
        TRACE.parent.mkdir(exist_ok=True)
        lines = [json.dumps({k: v for k, v in line.items() if v is not None}) for line in scrapes]
        TRACE.write_text("\n".join(lines) + "\n")
