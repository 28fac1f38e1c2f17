"""What the lookahead backoff is worth: P/D pairs over NIXL, for each depth and mode.

``python -m tests.vllm.gpu.backoff --out FILE`` with a patched vLLM 0.33.0 on PYTHONPATH. For each pair, with
the built multi-module model: mean acceptance length with its slot at each offset from the prompt's end, beside
aggregated serving on the same decode server; and how many slots of each module's KV differ from those of an
aggregated prefill of the same tokens. With ``--prefix-caching`` each prompt has been seen before, in part and
then whole. With ``--slow-drafts`` the prefill server's drafter is late: what it hasn't written must not be handed out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
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
SEEN = 20  # tokens by which a prompt is longer than the one before it, where prefixes are cached
INFO = "vllm:spec_decode_config_info{"


@dataclass(frozen=True)
class SetUp:
    """What is the same for all pairs of a run.

    ``prefill_ranks`` and ``decode_ranks`` are tensor-parallel sizes; both servers begin at the first GPU.
    """

    connector: str = "NixlConnector"
    prefix_caching: bool = False
    prefill_ranks: int = 1
    decode_ranks: int = 1
    slow_drafts: float = 0.0
    """Seconds by which the prefill server's drafter is late."""
    seconds: float = 600.0
    """After which a pair that runs is ended, whatever it does."""


@dataclass
class Result:
    """One pair of servers: acceptance length by offset (aggregated, then P/D), exact answers, `wrong_slots`."""

    depth: int
    mode: str
    in_force: str
    reason: str
    lengths: dict[int, tuple[float, float]]
    exact: tuple[int, int]
    wrong_slots: dict[str, list[dict[int, int]]]


