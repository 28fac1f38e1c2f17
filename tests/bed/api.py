"""A small synchronous client of the bed's API server, for fixtures, checks and the demo."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import threading
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

Json = dict[str, Any]

PLURALS: Mapping[str, tuple[str, str]] = {
    "Namespace": ("api/v1", "namespaces"),
    "Node": ("api/v1", "nodes"),
    "Pod": ("api/v1", "pods"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Secret": ("api/v1", "secrets"),
    "Event": ("api/v1", "events"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "ClusterRole": ("apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "CustomResourceDefinition": ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "ControllerRevision": ("apis/apps/v1", "controllerrevisions"),
    "HTTPRoute": ("apis/gateway.networking.k8s.io/v1", "httproutes"),
    "Gateway": ("apis/gateway.networking.k8s.io/v1", "gateways"),
    "SpecDecodeDeployment": ("apis/specdecode.dev/v1alpha1", "specdecodedeployments"),
}
"""Where objects of a kind live: group path and resource name."""


class ApiError(Exception):
    """The API server refused: `code` is the HTTP status, the message what it said."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True)
class Endpoint:
    """How to reach an API server: what a kubeconfig with a token says.

    Attributes:
        server: URL without a slash at its end.
        token: bearer token.
        authority: certificates that the server's is verified by, in PEM.
    """

    server: str
    token: str
    authority: str

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Self:
        config = yaml.safe_load(path.read_text())
        cluster = config["clusters"][0]["cluster"]
        return cls(
            server=cluster["server"],
            token=config["users"][0]["user"]["token"],
            authority=base64.b64decode(cluster["certificate-authority-data"]).decode(),
        )

    def to_kubeconfig(self, namespace: str = "default") -> str:
        authority = base64.b64encode(self.authority.encode()).decode()
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {"name": "bed", "cluster": {"server": self.server, "certificate-authority-data": authority}}
                ],
                "users": [{"name": "bed", "user": {"token": self.token}}],
                "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": "bed", "namespace": namespace}}],
                "current-context": "bed",
            },
            indent=1,
        )

    def ssl_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority)


class Api:
    """Requests to the API server; every method raises ApiError when it refuses, OSError where it can't be reached.

    Each thread keeps its connection: tests look at the server many times a second, and a handshake for each look would
    be most of what the server does.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._context = endpoint.ssl_context()
        self._kept = threading.local()

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", timeout: float = 60.0
    ) -> Any:
        """The decoded answer to one request; `path` begins with a slash."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.endpoint.token}", "Content-Type": content_type}
        kept = getattr(self._kept, "connection", None)
        try:
            code, text = self._ask(kept if method == "GET" else None, timeout, method, path, data, headers)
        except OSError as error:
            if kept is None or method != "GET" or isinstance(error, TimeoutError):
                raise
            # The server has closed it in the meantime.
            code, text = self._ask(None, timeout, method, path, data, headers)
        if code >= 400:
            said = text
            with contextlib.suppress(ValueError, KeyError, TypeError):
                said = json.loads(said)["message"]
            raise ApiError(code, f"{method} {path}: {said}")
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _ask(
        self,
        connection: http.client.HTTPSConnection | None,
        timeout: float,
        method: str,
        path: str,
        data: bytes | None,
        headers: dict[str, str],
    ) -> tuple[int, str]:
        """Status and body, by an open connection or a new one, which is kept after a good end."""
        self._kept.connection = None
        if connection is None:
            connection = http.client.HTTPSConnection(
                urllib.parse.urlsplit(self.endpoint.server).netloc, timeout=timeout, context=self._context
            )
        elif connection.sock is not None:
            connection.sock.settimeout(timeout)
        try:
            connection.request(method, path, body=data, headers=headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except http.client.HTTPException as error:
            connection.close()
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        except BaseException:
            connection.close()
            raise
        self._kept.connection = connection
        return answer.status, text

    def get(self, kind: str, namespace: str | None, name: str) -> Json:
        found: Json = self.request("GET", path_of(kind, namespace, name))
        return found

    def find(self, kind: str, namespace: str | None, name: str) -> Json | None:
        """The object, or None where there is none."""
        try:
            return self.get(kind, namespace, name)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> list[Json]:
        query = f"?labelSelector={urllib.parse.quote(selector)}" if selector else ""
        found: list[Json] = self.request("GET", path_of(kind, namespace) + query)["items"]
        return found

    def create(self, obj: Json) -> Json:
        meta = obj["metadata"]
        found: Json = self.request("POST", path_of(obj["kind"], meta.get("namespace")), obj)
        return found

    def apply(self, obj: Json, manager: str = "bed") -> Json:
        """Server-side apply, with force."""
        meta = obj["metadata"]
        path = path_of(obj["kind"], meta.get("namespace"), meta["name"])
        found: Json = self.request(
            "PATCH", f"{path}?fieldManager={manager}&force=true", obj, "application/apply-patch+yaml"
        )
        return found

    def merge(self, kind: str, namespace: str | None, name: str, patch: Json, subresource: str = "") -> Json:
        """JSON merge patch."""
        path = path_of(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        found: Json = self.request("PATCH", path, patch, "application/merge-patch+json")
        return found

    def annotate(self, kind: str, namespace: str | None, name: str, **annotations: str | None) -> Json:
        """Sets annotations, or removes those whose value is None (pass odd names as `**{"a/b": "c"}`)."""
        return self.merge(kind, namespace, name, {"metadata": {"annotations": annotations}})

    def delete(self, kind: str, namespace: str | None, name: str, **options: Any) -> None:
        self.request("DELETE", path_of(kind, namespace, name), options or None)


def path_of(kind: str, namespace: str | None = None, name: str = "") -> str:
    """The path of a collection, or of one object of it."""
    group, plural = PLURALS[kind]
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"/{group}{within}/{plural}" + (f"/{name}" if name else "")
