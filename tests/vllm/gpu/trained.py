"""A small multi-module MTP model that is really trained, on the Python sources of this interpreter.

Same shape as the built one (Step-3.5, dense, full attention). Module m at slot p sees the hidden state of module
m - 1 (of the target, for m = 0) at p and the token at p + m + 1, and predicts the token at p + m + 2: what vLLM's
multi-module drafter feeds it. A few minutes on a GPU; nothing of it is kept.

``python -m tests.vllm.gpu.trained --out FOLDER``
"""

from __future__ import annotations

import argparse
import json
import random
import sysconfig
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.vllm.gpu.multi_module import config
from tests.vllm.tiny_mtp import write_json, write_safetensors, write_tokenizer

HEAD_DIM = 64
EPS = 1e-5
THETA = 10000.0
HELD_OUT = 10  # one file in so many is kept for prompts
SEPARATOR = 0
AGREEMENT = "agreement.json"


@dataclass(frozen=True)
class Size:
    """Dimensions of the model, and how it is trained."""

    hidden: int = 384
    intermediate: int = 1024
    layers: int = 6
    modules: int = 5
    heads: int = 6
    kv_heads: int = 2
    window: int = 512
    """Tokens of a training sequence."""
    batch: int = 48
    rate: float = 3e-3


@dataclass(frozen=True)
class TrainedModel:
    """A checkpoint on disk and prompts of text that it wasn't trained on."""

    path: Path
    texts: tuple[tuple[int, ...], ...]
    agreement: tuple[float, ...]
    """By module: how often it predicts what the target predicts, on text that neither has seen."""

    def prompts(self, count: int, seed: int) -> list[list[int]]:
        """Prompts of 130 to 420 tokens."""
        pick = random.Random(seed)
        prompts = []
        for _ in range(count):
            length = pick.randrange(130, 420)
            text = pick.choice(self.texts)
            at = pick.randrange(len(text) - length)
            prompts.append(list(text[at : at + length]))
        return prompts


