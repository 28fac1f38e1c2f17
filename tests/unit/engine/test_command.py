"""Command lines, configurations and environment, word for word."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.api.names import EngineRole
from specdecode.api.owned import owned
from specdecode.engine.command import (
    additional_config,
    command,
    environment,
    flag_words,
    kv_transfer_config,
    merged_args,
    side_channel_ports,
    speculative_config,
)
from specdecode.engine.versions import tables

from .specs import UNPATCHED, spec


def test_plain_decode() -> None:
    assert command(spec(), "decode") == [
        *("vllm", "serve", "org/model"),
        *("--host", "0.0.0.0", "--port", "8000"),
        *("--served-model-name", "org/model"),
        *("--shutdown-timeout", "120"),
        *("--tensor-parallel-size", "1"),
        *("--speculative-config", '{"method":"mtp","num_speculative_tokens":3}'),
        "--kv-transfer-config",
        '{"kv_connector":"NixlConnector","kv_connector_extra_config":{"lookahead_backoff":"auto"},'
        '"kv_load_failure_policy":"fail","kv_role":"kv_consumer"}',
        *("--additional-config", '{"spec_decode_host_copy":"auto"}'),
    ]


def test_everything_set() -> None:
    changes = {
        "model.revision": "main",
        "model.servedName": "glm",
        "engine.args": {"seed": "7", "enable-lora": "", "lora-modules": '["a=/a", "b=/b"]'},
        "engine.cudagraphCaptureSizes": [4, 8, 16],
        "topology.prefill.args": {"seed": "8", "max-model-len": "8k"},
        "topology.prefill.parallelism": {"tensor": 4, "pipeline": 2, "data": 2, "expert": True},
        "topology.prefill.drain": "90.5s",
    }
    words = command(spec(changes), "prefill")
    text = " ".join(words)
    for expected in (
        "--served-model-name glm",
        "--revision main",
        "--shutdown-timeout 91",
        "--tensor-parallel-size 4 --pipeline-parallel-size 2 --data-parallel-size 2 --enable-expert-parallel",
        "--cudagraph-capture-sizes 4 8 16",
        '"kv_role":"kv_producer"',
    ):
        assert expected in text
    assert words[-8:] == ["--enable-lora", "--lora-modules", "a=/a", "b=/b", "--max-model-len", "8k", "--seed", "8"]
    assert "kv_load_failure_policy" not in text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", ["--x"]),
        ("1", ["--x", "1"]),
        ("-1", ["--x=-1"]),
        ('["a", "b"]', ["--x", "a", "b"]),
        ('[1, {"k": 2}]', ["--x", "1", '{"k": 2}']),
        ("[]", ["--x", "[]"]),
        ("[not json", ["--x", "[not json"]),
        ('{"a": [1]}', ["--x", '{"a": [1]}']),
    ],
)
def test_flag_words(value: str, words: list[str]) -> None:
    assert flag_words("x", value) == words


def test_flags_that_take_an_array_otherwise() -> None:
    assert flag_words("middleware", '["a.b", "c.d"]') == ["--middleware", "a.b", "--middleware", "c.d"]
    assert flag_words("allowed-origins", '["*"]') == ["--allowed-origins", '["*"]']


@pytest.mark.parametrize(
    ("role_args", "merged"),
    [
        ({"enable-prefix-caching": ""}, {"enable-prefix-caching": ""}),
        ({"no-enable-prefix-caching": ""}, {"no-enable-prefix-caching": ""}),
        ({"seed": "1"}, {"no-enable-prefix-caching": "", "seed": "1"}),
    ],
)
def test_a_role_overrides_a_negated_flag(role_args: dict[str, str], merged: dict[str, str]) -> None:
    changed = spec({"engine.args": {"no-enable-prefix-caching": ""}, "topology.decode.args": role_args})
    assert merged_args(changed, "decode") == merged
    assert merged_args(changed, "prefill") == {"no-enable-prefix-caching": ""}


def test_schedule_is_decodes_alone() -> None:
    changed = spec({"speculation.depthByBatch": [{"upTo": 16, "depth": 3}, {"upTo": 64, "depth": 2}]})
    assert speculative_config(changed, "decode")["num_speculative_tokens_per_batch_size"] == [[1, 16, 3], [17, 64, 2]]
    assert speculative_config(changed, "prefill") == {"method": "mtp", "num_speculative_tokens": 3}


@pytest.mark.parametrize(("sharing", "value"), [("Auto", None), ("Enabled", True), ("Disabled", False)])
def test_top_k_sharing(sharing: str, value: bool | None) -> None:
    for role in ("prefill", "decode"):
        config = speculative_config(spec({"speculation.topKSharing": sharing}), role)
        assert config.get("index_share_for_mtp_iteration") is value


@pytest.mark.parametrize(
    ("image", "backoff", "extra"),
    [
        ("v:0.33.0-specdecode", "Auto", {"lookahead_backoff": "auto"}),
        ("v:0.33.0-specdecode", "Upstream", {"lookahead_backoff": "upstream"}),
        ("v:0.33.0-specdecode", "Disabled", {"lookahead_backoff": "off"}),
        (UNPATCHED, "Auto", None),
        (UNPATCHED, "Disabled", None),
    ],
)
def test_backoff_is_the_same_for_both_roles(image: str, backoff: str, extra: dict[str, str] | None) -> None:
    changed = spec({"engine.image": image, "speculation.lookaheadBackoff": backoff})
    for role in ("prefill", "decode"):
        config = kv_transfer_config(changed, role)
        assert config is not None
        assert config.get("kv_connector_extra_config") == extra


def test_transfer_on_a_cpu_by_push() -> None:
    changes = {
        "engine.device": "Cpu",
        "engine.image": UNPATCHED,
        "topology.kvTransfer": {
            "connector": "NixlPush",
            "loadFailurePolicy": "Recompute",
            "extraConfig": {"backends": ["UCX"]},
        },
    }
    assert kv_transfer_config(spec(changes), "decode") == {
        "kv_connector": "NixlPushConnector",
        "kv_role": "kv_consumer",
        "kv_load_failure_policy": "recompute",
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"backends": ["UCX"]},
    }


def test_aggregated_serving_hands_nothing_over() -> None:
    changed = spec({"topology.prefill": None})
    assert kv_transfer_config(changed, "decode") is None
    assert "--kv-transfer-config" not in command(changed, "decode")
    assert not any("NIXL" in variable["name"] for variable in environment(changed, "decode"))
    assert list(side_channel_ports(changed, "decode")) == []


@pytest.mark.parametrize(("mode", "value"), [("Auto", "auto"), ("Always", "always"), ("Never", "never")])
def test_host_copy(mode: str, value: str) -> None:
    assert additional_config(spec({"speculation.hostCopy": mode})) == {"spec_decode_host_copy": value}
    assert additional_config(spec({"speculation.hostCopy": mode, "engine.image": UNPATCHED})) == {}


def test_model_on_a_volume() -> None:
    volume = {"model.source": {"volume": {"claimName": "weights", "path": "/glm/v1/"}}, "model.revision": "main"}
    words = command(spec(volume), "decode")
    assert words[2] == "/models/glm/v1"
    assert "--revision" not in words
    names = {v["name"]: v.get("value") for v in environment(spec(volume), "decode")}
    assert names["HF_HUB_OFFLINE"] == names["TRANSFORMERS_OFFLINE"] == "1"
    root = spec({"model.source": {"volume": {"claimName": "weights"}}})
    assert command(root, "decode")[2] == "/models"
    assert "HF_HUB_OFFLINE" not in {v["name"] for v in environment(spec(), "decode")}


def _by_name(changes: dict[str, Any], role: EngineRole) -> dict[str, dict[str, Any]]:
    found = environment(spec(changes), role)
    assert len({variable["name"] for variable in found}) == len(found)
    return {variable["name"]: variable for variable in found}


def test_environment() -> None:
    changes = {
        "model.source": {"huggingFace": {"tokenSecretRef": {"name": "hub", "key": "token"}}},
        "engine.apiKeySecretRef": {"name": "keys", "key": "engine"},
        "engine.env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}, {"name": "HOME", "value": "/h"}],
        "topology.decode.env": [{"name": "B", "value": ""}, {"name": "VLLM_API_KEY", "value": "mine"}],
    }
    decode = _by_name(changes, "decode")
    assert decode["A"] == {"name": "A", "value": "1"}
    assert decode["B"] == {"name": "B", "value": ""}
    assert decode["HOME"] == {"name": "HOME", "value": "/h"}
    assert decode["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert decode["VLLM_API_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "engine"}}
    assert decode["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert _by_name(changes, "prefill")["B"] == {"name": "B", "value": "1"}


def test_side_channel_ports_by_data_parallel_engine() -> None:
    assert list(side_channel_ports(spec({"topology.decode.parallelism": {"data": 3}}), "decode")) == [5600, 5601, 5602]
    assert list(side_channel_ports(spec(), "prefill")) == [5600]


def test_configurations_are_json_that_vllm_can_read() -> None:
    words = command(spec(), "decode")
    for flag in ("--speculative-config", "--kv-transfer-config", "--additional-config"):
        assert isinstance(json.loads(words[words.index(flag) + 1]), dict)


_FREE = sorted(flag for flag in tables()[-1].flags if not owned(flag))
_ARGS = st.dictionaries(st.sampled_from(_FREE), st.sampled_from(["", "1", "-1", "a b", '["x"]', "{}"]), max_size=6)


@settings(max_examples=60)
@given(_ARGS, _ARGS)
def test_no_flag_is_written_twice(both: dict[str, str], decode: dict[str, str]) -> None:
    words = command(spec({"engine.args": both, "topology.decode.args": decode}), "decode")
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    assert len(set(flags)) == len(flags)
    assert {f"--{flag}" for flag in both | decode} <= set(flags)
    assert words == command(spec({"engine.args": both, "topology.decode.args": decode}), "decode")
