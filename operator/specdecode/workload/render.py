"""The part of a revision that is frozen with it."""

from __future__ import annotations

from typing import Any, Final

from specdecode.api import SpecDecodeDeployment

from . import engine, router

FORMAT: Final = 1


def render(resource: SpecDecodeDeployment, *, router_image: str) -> dict[str, Any]:
    """Pod templates and configuration that today's operator makes of today's spec.

    Recorded with the revision and used as it stands ever after, so that an upgrade of the operator changes no Pod.
    What only the revision's number gives (labels, the ConfigMap's name, the router's list of Pods) is filled in
    when its objects are made. ``prefill`` is absent in aggregated serving. ``router_image`` is used where the spec
    names none.
    """
    spec = resource.spec
    rendering: dict[str, Any] = {"format": FORMAT}
    for role in spec.topology.roles:
        rendering[role] = engine.pod_template(spec, role)
    rendering["router"] = router.pod_template(spec, router_image)
    rendering["config"] = {"envoy.yaml": router.proxy_config(router.longest_stream(spec))}
    return rendering
