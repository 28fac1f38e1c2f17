"""One server: acceptance as the model was built for, drafted tokens per position, the info metric."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdecode.scrape.exposition import engine_page
from tests.vllm.servers import CPU, Engine, StartError, engine, in_parallel, post, speculative
from tests.vllm.tiny_mtp import TinyModel, build
from tests.vllm.view import look, since

ACCEPT = (0.9, 0.6, 0.05)
DEPTH = 3
REQUESTS, TOKENS = 40, 100


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, logs: Path) -> Iterator[dict[float, tuple[Engine, TinyModel]]]:
    """A server for each acceptance, started together."""
    models = {accept: build(tmp_path_factory.mktemp("model"), accept) for accept in ACCEPT}
    with ExitStack() as stack, ThreadPoolExecutor(len(ACCEPT)) as pool:
        both = [
            engine(model.path, 8100 + at, logs / f"{accept}.log", speculative(DEPTH))
            for at, (accept, model) in enumerate(models.items())
        ]
        engines = pool.map(stack.enter_context, both)
        yield {accept: (server, models[accept]) for accept, server in zip(ACCEPT, engines, strict=True)}


@pytest.mark.parametrize("accept", ACCEPT)
def test_measured_acceptance_is_the_predicted_one(
    servers: dict[float, tuple[Engine, TinyModel]], accept: float
) -> None:
    server, model = servers[accept]
    before = look(server)
    prompts = model.prompts(REQUESTS, 50, seed=3)
    answers = in_parallel([lambda p=prompt: server.complete(p, TOKENS) for prompt in prompts])
    assert [answer.token_ids for answer in answers] == [model.successors(prompt[-1], TOKENS) for prompt in prompts]

    seen, predicted = since(before, look(server)), model.predict(DEPTH)
    assert seen.accepted / seen.draft_tokens == pytest.approx(predicted.draft_acceptance, abs=0.01)
    measured = [accepted / seen.drafts for accepted in seen.accepted_per_pos]
    assert measured == pytest.approx(predicted.per_position, abs=0.02)
    assert seen.drafted_per_pos == (seen.drafts,) * DEPTH


def test_info_metric_is_there_before_the_first_request_and_says_what_a_cpu_cannot_do(
    servers: dict[float, tuple[Engine, TinyModel]],
) -> None:
    info = look(servers[0.9][0]).info
    assert info is not None
    expected = {
        "patch_series": "0.32.0-2",
        "kv_role": "none",
        "method": "mtp",
        "depth": "3",
        "depth_schedule": "",
        "modules": "1",
        "multi_module": "disabled",
        "lookahead_backoff": "inactive",
        "lookahead_backoff_tokens": "0",
        "lookahead_backoff_asked": "auto",
        "host_copy": "unsupported",
        "host_copy_asked": "auto",
        "top_k_sharing": "unsupported",
        "top_k_sharing_asked": "auto",
    }
    assert {label: info[label] for label in expected} == expected
    for tuning in ("host_copy", "top_k_sharing", "lookahead_backoff"):
        assert info[f"{tuning}_reason"]


def test_depth_schedule_is_told_and_drafted_tokens_follow_it(
    tmp_path_factory: pytest.TempPathFactory, logs: Path
) -> None:
    model = build(tmp_path_factory.mktemp("model"), 0.9)
    schedule = speculative(DEPTH, num_speculative_tokens_per_batch_size=[[1, 1, 3], [2, 8, 1]])
    told = schedule | host_copy("always")
    with engine(model.path, 8110, logs / "schedule.log", told) as server:
        start = look(server)
        assert start.info is not None
        assert start.info["depth_schedule"] == "1-1:3,2-8:1"
        assert (start.info["host_copy"], start.info["host_copy_asked"]) == ("unsupported", "always")
        one, many = model.prompts(1, 50, seed=4)[0], model.prompts(12, 50, seed=5)
        assert server.complete(one, TOKENS).token_ids == model.successors(one[-1], TOKENS)
        alone = look(server)
        first = since(start, alone)
        assert first.drafted_per_pos is not None
        assert sum(first.drafted_per_pos) == first.draft_tokens
        # The first step after the prompt may still be drafted at another depth.
        assert min(first.drafted_per_pos) >= first.drafts - 1

        in_parallel([lambda p=prompt: server.complete(p, TOKENS) for prompt in many], width=6)
        second = since(alone, look(server))
        assert second.drafted_per_pos is not None
        assert second.drafted_per_pos[0] == second.drafts
        assert sum(second.drafted_per_pos) == second.draft_tokens
        assert second.drafted_per_pos[1] < 0.2 * second.drafts
        biased = second.accepted_per_pos[1] / second.drafts
        assert biased < 0.2
        # What was drafted at the second position was accepted as often as without a schedule.
        if second.drafted_per_pos[1] >= 50:
            right = second.accepted_per_pos[1] / second.drafted_per_pos[1]
            assert right == pytest.approx(model.predict(DEPTH).per_position[1], abs=0.15)


def test_an_unknown_mode_ends_the_engine_in_clear(tmp_path: Path) -> None:
    model = build(tmp_path / "model", 0.9)
    told = speculative(DEPTH) | host_copy("sometimes")
    with (
        pytest.raises(StartError, match="spec_decode_host_copy is 'sometimes'; use one of auto, always, never"),
        engine(model.path, 8111, tmp_path / "log", told),
    ):
        pass


def host_copy(mode: str) -> dict[str, str]:
    """Arguments for this mode."""
    return {"additional-config": json.dumps({"spec_decode_host_copy": mode})}


def chosen(server: Engine, **more: Any) -> Any:
    """A chat completion whose answer is one of two words."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 8,
        "temperature": 0,
        "structured_outputs": {"choice": ["ac", "de"]},
    }
    return post(f"{server.url}/v1/chat/completions", body | more)


