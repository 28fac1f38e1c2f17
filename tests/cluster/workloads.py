"""Objects such as the operator makes, written by hand: for tests of the bed itself."""

from __future__ import annotations

import json

from specdecode.api import names
from tests.bed.api import Json


def engines(namespace: str, name: str, revision: int, role: names.Role, replicas: int, depth: int = 3) -> Json:
    """A StatefulSet of prefill or decode Pods with one GPU each."""
    speculation = json.dumps({"method": "mtp", "num_speculative_tokens": depth})
    labels = names.labels(name, revision, role)
    container = {
        "name": "vllm",
        "image": "registry.example/vllm:0.33.0",
        "args": [f"--speculative-config={speculation}"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": names.child(name, revision, role), "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "serviceName": names.child(name, revision, role),
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def routers(namespace: str, name: str, revision: int, replicas: int) -> Json:
    """A Deployment of router Pods."""
    labels = names.labels(name, revision, "router")
    container = {"name": "proxy", "image": "registry.example/router:1"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": names.child(name, revision, "router"), "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def entry(namespace: str, name: str) -> Json:
    """The Service that clients use."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {names.LABEL_DEPLOYMENT: name}},
        "spec": {
            "ports": [{"port": names.ENTRY_PORT, "targetPort": names.PROXY_PORT}],
            "selector": {names.LABEL_DEPLOYMENT: name, names.LABEL_ROLE: "router"},
        },
    }
