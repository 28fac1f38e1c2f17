"""PodDisruptionBudgets."""

from __future__ import annotations

from typing import Any

from specdecode.api import SpecDecodeDeployment
from specdecode.api.names import Role, child, labels

from .meta import manifest


def disruption_budget(resource: SpecDecodeDeployment, revision: int, role: Role) -> dict[str, Any]:
    """One Pod of a role of a revision at a time may be evicted; one that isn't ready always, or a broken Pod would
    keep its node from being drained."""
    meta = resource.metadata
    body = manifest(
        resource, "policy/v1", "PodDisruptionBudget", child(meta.name, revision, role), revision=revision, role=role
    )
    body["spec"] = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": labels(meta.name, revision, role)},
    }
    return body
