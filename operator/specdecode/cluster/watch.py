"""kopf's watches, as a mere source of events for the store.

Only `on.event` handlers: they write nothing to the API server, need no finalizer and run on followers too.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain, repeat
from typing import Any, Final

import kopf
from kubernetes.aio.client.configuration import Configuration

from specdecode.telemetry import Health

from .kinds import Kind, selector
from .store import Store

log: Final = logging.getLogger(__name__)

_SERVER_TIMEOUT: Final = 300
_CLIENT_TIMEOUT: Final = 330
_TOKEN_LIFE: Final = datetime.timedelta(minutes=5)


class _Backoffs:
    """Seconds between attempts, without end: a refused watch is no reason to die. Health tells of it instead."""

    def __iter__(self) -> Iterator[float]:
        return chain((0.5, 1.0, 2.0, 4.0, 8.0, 16.0), repeat(30.0))


class _NoDiff(kopf.DiffBaseStorage):
    """kopf's memory of what an object was: none. Building it would copy every object that an event brings."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        """Keep nothing."""


class _NoProgress(kopf.ProgressStorage):
    """kopf's memory of how far handlers are: none, for the same reason."""

    def fetch(self, **_: Any) -> kopf.ProgressRecord | None:
        return None

    def store(self, **_: Any) -> None:
        """Keep nothing."""

    def purge(self, **_: Any) -> None:
        """Nothing is kept."""

    def touch(self, **_: Any) -> None:
        """Nothing is kept."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


async def run(
    *,
    config: Callable[[], Awaitable[Configuration]],
    kinds: tuple[Kind, ...],
    namespaces: tuple[str, ...],
    store: Store,
    health: Health,
    clock: Callable[[], float],
    ready: asyncio.Event,
    stop: asyncio.Event,
) -> None:
    """Watch until ``stop`` is set.

    Args:
        config: loads the configuration anew, for tokens that expire.
        kinds: what to watch; the cluster must serve it.
        namespaces: where; empty for everywhere.
        store: where events go.
        health: a heartbeat for each kind.
        clock: monotonic seconds.
        ready: set once kopf has installed its signal handlers, which the caller may then replace.
        stop: ends the watches.
    """
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection(await config())

    kopf.on.login(id="login", registry=registry)(login)
    for kind in kinds:
        kopf.on.event(kind.group, kind.version, kind.plural, id=f"watch-{kind.plural}", registry=registry)(
            _handler(kind, store, health, clock)
        )
    # kopf would name itself after the process's user, who has no name in a container and ends the process there.
    identity: Any = "specdecode-operator"
    await kopf.operator(
        registry=registry,
        settings=settings(kinds),
        identity=identity,
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        ready_flag=ready,
        stop_flag=stop,
    )


def settings(kinds: tuple[Kind, ...]) -> kopf.OperatorSettings:
    """kopf's settings: it watches, and does nothing else."""
    s = kopf.OperatorSettings()
    s.posting.enabled = False
    s.scanning.disabled = True
    s.peering.standalone = True
    s.persistence.diffbase_storage = _NoDiff()
    s.persistence.progress_storage = _NoProgress()
    s.watching.server_timeout = _SERVER_TIMEOUT
    s.watching.client_timeout = _CLIENT_TIMEOUT
    s.watching.chunk_size = 500
    s.watching.initial_streaming = False
    s.networking.request_timeout = 60.0
    s.networking.connect_timeout = 10.0
    s.networking.enforce_retry_after = True
    s.networking.error_backoffs = _Backoffs()
    for kind in kinds:
        if labels := selector(kind):
            s.watching.label_selectors[kind.group, kind.version, kind.plural] = labels
    return s


async def connection(config: Configuration) -> kopf.ConnectionInfo:
    """kopf's view of a client configuration."""
    header: str | None = await config.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=config.host,
        ca_path=config.ssl_ca_cert,
        insecure=not config.verify_ssl,
        scheme=scheme.capitalize() or None,
        token=token or None,
        certificate_path=config.cert_file,
        private_key_path=config.key_file,
        proxy_url=config.proxy,
        # Tokens that rotate are read again in time; a client certificate needs no second look.
        expiration=datetime.datetime.now(datetime.UTC) + _TOKEN_LIFE if token else None,
    )


def _handler(kind: Kind, store: Store, health: Health, clock: Callable[[], float]) -> Callable[..., Awaitable[None]]:
    async def handle(event: dict[str, Any], **_: Any) -> None:
        # kopf logs what is raised here and tries nothing again, so nothing may be.
        obj = event["object"]
        health.beat(f"watch of {kind.plural}", clock())
        if event["type"] == "DELETED":
            metadata = obj["metadata"]
            store.remove(metadata["uid"], metadata.get("resourceVersion", ""))
        else:
            store.put(kind, obj)

    return handle
