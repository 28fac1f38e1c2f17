"""A tiny checkpoint with several MTP modules whose drafts depend on one slot of each module's own KV.

Shape of Step-3.5 (multi-module by nature, one module and head per depth), dense, under 10 MB.

Target: the next token is the successor on one long cycle; attention and MLP add nothing.

Module m, fed token p + m + 1 at slot p, predicts the successor of what it is fed, but a constant push makes a
decoy win unless its attention finds, in its own cache, the slot that was written while the token MARK was the
input. Lose or overwrite that slot and the module drafts the decoy for the rest of the request; answers stay
exact. The value that attention doesn't read carries the fed token's code, so that a slot which was written
from any other token shows when two caches are compared.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.vllm.tiny_mtp import SPECIAL, Array, write_json, write_safetensors, write_tokenizer

HIDDEN, LAYERS, MODULES = 192, 2, 5
HEAD_DIM, HEADS, KV_HEADS, INTERMEDIATE = 64, 4, 2, 128
CODE = HIDDEN - 3
DECOY, MARKED, CONST = HIDDEN - 3, HIDDEN - 2, HIDDEN - 1  # dimensions after a token's code
F = 0.5  # size of flag and constant where a code has norm 1
PUSH = 3.0
SHARPNESS = 8.0
EPS = 1e-5
MARK = 1  # id of a special token
SLOW = HEAD_DIM // 2 - 1  # the rotary pair that turns least


@dataclass(frozen=True)
class MultiModuleModel:
    """A checkpoint on disk and its cycle of token ids."""

    path: Path
    cycle: tuple[int, ...]

    def successors(self, token: int, count: int) -> list[int]:
        """The tokens that greedy decoding gives after ``token``; MARK is followed by the cycle's first."""
        at = -1 if token == MARK else self.cycle.index(token)
        return [self.cycle[(at + 1 + i) % len(self.cycle)] for i in range(count)]

    def prompts(self, offset: int, count: int, seed: int) -> list[list[int]]:
        """Prompts of 40 to 220 tokens in random order with MARK ``offset`` tokens before their end."""
        pick = random.Random(seed)
        prompts = [[pick.choice(self.cycle) for _ in range(pick.randrange(40, 220))] for _ in range(count)]
        for prompt in prompts:
            prompt[-offset] = MARK
        return prompts


