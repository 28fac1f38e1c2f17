"""Resources to test with: a base in a few lines, and changes by dotted path."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import yaml

from specdecode.api import SpecDecodeDeployment, SpecDecodeDeploymentSpec

PLAIN = """
apiVersion: specdecode.dev/v1alpha1
kind: SpecDecodeDeployment
metadata: {name: demo, namespace: prod, uid: 7d5c}
spec:
  model: {name: org/model}
  speculation: {depth: 3}
  engine: {image: "registry.example/vllm:0.33.0-specdecode"}
  topology:
    prefill: {replicas: 2}
    decode: {replicas: 4}
"""
UNPATCHED = "registry.example/vllm:v0.33.0"


def manifest(changes: dict[str, Any] | None = None, *, base: str = PLAIN) -> dict[str, Any]:
    """The resource as JSON. Each change is a path under ``spec`` and its value; None removes the field."""
    found: dict[str, Any] = yaml.safe_load(base)
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        node = found["spec"]
        for part in parents:
            node = node.setdefault(part, {})
        if value is None:
            node.pop(last, None)
        else:
            node[last] = deepcopy(value)
    return found


def resource(changes: dict[str, Any] | None = None, *, base: str = PLAIN) -> SpecDecodeDeployment:
    """The resource, parsed."""
    return SpecDecodeDeployment.parse(manifest(changes, base=base))


def spec(changes: dict[str, Any] | None = None, *, base: str = PLAIN) -> SpecDecodeDeploymentSpec:
    """Its spec."""
    return resource(changes, base=base).spec
