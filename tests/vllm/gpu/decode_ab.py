"""Decode throughput of engines side by side on one GPU, in ABBA order: what a tuning, or the patch series, costs.

``python -m tests.vllm.gpu.decode_ab --plan PLAN --out FILE``. Plans: ``host-copy`` (untouched, patched, always,
never; a dense model of 36 layers x 4096), ``overhead`` (more starts of the first two) and ``top-k`` (a
DeepSeek-V3.2 shape, one shard of eight, sharing on and off). Weights are random and rejection sampling is
synthetic, so that acceptance is the same everywhere.

The engines of a wave are started together and all stay alive; one is measured at a time, forth and back. An arm
has an engine or two in each wave. A ratio of two arms is taken between engines of one wave; its interval is
Student's over these pairs of starts, not over repetitions, for starts differ more than repetitions do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from tests.vllm.tiny_mtp import write_json

DEPTH = 3
# Student's t, two-sided 95 %, by degrees of freedom.
STUDENT = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

DENSE: dict[str, Any] = {
    "architectures": ["MiMoForCausalLM"],
    "model_type": "qwen2",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151680,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 640000.0,
    "hidden_act": "silu",
    "attention_bias": True,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# One of eight tensor-parallel shards: heads, expert and MLP widths and the number of experts over eight.
SPARSE: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "torch_dtype": "bfloat16",
    "hidden_size": 7168,
    "intermediate_size": 2304,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 2.5,
    "ep_size": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "vocab_size": 16384,
    "max_position_embeddings": 163840,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "use_cache": True,
}


@dataclass(frozen=True)
class Arm:
    """One way to run the engine: which vLLM (``untouched`` or ``patched``) and what is told."""

    name: str
    vllm: str = "patched"
    engine: dict[str, Any] = field(default_factory=dict)
    speculation: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Arms of a wave in order of measurement, the points (prompt tokens, requests, tokens each), ratios to report."""

    model: dict[str, Any]
    common: dict[str, Any]
    arms: tuple[Arm, ...]
    points: tuple[tuple[int, int, int], ...]
    ratios: tuple[tuple[str, str], ...]


def _copy(mode: str) -> dict[str, Any]:
    return {"additional_config": {"spec_decode_host_copy": mode}}


_SHARING = Arm("on", speculation={"index_share_for_mtp_iteration": True})
_NO_SHARING = Arm("off", speculation={"index_share_for_mtp_iteration": False})
_UNCACHED = {"enable_prefix_caching": False}
_UNTOUCHED, _PATCHED = Arm("untouched", "untouched"), Arm("patched")

PLANS = {
    # More starts of the two that the patches' overhead is judged by.
    "overhead": Plan(
        DENSE,
        {**_UNCACHED, "max_model_len": 4096, "max_num_seqs": 32, "kv_cache_memory_bytes": 3 << 30},
        (_UNTOUCHED, _PATCHED, _PATCHED, _UNTOUCHED, _UNTOUCHED, _PATCHED),
        ((64, 32, 480),),
        (("patched", "untouched"),),
    ),
    "host-copy": Plan(
        DENSE,
        {**_UNCACHED, "max_model_len": 4096, "max_num_seqs": 32, "kv_cache_memory_bytes": 3 << 30},
        (
            _UNTOUCHED,
            _PATCHED,
            Arm("always", engine=_copy("always")),
            Arm("never", engine=_copy("never")),
            _PATCHED,
            _UNTOUCHED,
        ),
        ((64, 1, 900), (64, 32, 480)),
        (("patched", "untouched"), ("patched", "always"), ("patched", "never"), ("untouched", "untouched")),
    ),
    "top-k": Plan(
        SPARSE,
        {
            "max_model_len": 70000,  # CUDA graphs of the indexer are sized by it
            "max_num_seqs": 8,
            "kv_cache_memory_bytes": 8 << 30,
            # A prompt is prefilled once and for all: only decoding is measured, and the arms decode alike.
            "enable_prefix_caching": True,
            "max_num_batched_tokens": 8192,
            "attention_backend": "FLASHMLA_SPARSE",
        },
        (_SHARING, _NO_SHARING),
        ((16384, 1, 601), (65536, 1, 601)),
        (("on", "off"),),
    ),
}


