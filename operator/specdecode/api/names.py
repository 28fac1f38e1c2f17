"""Names that other things rest on: the API group, labels, annotations, object names and ports.

Nothing here decides anything. A name used in two rooms is written here once.
"""

from __future__ import annotations

from typing import Final, Literal

from specdecode import __version__

GROUP: Final = "specdecode.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "SpecDecodeDeployment"
PLURAL: Final = "specdecodedeployments"
SINGULAR: Final = "specdecodedeployment"
SHORT_NAME: Final = "sdd"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CRD_NAME: Final = f"{PLURAL}.{GROUP}"

FIELD_MANAGER: Final = "specdecode-operator"

ROUTER_IMAGE: Final = f"specdecode-router:{__version__}"
"""Image of routers where neither a resource nor the operator's settings name one."""

Role = Literal["prefill", "decode", "router"]
EngineRole = Literal["prefill", "decode"]

LABEL_DEPLOYMENT: Final = f"{GROUP}/deployment"
LABEL_REVISION: Final = f"{GROUP}/revision"
LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "specdecode-operator"
LABEL_COMPONENT: Final = f"{GROUP}/component"
"""On the operator's own Pods, so that policies can name them however the chart was called."""
OPERATOR_COMPONENT: Final = "operator"

# The list of Pods that a router was started with, on its Pods: "<prefill>/<decode>", how many
# ordinals of each role. A Pod may go once no router, draining ones included, still lists it.
ANNOTATION_BACKENDS: Final = f"{GROUP}/backends"
# Requests of a person, each for one step or one try of the revision that it names. What follows one more slash is
# ignored: it only makes another value, and so another request, of the same.
ANNOTATION_RETRY: Final = f"{GROUP}/retry"  # "<revision>/<how often it was rejected so far>"
ANNOTATION_PROMOTE: Final = f"{GROUP}/promote"  # "<revision>/<step, counted from 1>"
ANNOTATION_ABORT: Final = f"{GROUP}/abort"  # "<revision>", or "<revision>/<how often it was rejected so far>"

ENGINE_PORT: Final = 8000
SIDE_CHANNEL_PORT: Final = 5600  # plus the data-parallel index
ENTRY_PORT: Final = 80  # of the Services that clients use
PROXY_PORT: Final = 8080  # of the proxy in a router Pod: /v1/* and health only
PROXY_METRICS_PORT: Final = 9902  # GET /metrics: the proxy's own statistics, nothing else of its admin interface
ROUTER_PORT: Final = 30000  # vllm-router, on the Pod's loopback address only
ROUTER_METRICS_PORT: Final = 29000  # likewise


def child(name: str, revision: int, role: Role) -> str:
    """Name of a role's workload: a StatefulSet (and its headless Service) or the router's Deployment."""
    return f"{name}-{revision}-{role}"


def revision_name(name: str, revision: int) -> str:
    """Name of the ControllerRevision, and of the Service of one revision's routers."""
    return f"{name}-{revision}"


def labels(name: str, revision: int, role: Role | None = None) -> dict[str, str]:
    """Labels of every object that belongs to one revision; with a role, the selector of its Pods too."""
    found = {LABEL_DEPLOYMENT: name, LABEL_REVISION: str(revision)}
    return found if role is None else found | {LABEL_ROLE: role}
