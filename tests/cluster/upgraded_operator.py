"""The operator as a later version might be: it makes other Pods and another configuration of one and the same spec.

python -m tests.cluster.upgraded_operator, with the operator's own arguments.
"""

from __future__ import annotations

from typing import Any, Final

from specdecode import main
from specdecode.api import SpecDecodeDeployment
from specdecode.cluster import snapshot
from specdecode.workload import render as rendered_today

MARK: Final = "bed.specdecode.dev/rendered-by"


def render(resource: SpecDecodeDeployment, *, router_image: str) -> dict[str, Any]:
    """Today's rendering with another Pod template for every role, another argument and another configuration."""
    rendering = rendered_today(resource, router_image=router_image)
    for role in ("prefill", "decode", "router"):
        template = rendering[role]
        template["metadata"] = template.get("metadata", {}) | {"annotations": {MARK: "later"}}
        template["spec"]["containers"][0].setdefault("env", []).append({"name": "LATER", "value": "1"})
    rendering["config"] = {name: f"# later\n{text}" for name, text in rendering["config"].items()}
    return rendering


if __name__ == "__main__":
    vars(snapshot)["render"] = render
    main.main()