def platform(depth: int, prefix_caching: bool, ranks: int) -> Platform:
    """vLLM on the GPU (on the first ``ranks`` of them), small enough that a dozen servers share it."""
    sizes = [(depth + 1) * requests for requests in (1, 2, 4, 8, 16)]
    graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
    caching = "enable-prefix-caching" if prefix_caching else "no-enable-prefix-caching"
    return Platform(
        serve=(sys.executable, *SERVE),
        environment=OFFLINE | {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_SERVER_DEV_MODE": "1"},
        arguments={
            "dtype": "bfloat16",
            "max-model-len": "2048",
            "max-num-seqs": "16",
            "gpu-memory-utilization": "0.05",
            "kv-cache-memory-bytes": "1G",
            "tensor-parallel-size": str(ranks),
            "compilation-config": json.dumps(graphs),
            "worker-extension-cls": "tests.vllm.gpu.kv_trace.KvTrace",
        },
        # How ranks add up is not what is measured.
        flags=(caching,) if ranks == 1 else (caching, "disable-custom-all-reduce"),
    )


@contextmanager
def pair(
    model: Path, depth: int, mode: str, port: int, logs: Path, set_up: SetUp = SetUp()
) -> Iterator[tuple[Engine, Engine]]:
    """A prefill and a decode server with this depth and mode."""
    roles = (("kv_producer", set_up.prefill_ranks), ("kv_consumer", set_up.decode_ranks))
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        both = [
            engine(
                model,
                port + at,
                logs / f"{mode}{depth}{role}.log",
                speculative(depth) | nixl(role, connector=set_up.connector, device="cuda", lookahead_backoff=mode),
                side_channel=port + 1000 + at,
                platform=platform(depth, set_up.prefix_caching, ranks),
            )
            for at, (role, ranks) in enumerate(roles)
        ]
        prefill, decode = pool.map(stack.enter_context, both)
        with _ended_after(set_up.seconds, prefill, decode):
            yield prefill, decode


@contextmanager
def _ended_after(seconds: float, *servers: Engine) -> Iterator[None]:
    def end() -> None:
        for server in servers:
            with suppress(ProcessLookupError):
                os.killpg(server.process.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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


def alone(decode: Engine, prompt: Sequence[int], tokens: int) -> Any:
    """The answer of the decode server by itself, which nothing that it has cached helps."""
    return decode.complete(prompt, tokens, cache_salt=uuid.uuid4().hex)


def mtp_kv(server: Engine, folder: Path, call: Any) -> tuple[list[int], list[Any]]:
    """Tokens of a request, and the modules' caches after each of its steps, the ranks' heads side by side."""
    torch: Any = import_module("torch")  # only the engine's own environment has it
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    post(f"{server.url}/collective_rpc", {"method": "trace_mtp_kv", "args": [str(folder)]})
    tokens = call().token_ids
    time.sleep(0.1)
    post(f"{server.url}/collective_rpc", {"method": "trace_mtp_kv", "args": [""]})
    steps: list[Any] = []
    for first in sorted(folder.glob("*.0.pt")):
        ranks = [torch.load(file) for file in sorted(folder.glob(f"{first.name.partition('.')[0]}.*.pt"))]
        kv = {name: torch.cat([rank["kv"][name] for rank in ranks], dim=1) for name in ranks[0]["kv"]}
        steps.append({"slots": ranks[0]["slots"], "kv": kv})
    return tokens, steps


def wrong_slots(
    prefill: Engine, decode: Engine, model: MultiModuleModel, depth: int, folder: Path, seen: bool
) -> dict[str, list[dict[int, int]]]:
    """By way of asking and by module: wrong slots, relative to the prompt's end, and in how many of 8 requests.

    With ``seen`` each prompt is asked for twice ("longer", "again"), after one that it continues with other tokens
    than were generated; through the pair, and then by the decode server alone, whose caches know nothing of it.
    """

    def apart(prompt: list[int], _: str) -> Any:
        return disaggregated(prefill, decode, prompt, KV_TOKENS)

    def by_itself(prompt: list[int], salt: str) -> Any:
        return decode.complete(prompt, KV_TOKENS, cache_salt=salt)

    found: dict[str, list[dict[int, int]]] = {}

    def compare(way: str, prompt: list[int], call: Any) -> None:
        where = found.setdefault(way, [{} for _ in range(depth)])
        tokens, steps = mtp_kv(decode, folder, call)
        sequence = prompt + tokens
        _, truth = mtp_kv(decode, folder, lambda: alone(decode, sequence, 1))
        end = min(steps[-1]["slots"], len(sequence) - 1 - depth)
        names = sorted(truth[0]["kv"], key=lambda name: [int(part) for part in name.split(".") if part.isdigit()])
        for module, name in enumerate(names[:depth]):
            ours, theirs = steps[-1]["kv"][name][:end], truth[0]["kv"][name][:end]
            distance = (ours - theirs).norm(dim=1) / theirs.norm(dim=1)
            for slot in (distance > WRONG).nonzero().flatten().tolist():
                at = slot - len(prompt)
                where[module][at] = where[module].get(at, 0) + 1

    for prompt in model.prompts(offset=SEEN, count=8, seed=5):
        for name, ask in (("apart", apart), ("alone", by_itself)) if seen else (("apart", apart),):
            salt = uuid.uuid4().hex
            if seen:
                ask(prompt[:-SEEN], salt)
            for way in (f"{name}, longer", f"{name}, again") if seen else (name,):
                compare(way, prompt, lambda p=prompt, a=ask, s=salt: a(p, s))
    return found


def measure(
    model: MultiModuleModel, depth: int, mode: str, port: int, out: Path, compare: bool, set_up: SetUp
) -> Result:
    """Start a pair, measure it, end it."""
    with pair(model.path, depth, mode, port, out, set_up) as (prefill, decode):
        info = next(line for line in decode.metrics().splitlines() if line.startswith(INFO))

        def label(name: str) -> str:
            return info.partition(f'{name}="')[2].partition('"')[0]

        if set_up.slow_drafts:
            asked = {"method": "slow_drafts", "args": [str(set_up.slow_drafts)]}
            assert post(f"{prefill.url}/collective_rpc", asked).status == 200
        warm = model.prompts(offset=20, count=4, seed=1)
        for prompt in warm:
            disaggregated(prefill, decode, prompt, TOKENS)
        lengths: dict[int, tuple[float, float]] = {}
        exact = total = 0
        for offset in range(1, depth + 2):
            # Where prefixes are cached, the second time is with a prompt that both have seen.
            prompts = model.prompts(offset, count=8, seed=offset) * (1 + set_up.prefix_caching)
            arms = (
                [lambda p=prompt: alone(decode, p, TOKENS) for prompt in prompts],
                [lambda p=prompt: disaggregated(prefill, decode, p, TOKENS) for prompt in prompts],
            )
            measured = [mean_length(decode, calls) for calls in arms]
            lengths[offset] = (measured[0][0], measured[1][0])
            wanted = [model.successors(prompt[-1], TOKENS) for prompt in prompts]
            exact += sum(got == want for got, want in zip(measured[1][1], wanted, strict=True))
            total += len(prompts)
        wrong = wrong_slots(prefill, decode, model, depth, out / f"kv{port}", set_up.prefix_caching) if compare else {}
        in_force, reason = label("lookahead_backoff"), label("lookahead_backoff_reason")
        return Result(depth, mode, in_force, reason, lengths, (exact, total), wrong)


def main() -> None:
    """Command line; one line a pair on stdout, all of it as JSON in the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--depths", default="2,3,5")
    parser.add_argument("--modes", default="late,upstream,off")
    parser.add_argument("--pairs", type=int, default=3, help="that run at the same time")
    parser.add_argument("--port", type=int, default=8100, help="of the first server")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which a pair is ended, whatever it does")
    parser.add_argument("--window", type=int, help="sliding window of the MTP modules")
    parser.add_argument("--prefix-caching", action="store_true")
    parser.add_argument("--slow-drafts", type=float, default=0.0, help="seconds by which the prefill drafter is late")
    parser.add_argument("--connector", default="NixlConnector")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs of each server")
    parser.add_argument("--decode-tensor-parallel-size", type=int, help="of the decode server, where it differs")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm/specdecode"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    model = build(options.scratch / "model", window=options.window)
    depths = [int(depth) for depth in options.depths.split(",")]
    assert max(depths) <= MODULES
    ranks = options.tensor_parallel_size
    decode_ranks = options.decode_tensor_parallel_size or ranks
    set_up = SetUp(options.connector, options.prefix_caching, ranks, decode_ranks, options.slow_drafts, options.seconds)
    results: list[Result] = []
    with ThreadPoolExecutor(options.pairs) as pool:
        started = time.monotonic()
        jobs = [
            # A window's cache holds less than the whole and can't be compared slot by slot.
            pool.submit(
                measure, model, depth, mode, options.port + 10 * at, options.scratch, options.window is None, set_up
            )
            for at, (depth, mode) in enumerate((depth, mode) for depth in depths for mode in options.modes.split(","))
        ]
        for job in jobs:
            try:
                result = job.result()
            except Exception as error:  # one pair must not cost the others' figures
                print(f"a pair failed: {str(error)[-3000:]}", flush=True)
                continue
            results.append(result)
            lengths = " ".join(f"{k}:{a:.2f}/{b:.2f}" for k, (a, b) in result.lengths.items())
            print(
                f"{time.monotonic() - started:.0f} s: depth {result.depth} {result.mode} (in force {result.in_force}"
                f"{': ' if result.reason else ''}{result.reason}): length by offset, aggregated/P-D: {lengths}; "
                f"exact {result.exact}; wrong slots by module: {result.wrong_slots}",
                flush=True,
            )
            options.out.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()
