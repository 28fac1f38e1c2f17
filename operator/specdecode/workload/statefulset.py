"""The StatefulSet of an engine role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdecode.api import SpecDecodeDeployment
from specdecode.api.names import EngineRole, child, labels

from .meta import manifest, select


def stateful_set(
    resource: SpecDecodeDeployment, revision: int, role: EngineRole, replicas: int | None, rendering: Mapping[str, Any]
) -> dict[str, Any]:
    """The workload of one role of one revision. ``replicas`` None: an autoscaler owns the number."""
    name = child(resource.metadata.name, revision, role)
    selector = labels(resource.metadata.name, revision, role)
    body = manifest(resource, "apps/v1", "StatefulSet", name, revision=revision, role=role)
    body["spec"] = {
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        # The template is frozen. Should anybody edit it, no running Pod is replaced for it.
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": selector},
        "template": select(rendering[role], selector),
    }
    if replicas is not None:
        body["spec"]["replicas"] = replicas
    return body