def work() -> None:
    """An engine: told on the first line of stdin, then a point a line; answers in JSON lines."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM's own output
    told = json.loads(sys.stdin.readline())
    vllm: Any = import_module("vllm")  # only the engine's own environment has it
    engine = vllm.LLM(
        model=told["model"],
        load_format="dummy",
        skip_tokenizer_init=True,
        gpu_memory_utilization=0.1,
        speculative_config={
            "method": "mtp",
            "num_speculative_tokens": DEPTH,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": 3.0,
        }
        | told["speculation"],
        compilation_config={
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [1, 4, 8, 32, 128],
        },
        disable_log_stats=False,
        seed=0,
        **told["engine"],
    )

    def generate(prompt: int, requests: int, tokens: int) -> float:
        pick = random.Random(prompt * 1000 + requests)
        prompts = [{"prompt_token_ids": [pick.randrange(10, 16000) for _ in range(prompt)]} for _ in range(requests)]
        params = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        engine.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - started

    print(json.dumps({"info": _info(engine)}), file=answers)
    prefill: dict[tuple[int, int], float] = {}
    for line in sys.stdin:
        prompt, requests, tokens = json.loads(line)
        if (prompt, requests) not in prefill:
            generate(prompt, requests, 48)
            prefill[prompt, requests] = min(generate(prompt, requests, 1) for _ in range(3))
        seconds = generate(prompt, requests, tokens) - prefill[prompt, requests]
        print(json.dumps({"tokens_per_second": requests * (tokens - 1) / seconds}), file=answers)


def _info(engine: Any) -> dict[str, str]:
    for metric in engine.get_metrics():
        if metric.name.startswith("vllm:spec_decode_config_info"):
            labels: dict[str, str] = metric.labels
            return labels
    return {}


class Worker:
    """An engine in a process of its own."""

    def __init__(self, arm: Arm, plan: Plan, model: Path, sites: dict[str, str], log: IO[bytes]) -> None:
        self.arm = arm
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.vllm.gpu.decode_ab", "work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | {"PYTHONPATH": f"{sites[arm.vllm]}:{os.getcwd()}"},
            text=True,
        )
        self.ask({"model": str(model), "engine": plan.common | arm.engine, "speculation": arm.speculation}, wait=False)

    def ask(self, question: object, wait: bool = True) -> dict[str, Any]:
        """Send a line; the answer, if one is waited for."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self.answer() if wait else {}

    def answer(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            RuntimeError: the engine ended.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine of arm {self.arm.name} ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Let the engine go."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def wave(plan: Plan, model: Path, sites: dict[str, str], repetitions: int, log: Path) -> dict[str, Any]:
    """Start all engines, measure them forth and back, end them."""
    with log.open("wb") as output:
        workers = [Worker(arm, plan, model, sites, output) for arm in plan.arms]
        try:
            with ThreadPoolExecutor(len(workers)) as pool:
                infos = [answer["info"] for answer in pool.map(Worker.answer, workers)]
            runs: list[dict[str, Any]] = []
            for point in plan.points:
                for worker in workers:
                    worker.ask(point)  # warm
                for repetition in range(repetitions):
                    order = range(len(workers))
                    for at in order if repetition % 2 == 0 else reversed(order):
                        speed = workers[at].ask(point)["tokens_per_second"]
                        runs.append({"engine": at, "point": point, "tokens_per_second": speed})
        finally:
            for worker in workers:
                worker.end()
    return {"arms": [arm.name for arm in plan.arms], "infos": infos, "runs": runs}


def medians(one: dict[str, Any], point: Sequence[int]) -> dict[str, list[float]]:
    """Tokens per second of each engine of a wave at a point, by arm."""
    found: dict[str, list[float]] = {}
    for at, name in enumerate(one["arms"]):
        speeds = [
            run["tokens_per_second"] for run in one["runs"] if run["engine"] == at and list(run["point"]) == list(point)
        ]
        found.setdefault(name, []).append(statistics.median(speeds))
    return found


def ratio(waves: Sequence[dict[str, Any]], point: Sequence[int], arms: tuple[str, str]) -> list[float]:
    """Ratio of two arms for each pair of starts; of an arm to itself, of its first start to its second."""
    pairs: list[float] = []
    for one in waves:
        speeds = medians(one, point)
        if arms[0] == arms[1]:
            pairs += [a / b for a, b in zip(speeds[arms[0]][::2], speeds[arms[0]][1::2], strict=True)]
        elif len(speeds[arms[0]]) == len(speeds[arms[1]]):
            pairs += [a / b for a, b in zip(speeds[arms[0]], speeds[arms[1]], strict=True)]
        else:
            pairs.append(statistics.mean(speeds[arms[0]]) / statistics.mean(speeds[arms[1]]))
    return pairs


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval (Student's)."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = STUDENT[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def main() -> None:
    """Command line: waves until the plan is done, a table on stdout, everything as JSON in the file."""
    if sys.argv[1:] == ["work"]:
        work()
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plan", choices=sorted(PLANS), required=True)
    parser.add_argument("--waves", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=6)
    parser.add_argument("--untouched", default="", help="PYTHONPATH of vLLM as its wheel brings it")
    parser.add_argument("--patched", default="", help="PYTHONPATH of vLLM with the patch series")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm/specdecode"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    plan = PLANS[options.plan]
    model = options.scratch / options.plan
    model.mkdir(parents=True, exist_ok=True)
    write_json(model / "config.json", plan.model)
    sites = {"untouched": options.untouched, "patched": options.patched}
    waves: list[dict[str, Any]] = []
    for number in range(options.waves):
        started = time.monotonic()
        waves.append(wave(plan, model, sites, options.repetitions, options.out.with_suffix(f".{number}.log")))
        options.out.write_text(json.dumps(waves))
        print(f"wave {number}: {time.monotonic() - started:.0f} s", flush=True)
        for point in plan.points:
            print(point, {name: [round(x, 1) for x in speeds] for name, speeds in medians(waves[-1], point).items()})
        report(plan, waves)


def report(plan: Plan, waves: Sequence[dict[str, Any]]) -> None:
    """Print what the arms say that they do, and the ratios over the waves so far."""
    for info in waves[0]["infos"]:
        print({key: info[key] for key in sorted(info) if key.startswith(("host_copy", "top_k", "patch"))})
    for point in plan.points:
        for arms in plan.ratios:
            pairs = ratio(waves, point, arms)
            mean, low, high = interval(pairs)
            shown = [round(x, 4) for x in pairs]
            print(f"{point} {arms[0]}/{arms[1]}: {mean:.4f} ({low:.4f} to {high:.4f}) of {shown}", flush=True)


if __name__ == "__main__":
    main()
