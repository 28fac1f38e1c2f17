"""The late hand-over between instances of more than one rank."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.vllm.servers import disaggregated, engine, nixl, speculative
from tests.vllm.tiny_mtp import build
from tests.vllm.view import look, since

DEPTH = 3
TOKENS = 30


@pytest.mark.parametrize(("prefill_ranks", "decode_ranks"), [(2, 2), (2, 1)])
def test_late_hand_over_between_ranks(tmp_path: Path, logs: Path, prefill_ranks: int, decode_ranks: int) -> None:
    model = build(tmp_path / "model", 0.9, needs_kv=True)
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        started = [
            engine(
                model.path,
                8140 + at,
                logs / f"{role}{prefill_ranks}{decode_ranks}.log",
                speculative(DEPTH) | nixl(role) | {"tensor-parallel-size": str(ranks)},
                side_channel=5640 + at,
            )
            for at, (role, ranks) in enumerate((("kv_producer", prefill_ranks), ("kv_consumer", decode_ranks)))
        ]
        prefill, decode = pool.map(stack.enter_context, started)
        before = look(decode)
        assert before.info is not None
        assert before.info["lookahead_backoff"] == "late"
        for length in (2, 3, 4, 34, 35, 36, 200):
            (prompt,) = model.prompts(1, length, seed=length)
            answer = disaggregated(prefill, decode, prompt, TOKENS)
            assert answer.status == 200, answer.body
            assert answer.token_ids == model.successors(prompt[-1], TOKENS)
        seen = since(before, look(decode))
        assert seen.accepted / seen.draft_tokens > 0.5
        assert seen.drafted_per_pos == (seen.drafts,) * DEPTH
