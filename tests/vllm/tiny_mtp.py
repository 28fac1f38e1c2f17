"""A tiny checkpoint with one MTP layer whose outputs are known and whose acceptance can be dialled.

Architecture MiMo (Qwen2 with an MTP layer), random codes, under 1 MB; numpy only.

Target: its attention and MLP add nothing, so the hidden state is the embedding of the current token, and
the head maps each token to its successor on one long cycle. Greedy decoding walks that cycle for ever.

Drafter: the MTP layer passes the fed token's code on, so it predicts the same successor. A flag dimension
of the embedding marks a share of the cycle's tokens; for those a push makes a decoy token win, and the
draft is wrong. With a share of ``1 - accept`` flagged, a position that follows accepted ones is accepted
with probability ``accept``.

``needs_kv``: every token gets a constant push towards the decoy, which the MTP layer cancels through
attention over its own KV cache: queries and keys are zero, so attention is uniform, and the value is a
constant; its output is the push times the valid share of the KV. With foreign or empty KV in the prompt's
slots the decoy wins, acceptance falls to 0, and the answers stay exact.
"""

from __future__ import annotations

import json
import random
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

HIDDEN = 64
HEADS = 2
LAYERS = 2
CODE = HIDDEN - 2  # dimensions of a token's code, then the flag and a constant
FLAG, CONST = HIDDEN - 2, HIDDEN - 1
F = 0.5  # size of flag and constant, where a code has norm 1
PUSH = 3.0  # towards the decoy, in norms of a code
SHARPNESS = 8.0
STRATUM = 20  # tokens of the cycle in which the share of flagged ones is kept
EPS = 1e-6
SPECIAL = ("<|endoftext|>", "<|user|>", "<|assistant|>")
LETTERS = "acdefhilmnoprstu"


@dataclass(frozen=True)
class Prediction:
    """What one depth should show: shares of drafts, and 1 + their sum."""

    per_position: tuple[float, ...]
    draft_acceptance: float
    mean_length: float


@dataclass(frozen=True)
class TinyModel:
    """A checkpoint on disk: its folder, the cycle of token ids, and which of them the drafter gets wrong."""

    path: Path
    cycle: tuple[int, ...]
    wrong: tuple[bool, ...]

    def successors(self, token: int, count: int) -> list[int]:
        """The tokens that greedy decoding gives after ``token``."""
        at = self.cycle.index(token)
        return [self.cycle[(at + 1 + i) % len(self.cycle)] for i in range(count)]

    def predict(self, depth: int) -> Prediction:
        """Acceptance at this depth, by the renewal walk over the whole cycle.

        A step from token i drafts the successors of i, i + 1, ...; it accepts up to the first wrong one and
        goes on behind the token that replaces it.
        """
        accepted = [0] * depth
        steps = at = 0
        while at < 50 * len(self.cycle):
            run = 0
            while run < depth and not self.wrong[(at + run) % len(self.cycle)]:
                accepted[run] += 1
                run += 1
            steps += 1
            at += run + 1
        return Prediction(
            tuple(count / steps for count in accepted), sum(accepted) / (steps * depth), 1 + sum(accepted) / steps
        )

    def prompts(self, count: int, length: int, seed: int) -> list[list[int]]:
        """Prompts of tokens of the cycle, in no order that the model was built for."""
        pick = random.Random(seed)
        return [[pick.choice(self.cycle) for _ in range(length)] for _ in range(count)]


