"""The kinds of objects that the operator reads or writes, and where the API server keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from specdecode.api.names import GROUP, KIND, LABEL_DEPLOYMENT, PLURAL, VERSION

Object = dict[str, Any]
"""A Kubernetes object as the API server sends it."""

Key = tuple[str, str]
"""Namespace and name of a SpecDecodeDeployment."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As objects of this kind say it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """Path of the group's version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of a collection, an object or its subresource. Without a namespace: of all namespaces."""
        parts = [self.root]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part is not None]
        return "/".join(parts)


SDD: Final = Kind(GROUP, VERSION, KIND, PLURAL)
STATEFUL_SET: Final = Kind("apps", "v1", "StatefulSet", "statefulsets")
DEPLOYMENT: Final = Kind("apps", "v1", "Deployment", "deployments")
CONTROLLER_REVISION: Final = Kind("apps", "v1", "ControllerRevision", "controllerrevisions")
POD: Final = Kind("", "v1", "Pod", "pods")
SERVICE: Final = Kind("", "v1", "Service", "services")
CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps")
POD_DISRUPTION_BUDGET: Final = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
HTTP_ROUTE: Final = Kind("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes")
NODE: Final = Kind("", "v1", "Node", "nodes", namespaced=False)
LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")
EVENT: Final = Kind("", "v1", "Event", "events")
CRD: Final = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)

WATCHED: Final = (
    SDD,
    CONTROLLER_REVISION,
    STATEFUL_SET,
    DEPLOYMENT,
    POD,
    SERVICE,
    CONFIG_MAP,
    POD_DISRUPTION_BUDGET,
    NETWORK_POLICY,
)
"""Kinds that every cluster serves. HTTPRoute is watched too where it is served."""

ALL: Final = {(kind.api_version, kind.kind): kind for kind in (*WATCHED, HTTP_ROUTE, NODE, LEASE, EVENT, CRD)}


def selector(kind: Kind) -> str:
    """Label selector that leaves only our objects of a kind; every resource of our own kind is ours."""
    return "" if kind is SDD else LABEL_DEPLOYMENT


def kind_of(obj: Object) -> Kind:
    """The kind of an object.

    Raises:
        LookupError: a kind that the operator doesn't handle.
    """
    try:
        return ALL[(obj["apiVersion"], obj["kind"])]
    except KeyError:
        raise LookupError(f"no such kind here: {obj.get('apiVersion')} {obj.get('kind')}") from None


def owner_key(kind: Kind, obj: Object) -> Key | None:
    """The resource that an object belongs to, by its label; itself for a resource."""
    metadata = obj.get("metadata", {})
    name = metadata.get("name") if kind is SDD else (metadata.get("labels") or {}).get(LABEL_DEPLOYMENT)
    return (metadata.get("namespace", ""), name) if name else None
