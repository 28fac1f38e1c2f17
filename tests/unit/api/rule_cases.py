"""One table of objects for every rule of the resource: accepted and refused.

It drives the Python side offline and the CEL side on a real API server.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specdecode.api import checks
from specdecode.api.base import Rule

PLAIN: dict[str, Any] = {
    "apiVersion": "specdecode.dev/v1alpha1",
    "kind": "SpecDecodeDeployment",
    "metadata": {"name": "plain"},
    "spec": {
        "model": {"name": "deepseek-ai/DeepSeek-V3.2"},
        "speculation": {"depth": 3},
        "engine": {"image": "registry.example/vllm:0.33.0-specdecode"},
        "topology": {"prefill": {"replicas": 2}, "decode": {"replicas": 4}},
    },
}
ABSENT = object()
"""As a change: the field goes."""


def changed(changes: Mapping[str, Any], base: Mapping[str, Any] = PLAIN) -> dict[str, Any]:
    """A copy of ``base`` in which each path, such as ``spec.engine.image``, has the value given."""
    out: dict[str, Any] = copy.deepcopy(dict(base))
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = out
        for part in parents:
            node = node.setdefault(part, {})
        if value is ABSENT:
            del node[last]
        else:
            node[last] = copy.deepcopy(value)
    return out


@dataclass(frozen=True)
class Case:
    """Changes to the plain resource that a rule takes, and changes that it refuses."""

    rule: Rule
    accepted: tuple[Mapping[str, Any], ...]
    refused: tuple[Mapping[str, Any], ...]
    path: str
    """Where the fault is, of the objects refused."""
    says: str = ""
    """Part of the message, where it depends on the object; empty: the rule's own."""


def _steps(*weights: int) -> dict[str, Any]:
    return {"spec.rollout.steps": [{"weight": weight} for weight in weights]}


def _ranges(*pairs: tuple[int, int]) -> dict[str, Any]:
    return {"spec.speculation.depthByBatch": [{"upTo": up_to, "depth": depth} for up_to, depth in pairs]}


def _capacity(surge: int | str, unavailable: int | str) -> dict[str, Any]:
    return {"spec.rollout.capacity.decode": {"maxSurge": surge, "maxUnavailable": unavailable}}


def _tensor(prefill: int, decode: int) -> dict[str, Any]:
    return {f"spec.topology.{r}.parallelism.tensor": n for r, n in (("prefill", prefill), ("decode", decode))}


def _data(role: str, size: int) -> dict[str, Any]:
    return {f"spec.topology.{role}.parallelism.data": size}


def _args(**flags: str) -> dict[str, Any]:
    return {"spec.engine.args": {flag.replace("_", "-"): value for flag, value in flags.items()}}