def test_structured_output_works_with_the_series(servers: dict[float, tuple[Engine, TinyModel]]) -> None:
    server, _ = servers[0.9]
    answer = chosen(server)
    assert answer.status == 200, answer.body
    assert answer.body["choices"][0]["message"]["content"] in ("ac", "de")


def test_never_refuses_what_needs_the_ids_on_the_host(tmp_path: Path) -> None:
    """As on a GPU: a plugin of this test's makes the mode that was asked for the one in force, which on a CPU it
    never is. What follows from it for a request is vLLM's own code."""
    (tmp_path / "as_on_a_gpu.py").write_text(
        "from vllm.v1.spec_decode import host_copy\n\n\ndef install():\n"
        "    host_copy.effective_host_copy = lambda config: (host_copy.asked_host_copy(config), '')\n"
    )
    info = tmp_path / "as_on_a_gpu-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: as-on-a-gpu\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nas_on_a_gpu = as_on_a_gpu:install\n")
    platform = replace(CPU, environment={**CPU.environment, "PYTHONPATH": str(tmp_path)})
    model = build(tmp_path / "model", 0.9)
    told = speculative(DEPTH) | host_copy("never")
    with engine(model.path, 8112, tmp_path / "log", told, platform=platform) as server:
        refused = chosen(server)
        assert refused.status == 400, refused.body
        assert "structured_outputs needs draft token ids on the host" in json.dumps(refused.body)
        # Model Runner V1, which a CPU has, needs them for these too.
        prompt = model.prompts(1, 20, seed=1)[0]
        for name, value in (("presence_penalty", 0.5), ("frequency_penalty", 0.5), ("repetition_penalty", 1.1)):
            answer = server.complete(prompt, 4, **{name: value})
            assert answer.status == 400, (name, answer.body)
            assert name in json.dumps(answer.body)
        assert server.complete(prompt, 20).token_ids == model.successors(prompt[-1], 20)


def test_every_engine_of_a_server_has_both_metrics(tmp_path: Path) -> None:
    """Two data-parallel engines behind two processes that serve the API: what one process alone shows won't do."""
    platform = replace(CPU, environment={**CPU.environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    model = build(tmp_path / "model", 0.9)
    told = speculative(DEPTH) | {"data-parallel-size": "2", "api-server-count": "2"}
    with engine(model.path, 8113, tmp_path / "log", told, platform=platform) as server:
        prompts = model.prompts(16, 50, seed=6)
        answers = in_parallel([lambda p=prompt: server.complete(p, 40) for prompt in prompts], width=8)
        assert [answer.token_ids for answer in answers] == [model.successors(prompt[-1], 40) for prompt in prompts]
        page = engine_page(server.metrics(), t=0.0, arm="stable", pod="uid", prefill_apart=False)
    assert [sample.engine for sample in page.samples] == ["0", "1"]
    assert sorted(page.info) == ["0", "1"]
    for sample in page.samples:
        assert sample.drafts > 0
        assert sample.drafted_per_pos == (sample.drafts,) * DEPTH
        assert page.info[sample.engine]["depth"] == str(DEPTH)