def build(folder: Path, accept: float = 1.0, needs_kv: bool = False, seed: int = 0) -> TinyModel:
    """Write config, tokenizer and weights into ``folder``.

    Args:
        folder: made if need be.
        accept: probability that a draft position is accepted once those before it were.
        needs_kv: drafts are right only with the MTP layer's own KV of the prompt in place.
        seed: of codes, cycle and flags.

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
    flagged = _flags(cycle, accept, pick)

    code = rng.standard_normal((size, CODE))
    code /= np.linalg.norm(code, axis=1, keepdims=True)
    for i in range(size):  # special tokens and raw bytes go on like some token of the cycle
        if i not in cycle and i != decoy:
            code[i] = code[cycle[i % len(cycle)]]
    embedding = np.zeros((size, HIDDEN))
    embedding[:, :CODE], embedding[:, CONST], embedding[:, FLAG] = code, F, -F
    embedding[flagged, FLAG] = F
    head = np.zeros((size, HIDDEN))
    for at, token in enumerate(cycle):
        head[cycle[(at + 1) % len(cycle)], :CODE] = SHARPNESS * code[token]
    head[decoy, :CODE] = SHARPNESS * code[decoy]

    project = _mtp_projection(embedding, code[decoy], needs_kv)
    weights: dict[str, Array] = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": np.ones(HIDDEN),
        "model.mtp_layers.0.input_proj.weight": project,
    }
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"model.mtp_layers.0.{name}.weight"] = np.ones(HIDDEN)
    for layer in range(LAYERS):
        weights |= _block(f"model.layers.{layer}.", rng, None)
    weights |= _block("model.mtp_layers.0.", rng, code[decoy] if needs_kv else None)
    wrong = _check(embedding, head, project, cycle, code[decoy] if needs_kv else None)

    write_safetensors(folder / "model.safetensors", weights)
    write_json(folder / "config.json", _config(size))
    write_json(folder / "generation_config.json", {"eos_token_id": 0, "pad_token_id": 0, "do_sample": False})
    model = TinyModel(folder, tuple(cycle), wrong)
    write_json(folder / "fixture.json", {k: v for k, v in asdict(model).items() if k != "path"})
    return model


def _flags(cycle: list[int], accept: float, pick: random.Random) -> list[int]:
    """Tokens after which the drafter errs, their share kept in every stratum of the cycle."""
    flagged: list[int] = []
    carried = 0.0
    for at in range(0, len(cycle), STRATUM):
        stratum = cycle[at : at + STRATUM]
        wanted = (1 - accept) * len(stratum) + carried
        count = min(len(stratum), max(0, round(wanted)))
        carried = wanted - count
        flagged += pick.sample(stratum, count)
    return flagged


def _gain(embedding: Array) -> float:
    """What a layer norm with unit weights multiplies an embedding by; all have the same norm."""
    return float(1 / np.sqrt((embedding[0] ** 2).mean() + EPS))


def _mtp_projection(embedding: Array, decoy: Array, needs_kv: bool) -> Array:
    """input_proj of the MTP layer, over [normed hidden | normed embedding]: pass the code, push where flagged."""
    gain = _gain(embedding)
    project = np.zeros((HIDDEN, 2 * HIDDEN))
    token = project[:, HIDDEN:]
    token[:] = np.eye(HIDDEN) / gain
    token[FLAG, FLAG] = 0.0
    # flag + constant is 2 F for a flagged token and 0 for another
    token[:CODE, FLAG] = token[:CODE, CONST] = PUSH / (2 * F * gain) * decoy
    if needs_kv:
        token[:CODE, CONST] += PUSH / (F * gain) * decoy
    return project


def _block(prefix: str, rng: np.random.Generator, cancelled: Array | None) -> dict[str, Array]:
    """A decoder layer that adds nothing, or that takes ``PUSH`` times a direction away through attention."""
    square, wide = (HIDDEN, HIDDEN), (2 * HIDDEN, HIDDEN)
    value_bias, out = np.zeros(HIDDEN), np.zeros(square)
    project = {name: rng.standard_normal(square) * 0.02 for name in "qkv"}
    if cancelled is not None:
        project = {name: np.zeros(square) for name in "qkv"}
        value_bias[0] = 1.0
        out[:CODE, 0] = -PUSH * cancelled
    weights = {f"self_attn.{name}_proj.weight": matrix for name, matrix in project.items()}
    weights |= {f"self_attn.{name}_proj.bias": np.zeros(HIDDEN) for name in "qk"}
    weights |= {"self_attn.v_proj.bias": value_bias, "self_attn.o_proj.weight": out}
    weights |= {f"mlp.{name}_proj.weight": rng.standard_normal(wide) * 0.02 for name in ("gate", "up")}
    weights |= {"mlp.down_proj.weight": np.zeros((HIDDEN, 2 * HIDDEN))}
    weights |= {f"{name}_layernorm.weight": np.ones(HIDDEN) for name in ("input", "post_attention")}
    return {prefix + name: matrix for name, matrix in weights.items()}


def _check(
    embedding: Array, head: Array, project: Array, cycle: list[int], cancelled: Array | None
) -> tuple[bool, ...]:
    """Run target and drafter on every token of the cycle; which drafts are wrong."""

    def norm(x: Array) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS))

    target = (norm(embedding[cycle]) @ head.T).argmax(axis=1)
    assert all(target[at] == cycle[(at + 1) % len(cycle)] for at in range(len(cycle)))
    fed = norm(embedding[cycle]) @ project[:, HIDDEN:].T
    if cancelled is not None:
        without_kv = (norm(fed) @ head.T).argmax(axis=1)
        assert not (without_kv == target).any()
        fed[:, :CODE] -= PUSH * cancelled
    drafted = (norm(fed) @ head.T).argmax(axis=1)
    return tuple(bool(wrong) for wrong in drafted != target)


def _byte_alphabet() -> list[str]:
    """The characters that byte-level BPE writes the 256 bytes with (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def write_tokenizer(folder: Path) -> dict[str, int]:
    """Byte-level BPE whose only merges are pairs of letters; returns token to id."""
    pairs = [(a, b) for a in LETTERS for b in LETTERS]
    tokens = [*SPECIAL, *_byte_alphabet(), *(a + b for a, b in pairs)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "added_tokens": [{"id": vocabulary[token], "content": token, **flags} for token in SPECIAL],
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": [f"{a} {b}" for a, b in pairs]},
        },
    )
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 2048,
            "eos_token": SPECIAL[0],
            "pad_token": SPECIAL[0],
            "clean_up_tokenization_spaces": False,
            "chat_template": "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>",
        },
    )
    return vocabulary


def _config(vocabulary_size: int) -> dict[str, Any]:
    return {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",  # AutoConfig knows it offline; vLLM goes by the architecture
        "torch_dtype": "float32",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "num_nextn_predict_layers": 1,
        "vocab_size": vocabulary_size,
        "max_position_embeddings": 2048,
        "rms_norm_eps": EPS,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": True,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }


def write_safetensors(path: Path, weights: dict[str, Array]) -> None:
    """The format: length of the header as u64, the header as JSON, the data in the header's order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, matrix in weights.items():
        raw = np.ascontiguousarray(matrix, dtype="<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(matrix.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