def sources() -> list[str]:
    """The standard library's modules, in an order that doesn't change."""
    folder = Path(sysconfig.get_path("stdlib"))
    texts = []
    for path in sorted(folder.rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts or "tests" in path.parts:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if 2000 < len(text) < 300_000 and text.isascii():
            texts.append(text)
    return texts


def encode(texts: list[str], folder: Path) -> list[list[int]]:
    """Token ids of each text, by the tokenizer in the folder."""
    tokenizers: Any = import_module("tokenizers")  # only the engine's own environment has it
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [encoded.ids for encoded in tokenizer.encode_batch(texts)]


@dataclass(frozen=True)
class Network:
    """Target and modules: their weights by the checkpoint's names, and what is computed with them."""

    torch: Any
    size: Size
    weights: dict[str, Any]

    def norm(self, x: Any, name: str) -> Any:
        weight = self.weights[f"{name}.weight"]
        normed = self.torch.nn.functional.rms_norm(x.float(), (x.shape[-1],), 1 + weight.float(), EPS)
        return normed.to(x.dtype)

    def linear(self, x: Any, name: str) -> Any:
        return self.torch.nn.functional.linear(x, self.weights[f"{name}.weight"])

    def embed(self, tokens: Any) -> Any:
        return self.weights["model.embed_tokens.weight"][tokens]

    def attention(self, x: Any, prefix: str, turn: tuple[Any, Any]) -> Any:
        rows, length, _ = x.shape
        cosine, sine = turn

        def heads(name: str) -> Any:
            return self.linear(x, prefix + name).view(rows, length, -1, HEAD_DIM).transpose(1, 2)

        def turned(name: str) -> Any:
            first, second = self.norm(heads(f"{name}_proj"), f"{prefix}{name}_norm").chunk(2, -1)
            both = (first * cosine - second * sine, second * cosine + first * sine)
            return self.torch.cat(both, -1).to(x.dtype)

        groups = self.size.heads // self.size.kv_heads
        key, value = (y.repeat_interleave(groups, 1) for y in (turned("k"), heads("v_proj")))
        mixed = self.torch.nn.functional.scaled_dot_product_attention(turned("q"), key, value, is_causal=True)
        return self.linear(mixed.transpose(1, 2).reshape(rows, length, -1), f"{prefix}o_proj")

    def block(self, x: Any, prefix: str, turn: tuple[Any, Any]) -> Any:
        x = x + self.attention(self.norm(x, f"{prefix}input_layernorm"), f"{prefix}self_attn.", turn)
        y = self.norm(x, f"{prefix}post_attention_layernorm")
        gate = self.torch.nn.functional.silu(self.linear(y, f"{prefix}mlp.gate_proj"))
        return x + self.linear(gate * self.linear(y, f"{prefix}mlp.up_proj"), f"{prefix}mlp.down_proj")

    def logits(self, tokens: Any) -> list[Any]:
        """Of the target, then of each module, for the first ``window`` slots."""
        window, layers = self.size.window, self.size.layers
        turn = _turns(self.torch, window, tokens.device)
        hidden = self.embed(tokens[:, :window])
        for layer in range(layers):
            hidden = self.block(hidden, f"model.layers.{layer}.", turn)
        made = [self.linear(self.norm(hidden, "model.norm"), "lm_head")]
        for ahead in range(1, self.size.modules + 1):
            prefix = f"model.layers.{layers + ahead - 1}."
            embedded = self.norm(self.embed(tokens[:, ahead : window + ahead]), f"{prefix}enorm")
            fed = self.torch.cat((embedded, self.norm(hidden, f"{prefix}hnorm")), -1)
            hidden = self.block(self.linear(fed, f"{prefix}eh_proj"), prefix, turn)
            made.append(self.linear(self.norm(hidden, f"{prefix}shared_head.norm"), "lm_head"))
        return made


def _turns(torch: Any, length: int, device: Any) -> tuple[Any, Any]:
    frequencies = THETA ** -(torch.arange(0, HEAD_DIM, 2, device=device) / HEAD_DIM)
    angles = torch.arange(length, device=device)[:, None] * frequencies
    return angles.cos(), angles.sin()


def network(torch: Any, size: Size, vocabulary: int, device: str) -> Network:
    """With fresh weights."""
    h, inner = size.hidden, size.intermediate
    block = {
        "self_attn.q_proj": (size.heads * HEAD_DIM, h),
        "self_attn.k_proj": (size.kv_heads * HEAD_DIM, h),
        "self_attn.v_proj": (size.kv_heads * HEAD_DIM, h),
        "self_attn.o_proj": (h, size.heads * HEAD_DIM),
        "self_attn.q_norm": (HEAD_DIM,),
        "self_attn.k_norm": (HEAD_DIM,),
        "mlp.gate_proj": (inner, h),
        "mlp.up_proj": (inner, h),
        "mlp.down_proj": (h, inner),
        "input_layernorm": (h,),
        "post_attention_layernorm": (h,),
    }
    module = block | {"enorm": (h,), "hnorm": (h,), "eh_proj": (h, 2 * h), "shared_head.norm": (h,)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (vocabulary, h), "lm_head": (vocabulary, h)}
    shapes["model.norm"] = (h,)
    for layer in range(size.layers + size.modules):
        parts = block if layer < size.layers else module
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}

    def fresh(name: str, shape: tuple[int, ...]) -> Any:
        # Norms multiply by 1 + weight; what is added to the residual stream starts small.
        scale = 0.0 if len(shape) == 1 else 0.3 if name.endswith(("o_proj", "down_proj")) else 1.0
        spread = 0.5 if name == "model.embed_tokens" else scale * shape[-1] ** -0.5
        return (torch.randn(shape, device=device) * spread).requires_grad_()

    return Network(torch, size, {f"{name}.weight": fresh(name, shape) for name, shape in shapes.items()})


