"""NetworkPolicies of one revision: who may open connections to its Pods. What they open themselves is left free.

Engines of both roles talk on ports of NIXL's own choosing, so between prefill and decode all ports are open; they
share one port for requests and metrics, so whoever may scrape an engine may ask it too. What goes by RDMA passes no
NetworkPolicy at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from specdecode.api import SpecDecodeDeployment
from specdecode.api.names import (
    ENGINE_PORT,
    LABEL_COMPONENT,
    OPERATOR_COMPONENT,
    PROXY_METRICS_PORT,
    PROXY_PORT,
    EngineRole,
    Role,
    child,
    labels,
)

from .meta import manifest

_NAMESPACE: Final = "kubernetes.io/metadata.name"
_OTHER: Final[Mapping[EngineRole, EngineRole]] = {"prefill": "decode", "decode": "prefill"}


@dataclass(frozen=True, slots=True)
class Access:
    """Who but a revision's own Pods may scrape it.

    Attributes:
        operator_namespace: where the operator's Pods run; they carry the label ``specdecode.dev/component``.
        monitoring_namespaces: every Pod there may reach the ports that serve metrics.
    """

    operator_namespace: str = "specdecode-system"
    monitoring_namespaces: tuple[str, ...] = ()


def _pods(selector: Mapping[str, str]) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": dict(selector)}}


def _scrapers(access: Access) -> list[dict[str, Any]]:
    operator = {
        "namespaceSelector": {"matchLabels": {_NAMESPACE: access.operator_namespace}},
        **_pods({LABEL_COMPONENT: OPERATOR_COMPONENT}),
    }
    names = access.monitoring_namespaces
    return [operator, *({"namespaceSelector": {"matchLabels": {_NAMESPACE: name}}} for name in names)]


def _ports(number: int) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": number}]


def _policy(resource: SpecDecodeDeployment, revision: int, role: Role, ingress: list[dict[str, Any]]) -> dict[str, Any]:
    name = child(resource.metadata.name, revision, role)
    body = manifest(resource, "networking.k8s.io/v1", "NetworkPolicy", name, revision=revision, role=role)
    body["spec"] = {
        "podSelector": {"matchLabels": labels(resource.metadata.name, revision, role)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return body


def engine(
    resource: SpecDecodeDeployment, revision: int, role: EngineRole, access: Access, *, split: bool
) -> dict[str, Any]:
    """To an engine: its revision's other role (``split``: there is one) on all ports; on its port the revision's
    routers and those that scrape."""
    name = resource.metadata.name
    routers = _pods(labels(name, revision, "router"))
    ingress: list[dict[str, Any]] = [{"from": [routers, *_scrapers(access)], "ports": _ports(ENGINE_PORT)}]
    if split:
        ingress.append({"from": [_pods(labels(name, revision, _OTHER[role]))]})
    return _policy(resource, revision, role, ingress)


def router(resource: SpecDecodeDeployment, revision: int, access: Access) -> dict[str, Any]:
    """To a router: everybody on the port of the API, those that scrape on the port of the proxy's metrics."""
    ingress = [
        {"ports": _ports(PROXY_PORT)},
        {"from": _scrapers(access), "ports": _ports(PROXY_METRICS_PORT)},
    ]
    return _policy(resource, revision, "router", ingress)
