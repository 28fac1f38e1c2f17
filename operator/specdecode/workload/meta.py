"""What every object of a deployment has: its name, its labels, its owner."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from specdecode.api import SpecDecodeDeployment
from specdecode.api.names import API_VERSION, KIND, LABEL_DEPLOYMENT, LABEL_MANAGED_BY, MANAGED_BY, Role, labels


def manifest(
    resource: SpecDecodeDeployment,
    api_version: str,
    kind: str,
    name: str,
    *,
    revision: int | None = None,
    role: Role | None = None,
) -> dict[str, Any]:
    """The head of an object that the resource owns directly. Without a revision it belongs to all of them."""
    meta = resource.metadata
    own = {LABEL_DEPLOYMENT: meta.name} if revision is None else labels(meta.name, revision, role)
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": meta.namespace,
        "labels": {LABEL_MANAGED_BY: MANAGED_BY, **own},
    }
    if meta.uid:
        owner = {"apiVersion": API_VERSION, "kind": KIND, "name": meta.name, "uid": meta.uid, "controller": True}
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def select(template: Mapping[str, Any], selector: Mapping[str, str]) -> dict[str, Any]:
    """A copy of a frozen Pod template that carries the labels of its workload's selector, whatever else it says."""
    pod: dict[str, Any] = deepcopy(dict(template))
    pod.setdefault("metadata", {}).setdefault("labels", {}).update({LABEL_MANAGED_BY: MANAGED_BY, **selector})
    for constraint in pod["spec"].get("topologySpreadConstraints", []):
        constraint.setdefault("labelSelector", {"matchLabels": dict(selector)})
    return pod