CASES: tuple[Case, ...] = (
    Case(
        checks.NAME,
        accepted=({"metadata.name": "a"}, {"metadata.name": "a" * 40}, {"metadata.name": "glm-5-2"}),
        refused=({"metadata.name": "a" * 41}, {"metadata.name": "glm-5.2"}, {"metadata.name": "5-glm"}),
        path="metadata.name",
    ),
    Case(
        checks.ONE_SOURCE,
        accepted=(
            {"spec.model.source": {"huggingFace": {}}},
            {"spec.model.source": {"volume": {"claimName": "weights"}}},
            {"spec.model.source": {}},
        ),
        refused=({"spec.model.source": {"huggingFace": {}, "volume": {"claimName": "weights"}}},),
        path="spec.model.source",
    ),
    Case(
        checks.METHOD_MTP,
        accepted=({"spec.speculation.method": "mtp"},),
        refused=({"spec.speculation.method": "eagle3"}, {"spec.speculation.method": ""}),
        path="spec.speculation.method",
    ),
    Case(
        checks.DEPTH,
        accepted=({"spec.speculation.depth": 1}, {"spec.speculation.depth": 16}),
        refused=(
            {"spec.speculation.depth": 0},
            {"spec.speculation.depth": 17},
            {"spec.speculation.depth": -3},
        ),
        path="spec.speculation.depth",
    ),
    Case(
        checks.DEPTH_BY_BATCH_BELOW_DEPTH,
        accepted=(_ranges((16, 3), (64, 1)), _ranges()),
        refused=(_ranges((16, 4)), _ranges((16, 3), (64, 16))),
        path="spec.speculation.depthByBatch",
    ),
    Case(
        checks.DEPTH_BY_BATCH_RISES,
        accepted=(_ranges((16, 1), (17, 3)), _ranges((1, 2))),
        refused=(_ranges((16, 3), (16, 2)), _ranges((64, 3), (16, 2)), _ranges((1, 3), (64, 2), (16, 1))),
        path="spec.speculation.depthByBatch",
    ),
    Case(
        checks.DEPTH_BY_BATCH_ALONE,
        accepted=(
            _ranges((16, 3)),
            _ranges() | _data("decode", 2),
            _data("decode", 8) | _data("prefill", 8),
            _ranges((16, 3)) | {"spec.topology.prefill": ABSENT},
        ),
        refused=(
            _ranges((16, 3)) | _data("decode", 2),
            _ranges((16, 3)) | _data("prefill", 2),
            _ranges((16, 3)) | {"spec.topology": {"decode": {"replicas": 1, "parallelism": {"data": 2}}}},
        ),
        path="spec.speculation.depthByBatch",
    ),
    Case(
        checks.CAPTURE_SIZES,
        accepted=({"spec.engine.cudagraphCaptureSizes": [1, 2, 4]}, {"spec.engine.cudagraphCaptureSizes": []}),
        refused=({"spec.engine.cudagraphCaptureSizes": [1, 2, 6]},),
        path="spec.engine.cudagraphCaptureSizes",
    ),
    Case(
        checks.FLAG_NAMES,
        accepted=(_args(max_model_len="8192", no_enable_prefix_caching=""), _args(), _args(x="a" * 4096)),
        refused=(
            {"spec.engine.args": {"--max-model-len": "8192"}},
            {"spec.engine.args": {"max_model_len": "8192"}},
            {"spec.engine.args": {"speculative-config.depth": "2"}},
            {"spec.engine.args": {"O3": ""}},
            {"spec.engine.args": {"a" * 65: ""}},
        ),
        path="spec.engine.args",
    ),
    Case(
        checks.OWNED,
        accepted=(_args(port_like="1", model_impl="auto", data_parallel_rpc_port="1"),),
        refused=(
            _args(port="1"),
            _args(speculative_config="{}"),
            _args(tensor_parallel_size="2", max_model_len="1"),
            _args(tensor_par="2"),
            _args(no_enable_expert_parallel=""),
            _args(config="/a.yaml"),
        ),
        path="spec.engine.args",
        says="the operator sets these flags itself",
    ),
    Case(
        checks.OWNED,
        accepted=({"spec.topology.decode.args": {"max-num-seqs": "256"}},),
        refused=({"spec.topology.decode.args": {"kv-transfer-config": "{}"}},),
        path="spec.topology.decode.args",
        says="kv-transfer-config (instead: topology.kvTransfer)",
    ),
    Case(
        checks.ENV_VALUE_ONCE,
        accepted=(
            {"spec.engine.env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {}}}]},
            {"spec.topology.decode.env": [{"name": "A"}]},
        ),
        refused=({"spec.engine.env": [{"name": "A", "value": "", "valueFrom": {"fieldRef": {}}}]},),
        path="spec.engine.env[0]",
    ),
    Case(
        checks.REPLICAS_KNOWN,
        accepted=(
            {"spec.topology.decode": {"replicas": 64}},
            {"spec.topology.decode": {"maxReplicas": 8}},
            {"spec.topology.prefill": {"maxReplicas": 8}},
        ),
        refused=({"spec.topology.decode": {}},),
        path="spec.topology.decode",
    ),
    Case(
        checks.REPLICAS_BOUNDED,
        accepted=({"spec.topology.decode": {"replicas": 8, "maxReplicas": 8}},),
        refused=({"spec.topology.decode": {"replicas": 9, "maxReplicas": 8}},),
        path="spec.topology.decode.replicas",
    ),
    Case(
        checks.TENSOR_SIZES,
        accepted=(_tensor(4, 8), _tensor(8, 4), _tensor(3, 3), {"spec.topology.prefill": ABSENT}),
        refused=(_tensor(4, 6), _tensor(3, 2)),
        path="spec.topology.prefill.parallelism.tensor",
    ),
    Case(
        checks.CAPACITY,
        accepted=(_capacity(0, 1), _capacity("0%", "50%"), _capacity("100%", 0), _capacity(1, "0%"), {}),
        refused=(_capacity(0, 0), _capacity("0%", 0), _capacity("0%", "00%"), _capacity(0, "0%")),
        path="spec.rollout.capacity.decode",
    ),
    Case(
        checks.CAPACITY,
        accepted=({"spec.rollout.capacity.prefill": {"maxSurge": 0, "maxUnavailable": 1}},),
        refused=({"spec.rollout.capacity.prefill": {"maxSurge": 0}},),
        path="spec.rollout.capacity.prefill",
    ),
    Case(
        checks.STEPS_RISE,
        accepted=(_steps(1, 2, 100), _steps(100)),
        refused=(_steps(50, 10, 100), _steps(10, 10, 100), _steps(10, 100, 100)),
        path="spec.rollout.steps",
    ),
    Case(
        checks.STEPS_END,
        accepted=(_steps(*range(5, 101, 5)),),
        refused=(_steps(10, 50), _steps(99)),
        path="spec.rollout.steps",
    ),
    Case(
        checks.INTERVAL,
        accepted=({"spec.rollout.analysis.interval": "1s"}, {"spec.rollout.analysis.interval": "1m1.5s"}),
        refused=({"spec.rollout.analysis.interval": "0s"}, {"spec.rollout.analysis.interval": "999ms"}),
        path="spec.rollout.analysis.interval",
    ),
    Case(
        checks.INTERVAL,
        accepted=({"spec.guard.interval": "1h"},),
        refused=({"spec.guard.interval": "500ms"},),
        path="spec.guard.interval",
    ),
    Case(
        checks.INTERVAL,
        accepted=(),
        refused=({"spec.guard.interval": "1h1ms"}, {"spec.guard.interval": "61m"}),
        path="spec.guard.interval",
    ),
    Case(
        checks.MARGIN,
        accepted=tuple({"spec.rollout.analysis.margin": m} for m in ("0.1%", "5%", "05%", "20%", "49.999%")),
        refused=tuple({"spec.rollout.analysis.margin": m} for m in ("0%", "0.00%", "50%", "100%", "99.9%")),
        path="spec.rollout.analysis.margin",
    ),
    Case(
        checks.TOLERANCE,
        accepted=tuple({"spec.rollout.analysis.errors.margin": m} for m in ("0.1%", "99.9%")),
        refused=tuple({"spec.rollout.analysis.errors.margin": m} for m in ("0%", "00.0%", "100%", "100.0%")),
        path="spec.rollout.analysis.errors.margin",
    ),
    Case(
        checks.TOLERANCE,
        accepted=({"spec.rollout.analysis.latency.margin": "25%"},),
        refused=({"spec.rollout.analysis.latency.margin": "0%"},),
        path="spec.rollout.analysis.latency.margin",
    ),
    Case(
        checks.FLOOR,
        accepted=tuple({"spec.rollout.analysis.floor.acceptance": m} for m in ("0%", "10%", "99.9%")),
        refused=({"spec.rollout.analysis.floor.acceptance": "100%"},),
        path="spec.rollout.analysis.floor.acceptance",
    ),
    Case(
        checks.CONFIDENCE,
        accepted=tuple({"spec.rollout.analysis.confidence": c} for c in ("50%", "99%", "99.999%")),
        refused=tuple({"spec.rollout.analysis.confidence": c} for c in ("100%", "49.9%", "5%", "100.000%")),
        path="spec.rollout.analysis.confidence",
    ),
)


def accepted() -> list[tuple[Rule, dict[str, Any]]]:
    """Every object that a rule must take, and the rule."""
    return [(case.rule, changed(changes)) for case in CASES for changes in case.accepted]


def refused() -> list[tuple[Case, dict[str, Any]]]:
    """Every object that must be refused by exactly one rule, and its case."""
    return [(case, changed(changes)) for case in CASES for changes in case.refused]
