"""What the lookahead backoff is worth: P/D pairs over NIXL on one GPU, for each depth and mode.

``python -m tests.vllm.gpu.backoff --out FILE`` with a patched vLLM 0.33.0 on PYTHONPATH. For each pair, with
the built multi-module model: mean acceptance length with its slot at each offset from the prompt's end, beside
aggregated serving on the same decode server; and how many slots of each module's KV differ from those of an
aggregated prefill of the same tokens.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.vllm.exposition import counter
from tests.vllm.gpu.multi_module import MODULES, MultiModuleModel, build
from tests.vllm.servers import OFFLINE, SERVE, Engine, Platform, disaggregated, engine, nixl, post, speculative

TOKENS = 41  # generated per request for the acceptance length
KV_TOKENS = 24  # generated before the caches are compared
WRONG = 0.1  # relative distance of two slots; clean ones differ by bf16 rounding, under 0.01


@dataclass
class Result:
    """One pair of servers: acceptance length by offset (aggregated, then P/D), exact answers, wrong slots."""

    depth: int
    mode: str
    told: str
    in_force: str
    lengths: dict[int, tuple[float, float]]
    exact: tuple[int, int]
    wrong_slots: list[float]
    where: list[dict[int, int]]


def platform(depth: int, prefix_caching: bool, ranks: int) -> Platform:
    """vLLM on the GPU (on the first ``ranks`` of them), small enough that six servers share it."""
    sizes = [(depth + 1) * requests for requests in (1, 2, 4, 8, 16)]
    graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
    return Platform(
        serve=(sys.executable, *SERVE),
        environment=OFFLINE | {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_SERVER_DEV_MODE": "1"},
        arguments={
            "dtype": "bfloat16",
            "max-model-len": "2048",
            "max-num-seqs": "16",
            "gpu-memory-utilization": "0.1",
            "kv-cache-memory-bytes": "1G",
            "tensor-parallel-size": str(ranks),
            "compilation-config": json.dumps(graphs),
            "worker-extension-cls": "tests.vllm.gpu.kv_trace.KvTrace",
        },
        flags=("enable-prefix-caching" if prefix_caching else "no-enable-prefix-caching",),
    )


@contextmanager
def pair(
    model: Path, depth: int, mode: str, port: int, logs: Path, prefix_caching: bool, connector: str, ranks: int = 1
) -> Iterator[tuple[Engine, Engine]]:
    """A prefill and a decode server with this depth and mode."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        both = [
            engine(
                model,
                port + at,
                logs / f"{mode}{depth}{role}.log",
                speculative(depth) | nixl(role, connector=connector, device="cuda", lookahead_backoff=mode),
                side_channel=port + 1000 + at,
                platform=platform(depth, prefix_caching, ranks),
            )
            for at, role in enumerate(("kv_producer", "kv_consumer"))
        ]
        prefill, decode = pool.map(stack.enter_context, both)
        yield prefill, decode


def acceptance(server: Engine) -> tuple[float, float]:
    """Drafts and accepted tokens so far."""
    text = server.metrics()
    return counter(text, "vllm:spec_decode_num_drafts_total"), counter(
        text, "vllm:spec_decode_num_accepted_tokens_total"
    )


def mean_length(server: Engine, calls: Sequence[Any]) -> tuple[float, list[list[int]]]:
    """Mean acceptance length over the calls, and their tokens."""
    before = acceptance(server)
    tokens = [call().token_ids for call in calls]
    time.sleep(0.2)
    after = acceptance(server)
    return 1 + (after[1] - before[1]) / (after[0] - before[0]), tokens


def mtp_kv(server: Engine, folder: Path, call: Any) -> tuple[list[int], list[Any]]:
    """Tokens of a request, and the modules' caches after each of its steps."""
    torch: Any = import_module("torch")  # only the engine's own environment has it
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    post(f"{server.url}/collective_rpc", {"method": "trace_mtp_kv", "args": [str(folder)]})
    tokens = call().token_ids
    time.sleep(0.1)
    post(f"{server.url}/collective_rpc", {"method": "trace_mtp_kv", "args": [""]})
    return tokens, [torch.load(file) for file in sorted(folder.glob("*.pt"))]


