"""A worker extension that writes down the MTP modules' KV of a request after every step (Model Runner V2, CUDA).

Given to vLLM as ``--worker-extension-cls tests.vllm.gpu.kv_trace.KvTrace``; no file of vLLM is changed.
"""

from __future__ import annotations

import functools
from importlib import import_module
from pathlib import Path
from typing import Any

CYCLES_PER_SECOND = 1.9e9  # of the GPU, about


class KvTrace:
    """Methods that vLLM mixes into its worker; called through ``/collective_rpc``."""

    def init_worker_extension(self) -> None:
        """Called by vLLM before the model is loaded: let a Step-3.5 target without MoE layers load.

        vLLM asserts at the very end of the target's constructor that it has one.
        """
        step: Any = import_module("vllm.model_executor.models.step3p5")
        init = step.Step3p5ForCausalLM.__init__

        @functools.wraps(init)  # vLLM goes by the signature
        def without_moe(*args: Any, **kwargs: Any) -> None:
            try:
                init(*args, **kwargs)
            except AssertionError as error:
                if "No MoE layers" not in str(error):
                    raise

        step.Step3p5ForCausalLM.__init__ = without_moe

    def slow_drafts(self, seconds: str) -> list[str]:
        """From now on the drafter's work on the GPU begins this much later, on rank 1 twice as much, and so on."""
        worker: Any = self  # that this is mixed into
        torch: Any = import_module("torch")
        speculator = worker.model_runner.speculator
        cycles = int(float(seconds) * (1 + worker.rank) * CYCLES_PER_SECOND)
        propose = speculator.propose

        def late(*args: Any, **kwargs: Any) -> Any:
            torch.cuda._sleep(cycles)
            return propose(*args, **kwargs)

        speculator.propose = late
        return [seconds]

    def trace_mtp_kv(self, folder: str) -> list[str]:
        """From now on write ``NNNNN.RANK.pt`` into ``folder`` after each step with one request; "" ends it.

        Each holds ``kv``, by layer a tensor [slots, values] of the request's slots so far (of this rank's heads),
        and ``slots``.
        """
        worker: Any = self  # that this is mixed into
        speculator, rank = worker.model_runner.speculator, worker.rank
        speculator.trace_folder = Path(folder) if folder else None
        speculator.trace_count = 0
        if not hasattr(speculator, "trace_propose"):
            speculator.trace_propose = speculator.propose

            def propose(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
                drafts = speculator.trace_propose(input_batch, *args, **kwargs)
                if speculator.trace_folder and input_batch.num_reqs == 1 and not kwargs.get("dummy_run"):
                    _write(speculator, rank)
                return drafts

            speculator.propose = propose
        return [folder]


def _write(speculator: Any, rank: int) -> None:
    # Only the engine's own environment has these.
    torch: Any = import_module("torch")
    config: Any = import_module("vllm.config")
    attention: Any = import_module("vllm.model_executor.layers.attention_layer_base")

    state = int(speculator.idx_mapping[0])
    last = int(speculator.last_token_indices[0])
    slots = int(speculator.input_buffers.positions[last]) + 1
    layers = config.get_layers_from_vllm_config(speculator.vllm_config, attention.AttentionLayerBase)
    kv = {}
    for at, group in enumerate(speculator.kv_cache_config.kv_cache_groups):
        for name in group.layer_names:
            if name not in speculator.draft_attn_layer_names:
                continue
            cache = layers[name].kv_cache  # [blocks, heads, block size, K and V]
            size = cache.shape[2]
            blocks = speculator.block_tables.block_tables[at].gpu[state, : -(-slots // size)].long()
            rows = cache[blocks].permute(0, 2, 1, 3)
            kv[name] = rows.reshape(blocks.numel() * size, -1)[:slots].float().cpu()
    path = speculator.trace_folder / f"{speculator.trace_count:05d}.{rank}.pt"
    speculator.trace_count += 1
    torch.save({"slots": slots, "kv": kv}, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").rename(path)
