"""What the lookahead backoff costs a model that was really trained, in decode steps, relative to aggregated serving.

``python -m tests.vllm.gpu.steps --out FILE`` with a patched vLLM 0.33.0 on PYTHONPATH. A model is trained (or one that
``tests.vllm.gpu.trained`` left is taken), a P/D pair is started for each mode, and each prompt is answered through the
pair and by the same decode server alone, in turns.
Only requests with the same tokens from both are compared: their steps differ by what was accepted and by nothing
else. The interval is a bootstrap over requests.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.vllm.exposition import counter
from tests.vllm.gpu.backoff import pair
from tests.vllm.gpu.trained import TrainedModel, load, train
from tests.vllm.servers import Answer, Engine, disaggregated

RESAMPLES = 2000
SETTLED = 0.1  # seconds after which a finished request is in the counters


@dataclass
class Result:
    """One pair of servers: requests asked and compared, and steps of P/D over steps of aggregated serving."""

    depth: int
    mode: str
    requests: int
    same: int
    mean_length: float
    """Tokens of a step of aggregated serving, over the requests that are compared."""
    ratio: float
    low: float
    high: float


def ratio(steps: Sequence[tuple[float, float]], seed: int = 0) -> tuple[float, float, float]:
    """Sum of the first over sum of the second, with a 95 % bootstrap interval over requests."""
    pick = random.Random(seed)

    def of(rows: Sequence[tuple[float, float]]) -> float:
        return sum(first for first, _ in rows) / sum(second for _, second in rows)

    drawn = sorted(of(pick.choices(steps, k=len(steps))) for _ in range(RESAMPLES))
    return of(steps), drawn[round(0.025 * RESAMPLES)], drawn[round(0.975 * RESAMPLES) - 1]


def steps_of(decode: Engine, call: Callable[[], Answer]) -> tuple[list[int], float]:
    """Tokens of one request, and the decode steps with drafts that it took."""
    name = "vllm:spec_decode_num_drafts_total"
    before = counter(decode.metrics(), name)
    answer = call()
    assert answer.status == 200, answer.body
    time.sleep(SETTLED)
    return answer.token_ids, counter(decode.metrics(), name) - before


def measure(
    model: TrainedModel, depth: int, mode: str, port: int, logs: Path, requests: int, tokens: int
) -> tuple[Result, list[tuple[float, float]]]:
    """Start a pair, measure it, end it."""
    with pair(model.path, depth, mode, port, logs) as (prefill, decode):
        for prompt in model.prompts(4, seed=1):
            disaggregated(prefill, decode, prompt, tokens)
        compared: list[tuple[float, float]] = []
        for at, prompt in enumerate(model.prompts(requests, seed=2)):
            apart = (lambda p: lambda: disaggregated(prefill, decode, p, tokens))(prompt)
            alone = (lambda p: lambda: decode.complete(p, tokens))(prompt)
            order = (apart, alone) if at % 2 == 0 else (alone, apart)
            found = [steps_of(decode, call) for call in order]
            (ours, steps), (theirs, reference) = found if at % 2 == 0 else found[::-1]
            if ours == theirs:
                compared.append((steps, reference))
        # The first token comes from the prefill's step, which drafts but has no draft to verify.
        length = (tokens - 1) * len(compared) / sum(reference for _, reference in compared)
        return Result(depth, mode, requests, len(compared), length, *ratio(compared)), compared


def main() -> None:
    """Command line; one line a pair on stdout, all of it as JSON in the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--depths", default="2,3,5")
    parser.add_argument("--modes", default="late,upstream,off")
    parser.add_argument("--pairs", type=int, default=3, help="that run at the same time")
    parser.add_argument("--model", type=Path, help="folder of a model that is trained already")
    parser.add_argument("--seconds", type=float, default=150.0, help="of training")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm/specdecode"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    model = load(options.model) if options.model else train(options.scratch / "trained", options.seconds)
    print("drafts that agree with the target, by module:", [round(x, 3) for x in model.agreement], flush=True)
    results: list[dict[str, object]] = []
    with ThreadPoolExecutor(options.pairs) as pool:
        cells = [(int(depth), mode) for depth in options.depths.split(",") for mode in options.modes.split(",")]
        jobs = [
            pool.submit(measure, model, depth, mode, 8100 + 10 * at, options.scratch, options.requests, options.tokens)
            for at, (depth, mode) in enumerate(cells)
        ]
        for job in jobs:
            try:
                result, compared = job.result()
            except Exception as error:  # one pair must not cost the others' figures
                print(f"a pair failed: {str(error)[-3000:]}", flush=True)
                continue
            results.append(asdict(result) | {"steps": compared})
            print(result, flush=True)
            options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