def wrong_slots(
    prefill: Engine, decode: Engine, model: MultiModuleModel, depth: int, folder: Path
) -> tuple[list[float], list[dict[int, int]]]:
    """Wrong slots of a request by module, and where they lie relative to the prompt's end (slot: requests)."""
    where: list[dict[int, int]] = [{} for _ in range(depth)]
    prompts = model.prompts(offset=20, count=8, seed=5)
    for prompt in prompts:
        tokens, steps = mtp_kv(decode, folder, lambda p=prompt: disaggregated(prefill, decode, p, KV_TOKENS))
        sequence = prompt + tokens
        _, truth = mtp_kv(decode, folder, lambda s=sequence: decode.complete(s, 1))
        end = min(steps[-1]["slots"], len(sequence) - 1 - depth)
        names = sorted(truth[0]["kv"], key=lambda name: [int(part) for part in name.split(".") if part.isdigit()])
        for module, name in enumerate(names[:depth]):
            ours, theirs = steps[-1]["kv"][name][:end], truth[0]["kv"][name][:end]
            distance = (ours - theirs).norm(dim=1) / theirs.norm(dim=1)
            for slot in (distance > WRONG).nonzero().flatten().tolist():
                at = slot - len(prompt)
                where[module][at] = where[module].get(at, 0) + 1
    return [sum(counts.values()) / len(prompts) for counts in where], where


def measure(
    model: MultiModuleModel,
    depth: int,
    mode: str,
    port: int,
    out: Path,
    compare: bool,
    prefix_caching: bool,
    connector: str,
    ranks: int,
) -> Result:
    """Start a pair, measure it, end it."""
    with pair(model.path, depth, mode, port, out, prefix_caching, connector, ranks) as (prefill, decode):
        info = next(line for line in decode.metrics().splitlines() if line.startswith("vllm:spec_decode_config_info{"))
        in_force = info.partition('lookahead_backoff="')[2].partition('"')[0]
        warm = model.prompts(offset=20, count=4, seed=1)
        for prompt in warm:
            disaggregated(prefill, decode, prompt, TOKENS)
        lengths: dict[int, tuple[float, float]] = {}
        exact = total = 0
        for offset in range(1, depth + 2):
            prompts = model.prompts(offset, count=8, seed=offset)
            arms = (
                [lambda p=prompt: decode.complete(p, TOKENS) for prompt in prompts],
                [lambda p=prompt: disaggregated(prefill, decode, p, TOKENS) for prompt in prompts],
            )
            measured = [mean_length(decode, calls) for calls in arms]
            lengths[offset] = (measured[0][0], measured[1][0])
            wanted = [model.successors(prompt[-1], TOKENS) for prompt in prompts]
            exact += sum(got == want for got, want in zip(measured[1][1], wanted, strict=True))
            total += len(prompts)
        slots, where = wrong_slots(prefill, decode, model, depth, out / f"kv{port}") if compare else ([], [])
        return Result(depth, mode, mode, in_force, lengths, (exact, total), slots, where)


def main() -> None:
    """Command line; one line a pair on stdout, all of it as JSON in the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--depths", default="2,3,5")
    parser.add_argument("--modes", default="late,upstream,off")
    parser.add_argument("--window", type=int, help="sliding window of the MTP modules")
    parser.add_argument("--prefix-caching", action="store_true")
    parser.add_argument("--connector", default="NixlConnector")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs of each server")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm/specdecode"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    model = build(options.scratch / "model", window=options.window)
    assert max(map(int, options.depths.split(","))) <= MODULES
    results: list[Result] = []
    for depth in map(int, options.depths.split(",")):
        with ThreadPoolExecutor() as pool:
            started = time.monotonic()
            jobs = [
                pool.submit(
                    measure,
                    model,
                    depth,
                    mode,
                    8100 + 10 * at,
                    options.scratch,
                    # A cache in parts, or one that holds less than the whole, can't be compared slot by slot.
                    options.window is None and not options.prefix_caching and options.tensor_parallel_size == 1,
                    options.prefix_caching,
                    options.connector,
                    options.tensor_parallel_size,
                )
                for at, mode in enumerate(options.modes.split(","))
            ]
            for job in jobs:
                try:
                    result = job.result()
                except Exception as error:  # one pair must not cost the others' figures
                    print(f"depth {depth}: {str(error)[-3000:]}", flush=True)
                    continue
                results.append(result)
                lengths = " ".join(f"{k}:{a:.2f}/{b:.2f}" for k, (a, b) in result.lengths.items())
                print(
                    f"depth {depth} {result.mode} (in force {result.in_force}): length by offset, aggregated/P-D: "
                    f"{lengths}; exact {result.exact}; wrong slots by module {result.wrong_slots} at {result.where}",
                    flush=True,
                )
            print(f"depth {depth}: {time.monotonic() - started:.0f} s", flush=True)
        options.out.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()
