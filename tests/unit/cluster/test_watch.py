from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration

from specdecode.cluster import watch
from specdecode.cluster.kinds import POD, SDD, WATCHED, selector
from specdecode.cluster.store import Store
from specdecode.telemetry import Health
from tests.unit.cluster.fakes import Clock
from tests.unit.cluster.test_store import pod


async def connected(**fields: Any) -> Any:
    config = Configuration(host="https://api:6443")
    for name, value in fields.items():
        setattr(config, name, value)
    return await watch.connection(config)


@pytest.mark.parametrize(
    ("header", "sent"),
    [
        ("Bearer secret", "Bearer secret"),
        ("bearer secret", "Bearer secret"),
        ("Basic " + base64.b64encode(b"a:b").decode(), "Basic " + base64.b64encode(b"a:b").decode()),
        ("secret", "Bearer secret"),
    ],
)
async def test_kopf_presents_the_client_s_own_token_and_asks_for_it_again_in_time(header: str, sent: str) -> None:
    info = await connected(api_key={"BearerToken": header})
    assert info.as_http_headers() == {"Authorization": sent}
    assert info.expiration is not None


async def test_certificates_are_passed_on_and_don_t_expire() -> None:
    info = await connected(cert_file="/c", key_file="/k", ssl_ca_cert="/ca", verify_ssl=True, proxy="http://p:1")
    assert (info.certificate_path, info.private_key_path, info.ca_path) == ("/c", "/k", "/ca")
    assert (info.server, info.insecure, info.proxy_url) == ("https://api:6443", False, "http://p:1")
    assert info.as_http_headers() == {}
    assert info.expiration is None


def test_kopf_is_told_to_write_nothing_and_to_filter_at_the_server() -> None:
    settings = watch.settings(WATCHED)
    assert settings.posting.enabled is False
    assert settings.scanning.disabled is True
    assert settings.watching.label_selectors["v1", "pods"] == "specdecode.dev/deployment"
    assert len(settings.watching.label_selectors) == len(WATCHED) - 1
    backoffs = settings.networking.error_backoffs
    assert isinstance(backoffs, Iterable)
    assert list(islice(backoffs, 100))[-1] == 30.0


async def test_kopf_needs_no_user_with_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its image the operator runs as a number that no passwd file knows."""
    told: dict[str, Any] = {}

    async def operator(**arguments: Any) -> None:
        told.update(arguments)

    async def config() -> Configuration:
        return Configuration(host="https://api:6443")

    monkeypatch.setattr("kopf.operator", operator)
    await watch.run(
        config=config,
        kinds=WATCHED,
        namespaces=(),
        store=Store(lambda _key: None),
        health=Health(),
        clock=Clock(),
        ready=asyncio.Event(),
        stop=asyncio.Event(),
    )
    assert told["identity"] == "specdecode-operator"


async def test_events_feed_the_store_and_are_a_sign_of_life() -> None:
    health, clock = Health(), Clock()
    store = Store(lambda _key: None)
    handle = watch._handler(POD, store, health, clock)
    health.expect("watch of pods", 10.0, 0.0)
    await handle(event={"type": None, "object": pod("p", 1)})
    await handle(event={"type": "ADDED", "object": pod("q", 2)})
    assert len(store.children(("a", "glm"))) == 2
    await handle(event={"type": "DELETED", "object": pod("p", 3)})
    assert [o["metadata"]["name"] for o in store.children(("a", "glm"))] == ["q"]
    assert health.dead(clock.now + 5.0) == []


def test_every_resource_is_ours_and_of_other_kinds_what_has_our_label() -> None:
    assert selector(SDD) == ""
    assert selector(POD) == "specdecode.dev/deployment"
