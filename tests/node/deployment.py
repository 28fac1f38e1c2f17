"""One SpecDecodeDeployment of the tiny model, and what can be seen of it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.bed.api import Json
from tests.bed.control_plane import is_true
from tests.bed.processes import BedError, wait_for
from tests.bed.resource import KIND, Resource
from tests.node.models import GOOD, PATH
from tests.node.node import Node
from tests.node.product import VLLM

NAME: Final = "tiny"


def manifest(namespace: str, image: str, *, prefill: int = 1, decode: int = 1) -> Json:
    """One router Pod before some engines, steps 50 and 100 %, judged every 2 s.

    Args:
        namespace: of the resource.
        image: vLLM's, or the stand-in's.
        prefill: Pods; 0 for aggregated serving.
        decode: Pods.
    """
    real = image == VLLM
    small = {"requests": {"cpu": "100m" if real else "20m", "memory": "800Mi" if real else "20Mi"}}
    variables = {
        "OMP_NUM_THREADS": "1",
        "UCX_TLS": "tcp,self",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    engines = {"decode": {"replicas": decode, "resources": small, "drain": "30s"}}
    if prefill:
        engines["prefill"] = {"replicas": prefill, "resources": small, "drain": "30s"}
    return {
        "apiVersion": "specdecode.dev/v1alpha1",
        "kind": KIND,
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "model": {
                "name": "tiny",
                "servedName": "tiny",
                "source": {"volume": {"claimName": GOOD, "path": PATH}},
            },
            "speculation": {"depth": 3},
            "engine": {
                "image": image,
                "device": "Cpu",
                "args": {
                    "dtype": "float32",
                    "enforce-eager": "",
                    "max-model-len": "1024",
                    "max-num-seqs": "8",
                    "block-size": "32",
                    "kv-cache-memory-bytes": "67108864",
                    # What clients see of a revision; they count by it.
                    "fingerprint-mode": "custom",
                    "fingerprint-value": "first",
                },
                "env": [{"name": name, "value": value} for name, value in variables.items()] if real else [],
            },
            "topology": {
                **engines,
                "router": {
                    "replicas": 1,
                    "policy": "round_robin",
                    "requestTimeout": "60s",
                    # More than an engine's: two processors have to do for all.
                    "resources": {"requests": {"cpu": "200m"}},
                },
            },
            "rollout": {
                "capacity": {role: {"maxSurge": 1} for role in engines},
                "steps": [{"weight": 50}, {"weight": 100}],
                "promotionDelay": "5s",
                # The good change is a smaller depth, of which each token takes longer.
                "analysis": {
                    "interval": "2s",
                    "minRequests": 10,
                    "connectionSplit": "Trust",
                    "latency": {"mode": "Report"},
                },
            },
        },
    }


class Deployment(Resource):
    """A resource; apply it, change it, wait for what becomes of it.

    Attributes:
        node: where it is.
        resource: as it was applied last.
    """

    def __init__(self, node: Node, resource: Json) -> None:
        super().__init__(node.api, str(resource["metadata"]["namespace"]), NAME)
        self.node = node
        self.resource = resource

    def apply(self) -> None:
        self.node.kubectl("apply", "-f", "-", stdin=json.dumps(self.resource))

    def change(self, revision: str, patch: Mapping[str, Any]) -> float:
        """Merges into the spec, and gives the clients a new name to count by; when, in Unix seconds."""
        self.adjust({**patch, "engine": {**patch.get("engine", {}), "args": {"fingerprint-value": revision}}})
        return time.time()

    def adjust(self, patch: Mapping[str, Any]) -> None:
        """Merges into the spec what makes no new revision, such as replicas."""
        self.resource = copy.deepcopy(self.resource)
        _merge(self.resource["spec"], patch)
        self.apply()

    def delete(self) -> None:
        """Takes it away, with all that it owns."""
        self.node.kubectl("delete", KIND, NAME, "-n", self.namespace, "--ignore-not-found", "--cascade=foreground")

    @property
    def entry(self) -> str:
        """URL of the entry Service, by its cluster address."""
        address = self.api.get("Service", self.namespace, NAME)["spec"]["clusterIP"]
        return f"http://{address}"

    def is_true(self, kind: str) -> bool:
        return self.condition(kind)[0] == "True"

    def failing(self) -> str:
        """Why the canary is being taken away; empty while it isn't."""
        failure = self.status().get("rollout", {}).get("failure") or {}
        return str(failure.get("reason", ""))

    def ready(self, role: str, revision: int | None = None) -> list[Json]:
        """Its Pods that are ready and not ending."""
        return [pod for pod in self.pods(role, revision) if is_true(pod, "Ready")]

    def kill(self, role: str, revision: int | None = None) -> str:
        """Takes a ready Pod away at once, without any grace; its name."""
        name: str = self.ready(role, revision)[0]["metadata"]["name"]
        self.node.kubectl("delete", "pod", name, "-n", self.namespace, "--force", "--grace-period=0")
        return name

    def pods(self, role: str = "", revision: int | None = None, *, ending: bool = False) -> list[Json]:
        """Its Pods that aren't ending, or those that are."""
        selector = [f"specdecode.dev/deployment={NAME}"]
        selector += [f"specdecode.dev/role={role}"] if role else []
        selector += [f"specdecode.dev/revision={revision}"] if revision else []
        found = self.api.list("Pod", self.namespace, ",".join(selector))
        return [pod for pod in found if ("deletionTimestamp" in pod["metadata"]) is ending]

    def why(self) -> str:
        """What `kubectl specdecode why` says."""
        program = Path(sys.executable).with_name("kubectl-specdecode")
        environment = os.environ | {"KUBECONFIG": str(self.node.kubeconfig)}
        command = [str(program), "why", NAME, "-n", self.namespace]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return told.stdout

    def wait(self, what: str, holds: Callable[[], object], seconds: float, pause: float = 0.5) -> float:
        """Looks every ``pause`` seconds; when it was seen, in Unix seconds. A look without an answer saw nothing.

        Raises:
            BedError: it doesn't come; with what the resource and its Pods say.
        """

        def seen() -> object:
            try:
                return holds()
            except OSError:  # a machine whose processors are all taken answers late
                return False

        try:
            wait_for(f"{self.namespace}: {what}", seen, seconds, pause=pause)
        except BedError as error:
            conditions = self.status().get("conditions", [])
            said = [f"{c['type']} {c['status']} {c['reason']}: {c['message']}" for c in conditions]
            pods = self.node.kubectl("get", "pods", "-n", self.namespace, "-o", "wide")
            raise BedError("\n  ".join([str(error), *said]) + f"\n{pods}") from None
        return time.time()

    def wait_ready(self, seconds: float = 600.0) -> None:
        self.wait("Ready", lambda: self.is_true("Ready"), seconds)


@contextmanager
def serving(node: Node, resource: Json) -> Iterator[Deployment]:
    """A resource that is Ready; it is taken away at the end."""
    deployment = Deployment(node, resource)
    deployment.apply()
    deployment.wait_ready(1200)
    yield deployment
    deployment.delete()


def _merge(into: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
