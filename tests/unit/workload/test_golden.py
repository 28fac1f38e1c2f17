"""Every object of a first revision, word for word. ``UPDATE_GOLDEN=1`` writes the files anew: read the diff."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from specdecode.workload import preview
from tests.unit.engine.specs import UNPATCHED, resource

GOLDEN = Path(__file__).parent / "golden"
DIGEST = "@sha256:" + "4" * 64

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "aggregated": {
        "topology.prefill": None,
        "engine.image": UNPATCHED,
        "model.source": {"volume": {"claimName": "weights", "path": "glm"}},
        "model.servedName": "glm",
    },
    "gateway": {
        "traffic.gateway": {
            "parentRefs": [{"name": "public", "namespace": "edge", "sectionName": "https"}],
            "hostnames": ["llm.example"],
        },
        "topology.decode": {"maxReplicas": 6},
    },
    "data-parallel": {
        "engine.image": f"registry.example/vllm:0.33.0-specdecode{DIGEST}",
        "engine.apiKeySecretRef": {"name": "keys", "key": "engine"},
        "engine.imagePullSecrets": ["pull"],
        "engine.serviceAccountName": "serving",
        "topology.prefill.parallelism": {"tensor": 4},
        "topology.decode.parallelism": {"tensor": 2, "data": 2, "expert": True},
        "topology.decode.resources": {"requests": {"cpu": "16", "memory": "200Gi"}},
        "topology.router": {"replicas": 3, "policy": "round_robin", "requestTimeout": "2h"},
    },
    "rdma": {
        f"topology.{role}.podTemplate": {
            "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma-net"}},
            "spec": {
                "nodeSelector": {"fabric": "rdma"},
                "containers": [
                    {
                        "name": "vllm",
                        "env": [{"name": "UCX_TLS", "value": "rc,cuda_copy"}],
                        "resources": {"limits": {"rdma/hca": "1"}},
                        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                    }
                ],
            },
        }
        for role in ("prefill", "decode")
    },
    "cpu": {
        "engine.device": "Cpu",
        "engine.image": "registry.example/vllm-cpu:0.32.0-specdecode",
        "topology.prefill": {"maxReplicas": 3, "resources": {"requests": {"cpu": "2"}}},
    },
}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _text)


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    objects = preview(resource(CASES[name]), router_image="registry.example/router:1")
    # The record repeats what its objects show.
    objects = [o for o in objects if o["kind"] != "ControllerRevision"]
    if name != "plain":
        for item in objects:
            if item["kind"] == "ConfigMap":
                item["data"]["envoy.yaml"] = "as in plain.yaml, but for the longest request"
    made = yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=120)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(made, encoding="utf-8")
    assert made == path.read_text(encoding="utf-8")


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(CASES)