def train(folder: Path, seconds: float, size: Size | None = None, seed: int = 0) -> TrainedModel:
    """Train for a time, and write the checkpoint.

    Args:
        folder: made if need be.
        seconds: of training.
        size: of the model; by default some 25 million parameters.
        seed: of weights and order.
    """
    torch: Any = import_module("torch")
    size = size or Size()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = len(write_tokenizer(folder))
    texts = encode(sources(), folder)
    held = texts[::HELD_OUT]
    kept = [token for at, text in enumerate(texts) if at % HELD_OUT for token in (*text, SEPARATOR)]
    data = torch.tensor(kept, device=device)
    net = network(torch, size, vocabulary, device)
    optimizer = torch.optim.AdamW(net.weights.values(), lr=size.rate, betas=(0.9, 0.95), weight_decay=0.05)
    reach = torch.arange(size.window + size.modules + 1, device=device)
    weights = [1.0] + [0.5] * size.modules
    started, steps = time.monotonic(), 0
    while (spent := time.monotonic() - started) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = size.rate * min(1.0, (steps + 1) / 100) * (1 - 0.95 * spent / seconds)
        starts = torch.randint(0, len(data) - len(reach), (size.batch,), device=device)
        tokens = data[starts[:, None] + reach]
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = net.logits(tokens)
        loss = sum(
            weight
            * torch.nn.functional.cross_entropy(
                made.float().flatten(0, 1), tokens[:, ahead : size.window + ahead].flatten()
            )
            for ahead, (weight, made) in enumerate(zip(weights, logits, strict=True), start=1)
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.weights.values(), 1.0)
        optimizer.step()
        steps += 1
    agreement = _agreement(net, held, device)
    _write(folder, net, vocabulary)
    write_json(folder / AGREEMENT, agreement)
    return TrainedModel(folder, _long_enough(held), agreement)


def load(folder: Path) -> TrainedModel:
    """What ``train`` left in the folder, on this interpreter."""
    held = encode(sources()[::HELD_OUT], folder)
    return TrainedModel(folder, _long_enough(held), tuple(json.loads((folder / AGREEMENT).read_text())))


def _long_enough(texts: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(text) for text in texts if len(text) > 900)


def _agreement(net: Network, held: list[list[int]], device: str) -> tuple[float, ...]:
    torch, size = net.torch, net.size
    reach = size.window + size.modules + 1
    rows = [text[at : at + reach] for text in held for at in range(0, len(text) - reach, reach)][:64]
    same = np.zeros(size.modules)
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        for at in range(0, len(rows), 8):
            target, *modules = (made.argmax(-1) for made in net.logits(torch.tensor(rows[at : at + 8], device=device)))
            for ahead, made in enumerate(modules, start=1):
                same[ahead - 1] += (made[:, :-ahead] == target[:, ahead:]).float().mean(-1).sum().item()
    return tuple(float(x) for x in same / len(rows))


def _write(folder: Path, net: Network, vocabulary: int) -> None:
    size = net.size
    weights = {name: value.detach().float().cpu().numpy() for name, value in net.weights.items()}
    for module in range(size.layers, size.layers + size.modules):
        weights[f"model.layers.{module}.shared_head.head.weight"] = weights["lm_head.weight"]
    write_safetensors(folder / "model.safetensors", weights)
    shape = {
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_nextn_predict_layers": size.modules,
        "num_attention_heads": size.heads,
        "num_attention_groups": size.kv_heads,
    }
    write_json(folder / "config.json", config(vocabulary, size.layers, size.modules) | shape)
    write_json(folder / "generation_config.json", {"eos_token_id": 0, "pad_token_id": 0, "do_sample": False})


def main() -> None:
    """Command line: train, and say how often the modules agree with the target."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=150.0, help="of training")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    options = parser.parse_args()
    model = train(options.out, options.seconds)
    print("drafts that agree with the target, by module:", [round(x, 3) for x in model.agreement], flush=True)


if __name__ == "__main__":
    main()
