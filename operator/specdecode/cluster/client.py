"""A thin client of the API server: dictionaries in and out, server-side apply, every write permitted and counted.

`kubernetes.aio` loads the configuration, keeps tokens fresh and speaks HTTP. Its typed calls are left alone: they
validate the response and may raise after a write has happened.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NoReturn

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config

from specdecode.api.names import FIELD_MANAGER
from specdecode.telemetry import Metrics

from .kinds import Kind, Object, kind_of

TIMEOUT: Final = 5.0
"""Seconds of one request. Below what a Lease leaves between its deadline and its end."""
PAGE: Final = 500
_AGENT: Final = "specdecode-operator"


class ApiError(Exception):
    """The API server refused a request, or couldn't be reached (``status`` 0)."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def result(self) -> str:
        """A short constant for metrics."""
        names = {0: "unreachable", 403: "forbidden", 404: "gone", 409: "conflict", 422: "invalid", 429: "throttled"}
        return names.get(self.status, "error")


class NotLeaderError(Exception):
    """A write was asked of a process that may not write at this moment."""


async def configuration(kubeconfig: str | None) -> Configuration:
    """Where the API server is and how to speak to it: from a file, or from within a Pod.

    Raises:
        ValueError: neither works; says what to do.
    """
    config = Configuration()
    try:
        if kubeconfig is not None:
            await load_kube_config(config_file=kubeconfig, client_configuration=config, persist_config=False)
        else:
            load_incluster_config(client_configuration=config)
    except Exception as error:
        where = f"--kubeconfig {kubeconfig}" if kubeconfig else "the Pod's service account (no --kubeconfig was given)"
        raise ValueError(f"no access to a cluster by {where}: {error}") from error
    return config


class Client:
    """Requests to one API server.

    Args:
        config: from `configuration`.
        metrics: where writes are counted.
        timeout: seconds of one request; a list's page has six times as long.
    """

    def __init__(self, config: Configuration, metrics: Metrics, timeout: float = TIMEOUT) -> None:
        self._api = ApiClient(config)
        self._api.user_agent = _AGENT
        self._metrics = metrics
        self._timeout = timeout
        self.permit: Callable[[], None] = lambda: None
        """Called just before each write; raises `NotLeaderError` to forbid it."""

    async def close(self) -> None:
        """Close its connections."""
        await self._api.close()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        """One object, from the API server itself.

        Raises:
            ApiError: no such object, or any other refusal.
        """
        return await self._ask("GET", kind.path(namespace, name))

    async def read(self, path: str) -> Object:
        """Any document, such as a discovery page."""
        return await self._ask("GET", path)

    async def list_all(self, kind: Kind, namespace: str | None, label_selector: str = "") -> tuple[list[Object], str]:
        """All objects of a kind, page by page, and the resource version that the list stands for."""
        items: list[Object] = []
        query = [("limit", str(PAGE))]
        if label_selector:
            query.append(("labelSelector", label_selector))
        token = ""
        while True:
            page = await self._ask(
                "GET", kind.path(namespace), query=[*query, ("continue", token)] if token else query, patience=6.0
            )
            items.extend({"apiVersion": kind.api_version, "kind": kind.kind} | item for item in page.get("items") or [])
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                return items, metadata.get("resourceVersion", "")

    async def create(self, obj: Object) -> Object:
        """Create an object.

        Raises:
            ApiError: 409 if it exists.
        """
        kind = kind_of(obj)
        namespace = obj["metadata"].get("namespace")
        return await self._write("create", kind, "POST", kind.path(namespace), body=obj)

    async def apply(self, obj: Object, manager: str = FIELD_MANAGER) -> Object:
        """Server-side apply: the object's fields become ours, whoever had them. With ``metadata.resourceVersion`` or
        ``metadata.uid`` in it, only that very object is changed."""
        kind = kind_of(obj)
        metadata = obj["metadata"]
        return await self._write(
            "apply",
            kind,
            "PATCH",
            kind.path(metadata.get("namespace"), metadata["name"]),
            body=obj,
            query=[("fieldManager", manager), ("force", "true")],
            content="application/apply-patch+yaml",
        )

    async def put_status(self, resource: Object, status: Object) -> Object:
        """Replace the whole status of this very version of a resource.

        Not an apply: that would leave standing whatever somebody else has written into the status, for ever.

        Raises:
            ApiError: 409 where the resource has changed since, or any other refusal.
        """
        kind, metadata = kind_of(resource), resource["metadata"]
        return await self._write(
            "put_status",
            kind,
            "PATCH",
            kind.path(metadata.get("namespace"), metadata["name"], "status"),
            body=[
                {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
                {"op": "add", "path": "/status", "value": status},
            ],
            query=[("fieldManager", FIELD_MANAGER)],
            content="application/json-patch+json",
        )

    async def delete(self, obj: Object, grace: int | None = None) -> Object:
        """Delete that very object (by its UID), what it owns in the background.

        An object that is gone already, or was replaced by another, is a success: an empty answer.
        """
        kind, metadata = kind_of(obj), obj["metadata"]
        options: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": metadata["uid"]},
        }
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            return await self._write(
                "delete", kind, "DELETE", kind.path(metadata.get("namespace"), metadata["name"]), body=options
            )
        except ApiError as error:
            if error.status in (404, 409):
                return {}
            raise

    async def lease(self, method: str, lease: Object) -> Object:
        """Create (POST) or replace (PUT) a Lease: the one write that needs no leadership."""
        kind = kind_of(lease)
        metadata = lease["metadata"]
        path = kind.path(metadata["namespace"], None if method == "POST" else metadata["name"])
        return await self._write("lease", kind, method, path, body=lease, permitted=True)

    async def _write(
        self,
        verb: str,
        kind: Kind,
        method: str,
        path: str,
        *,
        body: Object | list[Object],
        query: list[tuple[str, str]] | None = None,
        content: str = "application/json",
        permitted: bool = False,
    ) -> Object:
        if not permitted:
            self.permit()
        try:
            answer = await self._ask(method, path, query=query, body=body, content=content)
        except ApiError as error:
            self._metrics.api_writes.labels(verb, kind.kind, error.result).inc()
            raise
        self._metrics.api_writes.labels(verb, kind.kind, "ok").inc()
        return answer

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Object | list[Object] | None = None,
        content: str = "application/json",
        patience: float = 1.0,
    ) -> Object:
        headers = {"Accept": "application/json", "Content-Type": content}
        limit = patience * self._timeout
        try:
            request = await self._api.param_serialize(
                method, path, query_params=query or [], header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = await self._api.call_api(*request, _request_timeout=aiohttp.ClientTimeout(total=limit))
            data = await response.read()
        except TimeoutError:
            raise ApiError(0, "Timeout", f"{method} {path}: no answer within {limit:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error or type(error).__name__}") from error
        if response.status >= 400:
            _refused(response.status, response.headers.get("Retry-After"), data, f"{method} {path}")
        try:
            answer: Object = json.loads(data)
        except ValueError as error:
            raise ApiError(0, "NotJson", f"{method} {path}: the answer isn't JSON: {error}") from error
        return answer


def _refused(status: int, retry_after: str | None, data: bytes, what: str) -> NoReturn:
    body: Any = None
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    if isinstance(body, dict) and body.get("kind") == "Status":
        reason, message = body.get("reason") or "Unknown", body.get("message") or what
    else:
        reason, message = "Unknown", f"{what}: {data[:200].decode('utf-8', 'replace')}"
    wait = float(retry_after) if retry_after and retry_after.isdecimal() else None
    raise ApiError(status, reason, message, wait)
