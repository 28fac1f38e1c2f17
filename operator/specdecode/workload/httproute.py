"""The HTTPRoute: weights request by request, behind a Gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from specdecode.api import SpecDecodeDeployment
from specdecode.api.names import ENTRY_PORT, revision_name
from specdecode.api.topology import GatewaySpec

from .meta import manifest


def http_route(resource: SpecDecodeDeployment, gateway: GatewaySpec, weights: Mapping[int, int]) -> dict[str, Any]:
    """One backend a revision, each with its weight in percent."""
    name = resource.metadata.name
    body = manifest(resource, "gateway.networking.k8s.io/v1", "HTTPRoute", name)
    backends = [
        {"name": revision_name(name, revision), "port": ENTRY_PORT, "weight": weight}
        for revision, weight in sorted(weights.items())
    ]
    body["spec"] = {
        "parentRefs": [ref.model_dump(by_alias=True, exclude_none=True) for ref in gateway.parent_refs],
        "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "backendRefs": backends}],
    }
    if gateway.hostnames:
        body["spec"]["hostnames"] = list(gateway.hostnames)
    return body


def gateway_of(route: Mapping[str, Any]) -> GatewaySpec | None:
    """The gateway that a route was made for; None where somebody has made something else of it."""
    try:
        return GatewaySpec.model_validate(route["spec"])
    except pydantic.ValidationError:
        return None