def build(folder: Path, seed: int = 0, window: int | None = None) -> MultiModuleModel:
    """Write the checkpoint.

    Args:
        folder: made if need be.
        seed: of codes and cycle.
        window: sliding window of the MTP modules (and of the last layer), in tokens; None: full attention.

    Raises:
        AssertionError: the arithmetic doesn't give the cycle or the decoy (checked on every token).
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng, pick = np.random.default_rng(seed), random.Random(seed)
    vocabulary = write_tokenizer(folder)
    size = len(vocabulary)
    cycle = [i for token, i in vocabulary.items() if token not in SPECIAL and token.isascii() and token.isprintable()]
    pick.shuffle(cycle)
    decoy = cycle.pop()

    code = rng.standard_normal((size, CODE))
    code /= np.linalg.norm(code, axis=1, keepdims=True)
    for i in range(size):
        if i not in cycle and i not in (decoy, MARK):
            code[i] = code[cycle[i % len(cycle)]]
    embedding = np.zeros((size, HIDDEN))
    embedding[:, :CODE], embedding[:, CONST] = code, F
    embedding[decoy, :CODE], embedding[decoy, DECOY], embedding[MARK, MARKED] = 0, 1, F
    head = np.zeros((size, HIDDEN))
    for at, token in enumerate(cycle):
        head[cycle[(at + 1) % len(cycle)], :CODE] = SHARPNESS * code[token]
    head[cycle[0], :CODE] += SHARPNESS * code[MARK]
    head[decoy, DECOY] = SHARPNESS

    weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": np.zeros(HIDDEN)}
    for layer in range(LAYERS):
        weights |= _block(f"model.layers.{layer}.", rng, None)
    project = _projection()
    attention = _attention(rng)
    for module in range(LAYERS, LAYERS + MODULES):
        prefix = f"model.layers.{module}."
        weights |= _block(prefix, rng, attention)
        weights |= {f"{prefix}{name}.weight": np.zeros(HIDDEN) for name in ("enorm", "hnorm", "shared_head.norm")}
        weights |= {f"{prefix}eh_proj.weight": project, f"{prefix}shared_head.head.weight": head}
    _check(embedding, head, project, attention["o"], cycle, decoy)
    write_safetensors(folder / "model.safetensors", weights)
    write_json(folder / "config.json", config(size, LAYERS, MODULES, window))
    write_json(folder / "generation_config.json", {"eos_token_id": 0, "pad_token_id": 0, "do_sample": False})
    return MultiModuleModel(folder, tuple(cycle))


def _projection() -> Array:
    """eh_proj over [normed embedding | normed hidden]: code, flag and constant at unit size, and the push."""
    plain = np.sqrt(HIDDEN) / np.sqrt(1 + F * F)  # what a norm multiplies an embedding by
    marked = np.sqrt(HIDDEN) / np.sqrt(1 + 2 * F * F)
    project = np.zeros((HIDDEN, 2 * HIDDEN))
    project[:CODE, :CODE] = np.eye(CODE) / plain
    project[CONST, CONST] = 1 / (plain * F)
    project[MARKED, MARKED] = 1 / (marked * F)
    project[DECOY, DECOY] = 1 / plain
    project[DECOY, CONST] = PUSH / (plain * F)
    return project


def _attention(rng: np.random.Generator) -> dict[str, Array]:
    """Weights that look for the slot of MARK, and take the push away where it is found."""
    plain, marked = 1 / np.sqrt(1 + F * F), 1 / np.sqrt(1 + 2 * F * F)
    ratio = marked / plain
    mark_norm = np.sqrt(ratio**2 * 2 + 1 + (PUSH * ratio) ** 2)  # of the block's input at the slot of MARK
    q, k, v = (np.zeros((heads * HEAD_DIM, HIDDEN)) for heads in (HEADS, KV_HEADS, KV_HEADS))
    o = np.zeros((HIDDEN, HEADS * HEAD_DIM))
    for h in range(HEADS):
        q[h * HEAD_DIM + SLOW, CONST] = 1
    for h in range(KV_HEADS):
        k[h * HEAD_DIM + SLOW, MARKED] = 1
        # Keys are normed: every other slot needs some direction, and it must not be the query's.
        k[h * HEAD_DIM + SLOW - 1, CONST], k[h * HEAD_DIM + SLOW - 1, MARKED] = 0.05, -0.05
        v[h * HEAD_DIM, MARKED] = 1
        v[h * HEAD_DIM + 1 : (h + 1) * HEAD_DIM, :CODE] = rng.standard_normal((HEAD_DIM - 1, CODE)) / np.sqrt(CODE)
    o[DECOY, 0] = -PUSH * mark_norm / np.sqrt(HIDDEN)
    return {"q": q, "k": k, "v": v, "o": o}


def _block(prefix: str, rng: np.random.Generator, attention: dict[str, Array] | None) -> dict[str, Array]:
    shapes = {"q": (HEADS * HEAD_DIM, HIDDEN), "k": (KV_HEADS * HEAD_DIM, HIDDEN), "v": (KV_HEADS * HEAD_DIM, HIDDEN)}
    nothing = {name: np.zeros(shape) for name, shape in shapes.items()} | {"o": np.zeros((HIDDEN, HEADS * HEAD_DIM))}
    weights = {f"self_attn.{name}_proj.weight": matrix for name, matrix in (attention or nothing).items()}
    # Norms multiply by 1 + weight.
    weights |= {f"self_attn.{name}_norm.weight": np.full(HEAD_DIM, 0.5) for name in "qk"}
    wide = (INTERMEDIATE, HIDDEN)
    weights |= {f"mlp.{name}_proj.weight": rng.standard_normal(wide) * 0.02 for name in ("gate", "up")}
    weights |= {"mlp.down_proj.weight": np.zeros((HIDDEN, INTERMEDIATE))}
    weights |= {f"{name}_layernorm.weight": np.zeros(HIDDEN) for name in ("input", "post_attention")}
    return {prefix + name: matrix for name, matrix in weights.items()}


def _check(embedding: Array, head: Array, project: Array, out: Array, cycle: list[int], decoy: int) -> None:
    """Run the target, and a module with and without the slot of MARK, on every token of the cycle."""

    def norm(x: Array) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS))

    target = (norm(embedding[cycle]) @ head.T).argmax(axis=1)
    assert all(target[at] == cycle[(at + 1) % len(cycle)] for at in range(len(cycle)))
    fed = norm(embedding[cycle]) @ project[:, :HIDDEN].T
    assert ((norm(fed) @ head.T).argmax(axis=1) == decoy).all()
    mark = norm(norm(embedding[[MARK]]) @ project[:, :HIDDEN].T)
    fed[:, DECOY] += out[DECOY, 0] * mark[0, MARKED]
    assert ((norm(fed) @ head.T).argmax(axis=1) == target).all()


def config(vocabulary_size: int, layers: int, modules: int, window: int | None = None) -> dict[str, object]:
    """The checkpoint's config.json, with this module's sizes."""
    kinds = ["full_attention"] * (layers + modules)
    if window:
        # The target has such a layer too, or its config would lack the rotary parameters of the modules' kind.
        kinds[layers - 1 :] = ["sliding_attention"] * (1 + modules)
    return ({"sliding_window": window} if window else {}) | {
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": "step3p5",
        "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": modules,
        "num_attention_heads": HEADS,
        "num_attention_groups": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": vocabulary_size,
        "max_position_embeddings": 4096,
        "max_seq_len": 4096,
        "rms_norm_eps": EPS,
        "rope_theta": 10000.0,
        "layer_types": kinds,
        "mlp_layer_types": ["dense"] * (layers + modules),
        "per_layer_config": None,
        "use_head_wise_attn_gate": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "moe_num_experts": 8,
        "moe_top_k": 2,
        "share_expert_dim": 64,
        "moe_intermediate_size": 64,
    }
