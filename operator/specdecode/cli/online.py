"""The verbs that ask a cluster. They only read."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.kube_config import list_kube_config_contexts, load_kube_config
from pydantic import ValidationError

from specdecode.api import SpecDecodeDeployment, unix
from specdecode.api.names import GROUP, KIND, PLURAL, VERSION

from . import explain, table

TIMEOUT: Final = 10.0
"""Seconds that one request may take."""
REFRESH: Final = 1.0
"""Seconds between two looks with ``--watch``."""
DEFAULT_KUBECONFIG: Final = os.path.expanduser("~/.kube/config")

Object = dict[str, Any]


class OnlineError(Exception):
    """The cluster can't be asked, or doesn't have it; the message says what to do."""


class Cluster:
    """Reads from one API server."""

    def __init__(self, config: Configuration) -> None:
        self._api = ApiClient(config)

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.close()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """A document.

        Raises:
            OnlineError: the server refused or can't be reached.
        """
        request = await self._api.param_serialize(
            "GET",
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        try:
            response = await self._api.call_api(*request, _request_timeout=aiohttp.ClientTimeout(total=TIMEOUT))
            status, data = response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise OnlineError(f"the API server can't be reached: {error or type(error).__name__}") from None
        if status >= 400:
            raise OnlineError(_refusal(status, data))
        found: Object = json.loads(data)
        return found


def run(asked: argparse.Namespace) -> int:
    """Run ``status`` or ``why``; 1 where the cluster doesn't answer or has no such resource."""
    try:
        return asyncio.run(_run(asked))
    except OnlineError as error:
        print(f"kubectl specdecode {asked.verb}: {error}", file=sys.stderr)
        return 1


async def _run(asked: argparse.Namespace) -> int:
    config, own = await _connection(asked.kubeconfig, asked.context)
    namespace = asked.namespace or own
    async with Cluster(config) as cluster:
        if asked.verb == "why":
            print(await _why(cluster, namespace, asked.name, asked.output))
            return 0
        path = f"/apis/{GROUP}/{VERSION}/"
        if not (asked.all_namespaces and asked.name is None):
            path += f"namespaces/{namespace}/"
        path += PLURAL if asked.name is None else f"{PLURAL}/{asked.name}"
        shown = None
        while True:
            found = await cluster.get(path)
            objects = found["items"] if asked.name is None else [found]
            versions = [(o["metadata"]["uid"], o["metadata"]["resourceVersion"]) for o in objects]
            if versions != shown:
                shown = versions
                print(_status(objects, asked, namespace), flush=True)
            if not asked.watch:
                return 0
            await asyncio.sleep(REFRESH)


def _status(objects: list[Object], asked: argparse.Namespace, namespace: str) -> str:
    if asked.output == "json":
        told = [
            {
                "namespace": o["metadata"]["namespace"],
                "name": o["metadata"]["name"],
                "generation": o["metadata"]["generation"],
                "status": o.get("status", {}),
            }
            for o in objects
        ]
        return json.dumps(told if asked.name is None else told[0])
    resources = [_parse(o) for o in objects]
    if asked.name is not None:
        return "\n".join(table.detail(resources[0], time.time()))
    if not resources:
        where = "any namespace" if asked.all_namespaces else f"namespace {namespace}"
        return f"There is no {KIND} in {where}."
    return "\n".join(table.overview(resources, time.time(), namespaces=asked.all_namespaces))


async def _why(cluster: Cluster, namespace: str, name: str, output: str) -> str:
    resource = _parse(await cluster.get(f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}"))
    try:
        events = await _events(cluster, resource)
    except OnlineError as error:
        # Status says enough without them, and not everybody may read them.
        print(f"kubectl specdecode why: Events can't be read: {error}", file=sys.stderr)
        events = []
    told = explain.why(resource, events, time.time())
    if output == "text":
        return "\n".join(told)
    conditions = {c.type: {"status": c.status, "reason": c.reason} for c in resource.status.conditions}
    return json.dumps({"namespace": namespace, "name": name, "conditions": conditions, "why": told})


async def _events(cluster: Cluster, resource: SpecDecodeDeployment) -> list[explain.EventLine]:
    meta = resource.metadata
    selector = f"involvedObject.kind={KIND},involvedObject.name={meta.name},involvedObject.uid={meta.uid}"
    found = await cluster.get(f"/api/v1/namespaces/{meta.namespace}/events", {"fieldSelector": selector})
    lines = []
    for event in found["items"]:
        at = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
        reason, message = event.get("reason") or "", event.get("message") or ""
        lines.append(explain.EventLine(unix(at), event.get("type") or "Normal", reason, message))
    return lines


def _parse(stored: Object) -> SpecDecodeDeployment:
    try:
        return SpecDecodeDeployment.parse(stored)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise OnlineError(
            f"{stored['metadata']['name']} was written for another version of the operator ({where}: {first['msg']}): "
            "use the kubectl-specdecode of that version"
        ) from None


def _check(path: str) -> None:
    # KUBECONFIG may name several files, of which some may be missing; of none at all the loader says nothing useful.
    there = [part for part in path.split(os.pathsep) if os.path.exists(part)]
    if not any(os.path.getsize(part) for part in there):
        what = "is empty" if there else "doesn't exist"
        raise OnlineError(f"kubeconfig {path} {what}: set KUBECONFIG, or name a file with --kubeconfig")


async def _connection(kubeconfig: str | None, context: str | None) -> tuple[Configuration, str]:
    """How to reach the cluster, and the context's namespace."""
    path = kubeconfig or os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    _check(path)
    config = Configuration()
    try:
        contexts, current = list_kube_config_contexts(path)
        await load_kube_config(path, context, client_configuration=config, persist_config=False)
    except Exception as error:  # the loader raises whatever a malformed file makes it raise
        raise OnlineError(f"kubeconfig {path} can't be used: {error}; name another with --kubeconfig") from None
    chosen = next((c for c in contexts if c["name"] == context), current)
    return config, chosen["context"].get("namespace") or "default"


def _refusal(status: int, data: bytes) -> str:
    try:
        said = json.loads(data)
    except ValueError:
        said = None
    message = said.get("message") if isinstance(said, dict) else None
    message = message or f"HTTP {status}: {data[:200].decode('utf-8', 'replace')}"
    if status == 401:
        return f"{message}: log in again, or choose another --context"
    if status == 404 and isinstance(said, dict) and not (said.get("details") or {}).get("name"):
        return f"the cluster doesn't know {KIND}: install the operator's CRD"
    if status == 404:
        return f"{message}: `kubectl specdecode status -A` lists what there is"
    return str(message)
