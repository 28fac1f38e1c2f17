"""That peers which disagree refuse each other on a GPU: once, in clear, and live on.

``python -m tests.vllm.gpu.refusals --out FILE`` with a patched vLLM 0.33.0 on PYTHONPATH: a prefill server of depth 3
and late hand-over, and decode servers of another depth or backoff under both load-failure policies. For each: the
status and message that the client gets, what the counter says, and whether the server answers afterwards.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.vllm.exposition import counter
from tests.vllm.gpu.backoff import TOKENS, platform
from tests.vllm.gpu.multi_module import MultiModuleModel, build
from tests.vllm.servers import Engine, disaggregated, engine, nixl, speculative

DEPTH = 3
STRANGERS = ((2, "late", "recompute"), (DEPTH, "upstream", "fail"), (DEPTH, "off", "recompute"))
REFUSED = "vllm:nixl_num_refused_requests_total"


def refusals(prefill: Engine, stranger: Engine, model: MultiModuleModel) -> dict[str, Any]:
    """Two requests that can't be served, then one that needs no transfer."""
    said, counted = [], []
    prompts = model.prompts(1, count=3, seed=5)
    for prompt in prompts[:2]:
        answer = disaggregated(prefill, stranger, prompt, TOKENS)
        said.append([answer.status, json.dumps(answer.body)[:600]])
        counted.append(counter(stranger.metrics(), REFUSED))
    alone = stranger.complete(prompts[2], TOKENS)
    return {
        "answers": said,
        "counted": counted,
        "lives": alone.token_ids == model.successors(prompts[2][-1], TOKENS),
    }


def main() -> None:
    """Command line; one line a decode server on stdout, all of it as JSON in the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=8300, help="of the first server")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm/specdecode"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    model = build(options.scratch / "refusals-model")
    servers = [("kv_producer", DEPTH, "late", "fail")]
    servers += [("kv_consumer", depth, mode, policy) for depth, mode, policy in STRANGERS]
    found: list[dict[str, Any]] = []
    with ExitStack() as stack, ThreadPoolExecutor(len(servers)) as pool:
        started = [
            engine(
                model.path,
                options.port + at,
                options.scratch / f"refusals-{at}.log",
                speculative(depth) | nixl(role, policy, device="cuda", lookahead_backoff=mode),
                side_channel=options.port + 1000 + at,
                platform=platform(depth, prefix_caching=False, ranks=1),
            )
            for at, (role, depth, mode, policy) in enumerate(servers)
        ]
        prefill, *strangers = pool.map(stack.enter_context, started)
        for (depth, mode, policy), stranger in zip(STRANGERS, strangers, strict=True):
            found.append({"depth": depth, "mode": mode, "policy": policy} | refusals(prefill, stranger, model))
            print(json.dumps(found[-1]), flush=True)
    options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
