"""The router Pod's two processes, vllm-router behind Envoy with the image's configuration, tried from outside."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from specdecode.scrape.exposition import proxy_page
from tests.vllm.install import VENV
from tests.vllm.router_pod import BODY, JSON, SLOW, Pod, router_pod


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    with router_pod(tmp_path_factory.mktemp("router"), lambda name: [str(VENV / "bin" / name)]) as made:
        yield made


@pytest.fixture(autouse=True)
def all_engines_well(pod: Pod) -> Iterator[None]:
    yield
    for engine in pod.prefill + pod.decode:
        engine.failing = False
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and pod.ask("GET", "/readiness")[1].replace(" ", "").count('"healthy":2') < 2:
        time.sleep(0.2)


def test_completions_reach_prefill_and_decode(pod: Pod) -> None:
    status, body = pod.ask("POST", "/v1/completions", BODY)
    assert status == 200
    assert json.loads(body)["engine"] in ("d0", "d1")
    assert any(engine.asked for engine in pod.prefill)
    assert pod.ask("GET", "/v1/models")[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/remove_worker?url=http://127.0.0.1:1"),
        ("POST", "/add_worker?url=http://127.0.0.1:1"),
        ("POST", "/flush_cache"),
        ("DELETE", "/workers/http%3A%2F%2F127.0.0.1%3A1"),
        ("GET", "/list_workers"),
        ("GET", "/workers"),
        ("GET", "/get_loads"),
        ("GET", "/get_server_info"),
        ("GET", "/get_model_info"),
        ("GET", "/health_generate"),
        ("POST", "/sleep"),
        ("POST", "/reset_prefix_cache"),
        ("POST", "/start_profile"),
        ("POST", "/collective_rpc"),
        ("POST", "/foo/bar"),
        ("POST", "/health"),
        ("POST", "/readiness"),
        ("GET", "/metrics"),
        ("GET", "/stats/prometheus"),
        ("POST", "/quitquitquit"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/unload_lora_adapter"),
        ("POST", "/v1/../sleep"),
        ("POST", "/v1/x/../../sleep"),
        ("POST", "/v1/%2e%2e/sleep"),
        ("POST", "/v1/..%2fsleep"),
        ("POST", "/v1/..%5csleep"),
        ("POST", "//sleep"),
        ("POST", "/V1/../sleep"),
    ],
)
def test_nothing_else_gets_in(pod: Pod, method: str, path: str) -> None:
    before = pod.asked()
    status, _ = pod.ask(method, path, BODY if method == "POST" else None)
    assert status in (400, 404)
    assert pod.asked() == before


def test_health_says_whether_it_serves_and_counts_as_no_request(pod: Pod) -> None:
    for path in ("/health", "/readiness", "/liveness"):
        assert pod.ask("GET", path)[0] == 200, path
    pod.decode[0].failing = True
    time.sleep(4)
    assert pod.ask("GET", "/health")[0] == 200, "one of two decode engines is well"
    pod.decode[1].failing = True
    time.sleep(4)
    before = proxy_page(pod.statistics(), t=0.0, arm="stable", pod="uid")
    assert pod.ask("GET", "/health")[0] == 503
    assert pod.ask("GET", "/readiness")[0] == 503
    assert pod.ask("GET", "/liveness")[0] == 200
    after = proxy_page(pod.statistics(), t=1.0, arm="stable", pod="uid")
    assert (after.requests_finished, after.requests_failed) == (before.requests_finished, before.requests_failed)
    assert pod.ask("POST", "/v1/completions", BODY)[0] == 503
    last = proxy_page(pod.statistics(), t=2.0, arm="stable", pod="uid")
    assert last.requests_failed == (after.requests_failed or 0) + 1


def test_a_failed_attempt_is_retried_at_another_engine(pod: Pod) -> None:
    """Of many at once: one after another they would find the other engine at the second try by round robin alone."""
    pod.decode[0].failing = True
    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(pod.ask, "POST", "/v1/completions", BODY) for _ in range(16)]
    assert [answer.result()[0] for answer in asked] == [200] * 16

    pod.decode[1].failing = True
    before = len(pod.decode[0].asked) + len(pod.decode[1].asked)
    assert pod.ask("POST", "/v1/completions", BODY)[0] >= 500
    assert len(pod.decode[0].asked) + len(pod.decode[1].asked) - before <= 5


def test_metrics_port_shows_statistics_and_nothing_of_the_admin_interface(pod: Pod) -> None:
    assert pod.ask("POST", "/v1/completions", BODY)[0] == 200
    assert proxy_page(pod.statistics(), t=0.0, arm="stable", pod="uid").requests_finished
    for method, path in (
        ("POST", "/quitquitquit"),
        ("GET", "/config_dump"),
        ("GET", "/stats"),
        ("POST", "/healthcheck/fail"),
        ("POST", "/metrics"),
        ("GET", "/metrics/../quitquitquit"),
        ("GET", "/v1/models"),
    ):
        assert pod.ask(method, path, port=pod.metrics)[0] in (400, 404), path
    assert pod.ask("GET", "/liveness")[0] == 200


def test_no_stream_is_cut_by_the_age_of_its_connection(pod: Pod) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", pod.entry, timeout=30)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", SLOW, JSON)
        assert connection.getresponse().read().count(b"data:") == 12


def test_a_connection_in_use_is_asked_to_close_when_it_is_old(pod: Pod) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", pod.entry, timeout=30)
    with contextlib.closing(connection):
        told_to_close = False
        deadline = time.monotonic() + 10
        while not told_to_close and time.monotonic() < deadline:
            connection.request("POST", "/v1/completions", BODY, JSON)
            response = connection.getresponse()
            response.read()
            assert response.status == 200
            told_to_close = response.getheader("Connection") == "close"
            time.sleep(0.2)
        assert told_to_close
