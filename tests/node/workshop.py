"""A namespace to try things in, with Pods that say who they are and look around."""

from __future__ import annotations

import re
import secrets
from types import TracebackType
from typing import Any, Final, Self

from tests.bed.api import Json
from tests.bed.control_plane import is_true
from tests.bed.processes import BedError, wait_for
from tests.node.node import Node
from tests.node.settings import SANDBOX_IMAGE

RESTRICTED: Final = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
PORT: Final = 8080
_POD_SECURITY: Final = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
_CONTAINER_SECURITY: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def make_namespace(node: Node, name: str) -> str:
    """A namespace with restricted Pod security, in which Pods can be made at once; its name."""
    node.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}})
    account = lambda: node.api.find("ServiceAccount", name, "default")  # noqa: E731
    wait_for(f"the default ServiceAccount of namespace {name}", account, 60)
    return name


def probe(name: str, namespace: str, labels: dict[str, str] | None = None, **spec: Any) -> Json:
    """A Pod that answers HTTP on `PORT` with its name, and in which `Workshop.run` can look around."""
    container = {
        "name": "probe",
        "image": SANDBOX_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["serve", f":{PORT}"],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
        "securityContext": _CONTAINER_SECURITY,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {"app": name}},
        "spec": {
            "securityContext": _POD_SECURITY,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            **spec,
        },
    }


class Workshop:
    """The namespace; gone with all that is in it at the end of `with`.

    Attributes:
        name: of the namespace.
    """

    def __init__(self, node: Node, title: str) -> None:
        self.node = node
        short = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:50]
        self.name = f"{short}-{secrets.token_hex(2)}"  # one of that title may still be on its way out

    def __enter__(self) -> Self:
        make_namespace(self.node, self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.node.kubectl("delete", "namespace", self.name, "--wait=false")

    def pod(self, name: str, labels: dict[str, str] | None = None, **spec: Any) -> str:
        """Makes a probe Pod and waits until it is Ready; its address."""
        self.node.api.create(probe(name, self.name, labels, **spec))
        wait_for(f"Pod {name} to be Ready", lambda: is_true(self.get(name), "Ready"), 120)
        address: str = self.get(name)["status"]["podIP"]
        return address

    def get(self, name: str) -> Json:
        return self.node.api.get("Pod", self.name, name)

    def service(self, name: str, app: str, **spec: Any) -> str:
        """Makes a Service for the Pods labelled ``app``; its cluster address."""
        body = {"selector": {"app": app}, "ports": [{"port": 80, "targetPort": PORT}], **spec}
        meta = {"name": name, "namespace": self.name}
        made = self.node.api.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": body})
        address: str = made["spec"]["clusterIP"]
        return address

    def run(self, pod: str, *words: str) -> str:
        """What the probe prints in a Pod: `get URL`, `dial HOST:PORT`, `lookup NAME`.

        Raises:
            BedError: it fails, and says how.
        """
        return self.node.kubectl("exec", "-n", self.name, pod, "--", "probe", *words)

    def reaches(self, pod: str, target: str) -> bool:
        """Whether a Pod can open a TCP connection to HOST:PORT."""
        try:
            self.run(pod, "dial", target)
        except BedError as error:
            if "dial tcp" in str(error):
                return False
            raise
        return True
