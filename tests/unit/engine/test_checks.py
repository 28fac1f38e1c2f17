"""Every check: what it refuses, what it warns of, and what it lets pass."""

from __future__ import annotations

from typing import Any

import pytest

from specdecode.engine.checks import check, number

from .specs import UNPATCHED, spec

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}),
    ("version 0.32", {"engine.image": "v:0.32.0"}),
    ("enough tokens", {"engine.args": {"max-num-batched-tokens": "4"}}),
    (
        "LoRA with room",
        {"engine.args": {"enable-lora": "", "max-num-seqs": "16", "max-num-batched-tokens": "64"}},
    ),
    ("small blocks", {"engine.args": {"block-size": "1", "no-enable-prefix-caching": ""}}),
    ("capture sizes", {"engine.args": {"compilation-config": '{"cudagraph_capture_sizes": [1, 4]}'}}),
    (
        "expandable segments, aggregated",
        {
            "topology.prefill": None,
            "engine.env": [{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "expandable_segments:True"}],
        },
    ),
    (
        "expandable segments with its own allocator",
        {
            "engine.args": {"enable-cumem-allocator": ""},
            "engine.env": [{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "expandable_segments:True"}],
        },
    ),
    ("pipeline on prefill", {"topology.prefill.parallelism": {"pipeline": 2}}),
    (
        "decode context parallelism",
        {"topology.decode.parallelism": {"tensor": 4}, "topology.decode.args": {"decode-context-parallel-size": "4"}},
    ),
    ("auto is unset", {"topology.prefill.args": {"dtype": "auto"}}),
    ("upstream's backoff unpatched", {"engine.image": UNPATCHED, "speculation.lookaheadBackoff": "Upstream"}),
    ("GPUs that agree", {"topology.decode.resources": {"limits": {"nvidia.com/gpu": 1}}}),
    (
        "a wrapper",
        {
            "topology.decode.podTemplate": {
                "spec": {
                    "containers": [
                        {
                            "name": "vllm",
                            "command": ["numactl", "--membind=0", "vllm", "serve"],
                            "args": ["--seed", "1"],
                        },
                        {"name": "sidecar", "image": "x", "args": ["--port", "1", "--host", "h"]},
                    ]
                }
            }
        },
    ),
    ("a level instead of an object", {"engine.args": {"compilation-config": "3"}}),
    ("always copy, patched", {"speculation.hostCopy": "Always"}),
]

BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("typo", {"engine.args": {"max-model-length": "1"}}, "spec.engine.args.max-model-length", "max-model-len?"),
    ("a switch with a value", {"engine.args": {"enable-lora": "true"}}, "spec.engine.args.enable-lora", 'write ""'),
    ("a value that is missing", {"engine.args": {"seed": ""}}, "spec.engine.args.seed", "takes a value"),
    (
        "an owned switch the other way round",
        {"engine.args": {"disable-expert-parallel": ""}},
        "spec.engine.args.disable-expert-parallel",
        "parallelism.expert",
    ),
    ("log statistics", {"engine.args": {"disable-log-stats": ""}}, "spec.engine.args.disable-log-stats", "acceptance"),
    ("TLS", {"topology.decode.args": {"ssl-keyfile": "/k"}}, "spec.topology.decode.args.ssl-keyfile", "plain HTTP"),
    ("token in the spec", {"engine.args": {"hf-token": "x"}}, "spec.engine.args.hf-token", "tokenSecretRef"),
    ("headless", {"engine.args": {"headless": ""}}, "spec.engine.args.headless", "nobody"),
    (
        "fast prefill",
        {"engine.args": {"kv-sharing-fast-prefill": ""}},
        "spec.engine.args.kv-sharing-fast-prefill",
        "MTP",
    ),
    (
        "no room for the drafts",
        {"engine.args": {"max-num-batched-tokens": "3"}},
        "spec.engine.args.max-num-batched-tokens",
        "more than 3",
    ),
    (
        "fewer tokens than sequences",
        {"engine.args": {"max-num-seqs": "1K"}, "topology.decode.args": {"max-num-batched-tokens": "1k"}},
        "spec.topology.decode.args.max-num-batched-tokens",
        "max-num-seqs (1024)",
    ),
    (
        "LoRA",
        {"engine.args": {"enable-lora": "", "max-num-seqs": "16", "max-num-batched-tokens": "63"}},
        "spec.engine.args.max-num-batched-tokens",
        "64 or more",
    ),
    (
        "capture sizes",
        {"engine.args": {"compilation-config": '{"cudagraph_capture_sizes": [1, 2]}'}},
        "spec.engine.args.compilation-config",
        "depth + 1 = 4",
    ),
    (
        "capture sizes twice",
        {
            "engine.cudagraphCaptureSizes": [4],
            "engine.args": {"compilation-config": '{"cudagraph_capture_sizes": [4]}'},
        },
        "spec.engine.args.compilation-config",
        "keep one",
    ),
    ("broken JSON", {"engine.args": {"compilation-config": "{"}}, "spec.engine.args.compilation-config", "no JSON"),
    (
        "owned variable",
        {"engine.env": [{"name": "VLLM_API_KEY", "value": "x"}]},
        "spec.engine.env[0].name",
        "apiKeySecretRef",
    ),
    (
        "token twice",
        {
            "model.source": {"huggingFace": {"tokenSecretRef": {"name": "s", "key": "k"}}},
            "topology.decode.env": [{"name": "HF_TOKEN", "value": "x"}],
        },
        "spec.topology.decode.env[0].name",
        "keep one",
    ),
    (
        "expandable segments",
        {"topology.decode.env": [{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "expandable_segments:True"}]},
        "spec.topology.decode: env PYTORCH_CUDA_ALLOC_CONF",
        "enable-cumem-allocator",
    ),
    (
        "pipeline on decode",
        {"topology.decode.parallelism": {"pipeline": 2}},
        "spec.topology.decode.parallelism.pipeline",
        "write 1",
    ),
    (
        "prefill context on decode",
        {"topology.decode.args": {"prefill-context-parallel-size": "2"}},
        "spec.topology.decode.args.prefill-context-parallel-size",
        "only prefill",
    ),
    (
        "odd decode context",
        {"topology.decode.parallelism": {"tensor": 4}, "topology.decode.args": {"decode-context-parallel-size": "2"}},
        "spec.topology.decode.args.decode-context-parallel-size",
        "1 or 4",
    ),
    (
        "decode context with push",
        {
            "topology.kvTransfer.connector": "NixlPush",
            "topology.decode.parallelism": {"tensor": 4},
            "topology.decode.args": {"decode-context-parallel-size": "4"},
        },
        "spec.topology.decode.args.decode-context-parallel-size",
        "NixlPush",
    ),
    (
        "KV of two types",
        {"topology.decode.args": {"kv-cache-dtype": "fp8"}},
        "spec.topology: kv-cache-dtype",
        "agree",
    ),
    (
        "the backoff's own key",
        {"topology.kvTransfer.extraConfig": {"lookahead_backoff": "off"}},
        "spec.topology.kvTransfer.extraConfig.lookahead_backoff",
        "lookaheadBackoff",
    ),
    (
        "CPU tuning",
        {"engine.device": "Cpu", "speculation.topKSharing": "Enabled"},
        "spec.speculation.topKSharing",
        "Auto",
    ),
    (
        "never copy, unpatched",
        {"engine.image": UNPATCHED, "speculation.hostCopy": "Never"},
        "spec.speculation.hostCopy",
        "patched image",
    ),
    (
        "out of the volume",
        {"model.source": {"volume": {"claimName": "c", "path": "../x"}}},
        "spec.model.source.volume.path",
        "..",
    ),
    (
        "GPUs that disagree",
        {
            "topology.decode.resources": {"limits": {"nvidia.com/gpu": "8"}},
            "topology.decode.parallelism": {"tensor": 4},
        },
        "spec.topology.decode.resources.limits.nvidia.com/gpu",
        "needs 4",
    ),
    (
        "GPUs of the template",
        {
            "topology.decode.podTemplate": {
                "spec": {"containers": [{"name": "vllm", "resources": {"requests": {"nvidia.com/gpu": 2}}}]}
            }
        },
        "spec.topology.decode.podTemplate: resources of container vllm.requests.nvidia.com/gpu",
        "needs 1",
    ),
    (
        "GPUs on a CPU",
        {"engine.device": "Cpu", "topology.decode.resources": {"limits": {"nvidia.com/gpu": "1"}}},
        "spec.topology.decode.resources.limits.nvidia.com/gpu",
        "Cpu",
    ),
    (
        "grace under drain",
        {"topology.decode.podTemplate": {"spec": {"terminationGracePeriodSeconds": 125}}},
        "spec.topology.decode.podTemplate.spec.terminationGracePeriodSeconds",
        "120s",
    ),
]

