"""Services: stable names of engines, a revision's routers, and the entry."""

from __future__ import annotations

from typing import Any

from specdecode.api import SpecDecodeDeployment
from specdecode.api.names import (
    ENGINE_PORT,
    ENTRY_PORT,
    LABEL_DEPLOYMENT,
    LABEL_ROLE,
    PROXY_PORT,
    EngineRole,
    child,
    labels,
    revision_name,
)

from .meta import manifest


def headless(resource: SpecDecodeDeployment, revision: int, role: EngineRole) -> dict[str, Any]:
    """Names for the Pods of a role. They resolve before a Pod is ready, so that no resolver remembers their absence;
    routers ask for health themselves."""
    name = child(resource.metadata.name, revision, role)
    body = manifest(resource, "v1", "Service", name, revision=revision, role=role)
    body["spec"] = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels(resource.metadata.name, revision, role),
        "ports": [{"name": "http", "port": ENGINE_PORT, "targetPort": ENGINE_PORT, "protocol": "TCP"}],
    }
    return body


def _routers(body: dict[str, Any], selector: dict[str, str]) -> dict[str, Any]:
    body["spec"] = {
        "type": "ClusterIP",
        "selector": selector,
        "ports": [{"name": "http", "port": ENTRY_PORT, "targetPort": PROXY_PORT, "protocol": "TCP"}],
    }
    return body


def revision_routers(resource: SpecDecodeDeployment, revision: int) -> dict[str, Any]:
    """The routers of one revision, for an HTTPRoute and for looking at a revision by itself."""
    name = revision_name(resource.metadata.name, revision)
    body = manifest(resource, "v1", "Service", name, revision=revision, role="router")
    return _routers(body, labels(resource.metadata.name, revision, "router"))


def entry(resource: SpecDecodeDeployment) -> dict[str, Any]:
    """Where clients send requests when there is no gateway: the ready routers of every revision, so that a revision's
    weight is its share of them."""
    name = resource.metadata.name
    return _routers(manifest(resource, "v1", "Service", name), {LABEL_DEPLOYMENT: name, LABEL_ROLE: "router"})
