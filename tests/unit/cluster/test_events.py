from __future__ import annotations

import asyncio
from typing import cast

import pytest

from specdecode.cluster import events
from specdecode.cluster.client import ApiError, Client
from specdecode.cluster.kinds import Object
from specdecode.rollout.types import EventNote
from specdecode.telemetry import Metrics
from tests.unit.cluster.fakes import Clock, FakeClient

RESOURCE: Object = {"metadata": {"namespace": "a", "name": "glm", "uid": "u", "resourceVersion": "7"}}
NOTE = EventNote("Warning", "RolledBack", "it fell by 31 %")


def recorder(client: FakeClient, clock: Clock) -> tuple[events.Recorder, Metrics]:
    metrics = Metrics("test")
    return events.Recorder(cast(Client, client), metrics, "me", clock), metrics


async def sent(each: events.Recorder, client: FakeClient) -> list[Object]:
    """Let it send what it has; the Events that the cluster now holds."""
    task = asyncio.ensure_future(each.run())
    await each.drain(1.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return [o for o in client.objects.values() if o["kind"] == "Event"]


async def test_an_event_says_what_happened_to_what_and_when() -> None:
    client = FakeClient()
    each, _ = recorder(client, Clock(0.0))
    each.record(RESOURCE, NOTE)
    (event,) = await sent(each, client)
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "RolledBack", "it fell by 31 %")
    assert event["involvedObject"]["uid"] == "u"
    assert event["involvedObject"]["kind"] == "SpecDecodeDeployment"
    assert event["metadata"]["namespace"] == "a"
    assert event["metadata"]["name"].startswith("glm.")
    assert event["firstTimestamp"] == "1970-01-01T00:00:00Z"
    assert event["reportingInstance"] == "me"


async def test_the_same_event_isn_t_sent_twice_within_a_while() -> None:
    client, clock = FakeClient(), Clock()
    each, _ = recorder(client, clock)
    each.record(RESOURCE, NOTE)
    each.record(RESOURCE, NOTE)
    each.record(RESOURCE, EventNote("Warning", "RolledBack", "another"))
    assert len(await sent(each, client)) == 2
    clock.now += events.REPEAT
    each.record(RESOURCE, NOTE)
    assert len(await sent(each, client)) == 3


async def test_a_full_queue_drops_and_counts() -> None:
    client = FakeClient()
    each, metrics = recorder(client, Clock())
    for i in range(events.QUEUE + 3):
        each.record(RESOURCE, EventNote("Normal", "Note", str(i)))
    assert metrics.registry.get_sample_value("specdecode_events_dropped_total") == 3.0


async def test_a_refused_event_is_lost_and_the_next_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    client = FakeClient()
    refusals = iter([ApiError(403, "Forbidden", "not you")])

    def refuse(*_: str) -> None:
        for error in refusals:
            raise error

    client.before = refuse
    each, _ = recorder(client, Clock())
    each.record(RESOURCE, NOTE)
    each.record(RESOURCE, EventNote("Normal", "Note", "second"))
    assert [e["message"] for e in await sent(each, client)] == ["second"]
    assert "not you" in caplog.text


def test_a_long_message_is_clipped_to_what_the_api_server_takes() -> None:
    event = events.event(RESOURCE, EventNote("Normal", "Note", "ä" * 2000), "me", 0.0)
    assert len(event["message"].encode()) <= 1024
    assert event["message"].endswith("ä...")