WARNED: list[tuple[str, dict[str, Any], str, str]] = [
    ("no version", {"engine.image": "v:latest"}, "spec.engine.image", "UnknownEngineVersion"),
    ("a later version", {"engine.version": "0.40.0"}, "spec.engine.version", "UnknownEngineVersion"),
    (
        "blocks under the depth",
        {"engine.args": {"block-size": "2"}},
        "spec.engine.args.block-size",
        "BlockSizeUnderDepth",
    ),
    (
        "extra without transfer",
        {"topology.prefill": None, "topology.kvTransfer.extraConfig": {"a": 1}},
        "spec.topology.kvTransfer.extraConfig",
        "NoEffect",
    ),
    (
        "unchecked handshake",
        {"topology.kvTransfer.extraConfig": {"enforce_handshake_compat": False}},
        "spec.topology.kvTransfer.extraConfig.enforce_handshake_compat",
        "HandshakeUnchecked",
    ),
    ("short drain", {"topology.prefill.drain": "29s"}, "spec.topology.prefill.drain", "DrainTooShort"),
    ("never copy", {"speculation.hostCopy": "Never"}, "spec.speculation.hostCopy", "StructuredOutputRefused"),
    (
        "always copy, unpatched",
        {"engine.image": UNPATCHED, "speculation.hostCopy": "Always"},
        "spec.speculation.hostCopy",
        "TuningNotHonoured",
    ),
    (
        "sharing at depth 1",
        {"speculation.depth": 1, "speculation.topKSharing": "Enabled"},
        "spec.speculation.topKSharing",
        "NoEffect",
    ),
    (
        "backoff without transfer",
        {"topology.prefill": None, "speculation.lookaheadBackoff": "Upstream"},
        "spec.speculation.lookaheadBackoff",
        "NoEffect",
    ),
    (
        "backoff off",
        {"speculation.lookaheadBackoff": "Disabled"},
        "spec.speculation.lookaheadBackoff",
        "DrafterPolluted",
    ),
    (
        "backoff off, unpatched",
        {"engine.image": UNPATCHED, "speculation.lookaheadBackoff": "Disabled"},
        "spec.speculation.lookaheadBackoff",
        "TuningNotHonoured",
    ),
    (
        "several modules, unpatched",
        {"engine.image": UNPATCHED, "model.name": "stepfun-ai/Step-3.5-Flash", "speculation.depth": 2},
        "spec.speculation.depth",
        "DrafterPolluted",
    ),
    (
        "processors",
        {"engine.args": {"logits-processors": "a.b"}},
        "spec.engine.args.logits-processors",
        "LogitsProcessors",
    ),
    (
        "revision of a volume",
        {"model.revision": "main", "model.source": {"volume": {"claimName": "c"}}},
        "spec.model.revision",
        "NoEffect",
    ),
]


@pytest.mark.parametrize(("name", "changes"), GOOD, ids=[case[0] for case in GOOD])
def test_nothing_is_wrong(name: str, changes: dict[str, Any]) -> None:
    assert check(spec(changes)) == []


@pytest.mark.parametrize(("name", "changes", "path", "remedy"), BAD, ids=[case[0] for case in BAD])
def test_refused(name: str, changes: dict[str, Any], path: str, remedy: str) -> None:
    errors = [fault for fault in check(spec(changes)) if fault.severity == "error"]
    assert {fault.path for fault in errors} == {path}
    assert all(remedy in fault.message and fault.reason == "InvalidSpec" for fault in errors)


@pytest.mark.parametrize(("name", "changes", "path", "reason"), WARNED, ids=[case[0] for case in WARNED])
def test_warned_of(name: str, changes: dict[str, Any], path: str, reason: str) -> None:
    found = check(spec(changes))
    assert {(fault.path, fault.reason, fault.severity) for fault in found} == {(path, reason, "warning")}


def test_errors_come_first() -> None:
    changes = {"engine.image": "v:latest", "topology.decode.parallelism": {"pipeline": 2}}
    assert [fault.severity for fault in check(spec(changes))] == ["error", "warning"]


def test_an_unknown_version_refuses_no_flag() -> None:
    found = check(spec({"engine.image": "v:latest", "engine.args": {"a-flag-of-tomorrow": "1"}}))
    assert [fault.reason for fault in found] == ["UnknownEngineVersion"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("8k", 8000), ("8K", 8192), ("25.6k", 25600), ("2M", 2097152), ("x", None), ("", None)],
)
def test_number(text: str, value: int | None) -> None:
    assert number(text) == value
