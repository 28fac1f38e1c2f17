"""The router Pod's two processes, vllm-router behind Envoy with the image's configuration, tried from outside.

Engines are stand-ins: they say which of them answered, and can be told to fail or to stream slowly.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

from specdecode.scrape.exposition import proxy_page
from tests.vllm.install import ROOT, VENV
from tests.vllm.servers import run, wait_until_healthy

CONFIG = ROOT / "images/router/envoy.yaml"
SLOW_SECONDS = 6.0  # a stream longer than the age at which this test lets connections end
AGE = "2s"
BODY = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 4}).encode()
SLOW = json.dumps({"model": "tiny", "prompt": "slow", "max_tokens": 4, "stream": True}).encode()
JSON = {"Content-Type": "application/json"}


@dataclass
class StandIn:
    """An engine that answers as vLLM does, and remembers what it was asked."""

    name: str
    port: int
    failing: bool = False
    asked: list[str] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """The class that answers for it."""
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                del format, args

            def do_GET(self) -> None:
                self.answer(503 if engine.failing else 200, {"data": []})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                engine.asked.append(self.path)
                if engine.failing:
                    self.answer(500, {"error": "told to fail"})
                elif body.get("stream") and body["prompt"] == "slow":
                    self.stream()
                else:
                    self.answer(200, {"engine": engine.name, "choices": [], "kv_transfer_params": {"a": 1}})

            def answer(self, status: int, body: dict[str, Any]) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def stream(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for _ in range(12):
                    event = b"data: {}\n\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                    self.wfile.flush()
                    time.sleep(SLOW_SECONDS / 12)
                self.wfile.write(b"0\r\n\r\n")

        return Handler


@dataclass(frozen=True)
class Pod:
    """A running router Pod: the ports that it shows, and the engines behind it."""

    entry: int
    metrics: int
    prefill: tuple[StandIn, ...]
    decode: tuple[StandIn, ...]

    def ask(self, method: str, path: str, body: bytes | None = None, port: int | None = None) -> tuple[int, str]:
        """Status and body of an answer, over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.entry, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, JSON if body else {})
            response = connection.getresponse()
            return response.status, response.read().decode()

    def statistics(self) -> str:
        """What the metrics port shows."""
        return self.ask("GET", "/metrics", port=self.metrics)[1]

    def asked(self) -> list[str]:
        """Paths that were posted to an engine."""
        return [path for engine in self.prefill + self.decode for path in engine.asked]


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def proxy_config(ports: dict[int, int]) -> dict[str, Any]:
    """The image's configuration on other ports of the loopback address, with connections of a shorter life."""

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            value = {key: moved(inner) for key, inner in value.items()}
            if "port_value" in value:
                value = {"address": "127.0.0.1", "port_value": ports[value["port_value"]]}
            if "max_connection_duration" in value:
                value["max_connection_duration"] = AGE
            return value
        return [moved(inner) for inner in value] if isinstance(value, list) else value

    config: dict[str, Any] = moved(yaml.safe_load(CONFIG.read_text()))
    return config


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    folder = tmp_path_factory.mktemp("router")
    entry, admin, metrics, router, router_metrics, *engines = free_ports(9)
    stand_ins = [StandIn(name, port) for name, port in zip(("p0", "p1", "d0", "d1"), engines, strict=True)]
    with contextlib.ExitStack() as stack:
        for engine in stand_ins:
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", engine.port), engine.handler()))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
        prefill, decode = tuple(stand_ins[:2]), tuple(stand_ins[2:])
        command = [str(VENV / "bin/vllm-router"), "--host", "127.0.0.1", "--port", str(router)]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(router_metrics)]
        command += ["--vllm-pd-disaggregation", "--kv-connector", "nixl", "--policy", "round_robin"]
        command += ["--health-check-interval-secs", "1", "--health-check-timeout-secs", "1"]
        command += ["--health-failure-threshold", "2", "--health-success-threshold", "1"]
        command += ["--worker-startup-check-interval", "1"]
        for role, members in (("--prefill", prefill), ("--decode", decode)):
            for engine in members:
                command += [role, f"http://127.0.0.1:{engine.port}"]
        routing = stack.enter_context(run(command, folder / "router.log", os.environ))
        wait_until_healthy(f"http://127.0.0.1:{router}/liveness", routing, folder / "router.log")
        config = folder / "envoy.yaml"
        config.write_text(yaml.safe_dump(proxy_config({8080: entry, 9901: admin, 9902: metrics, 30000: router})))
        envoy = [str(VENV / "bin/envoy"), "-c", str(config), "--disable-hot-restart", "--log-level", "warning"]
        process = stack.enter_context(run(envoy, folder / "envoy.log", os.environ))
        wait_until_healthy(f"http://127.0.0.1:{entry}/readiness", process, folder / "envoy.log")
        yield Pod(entry, metrics, prefill, decode)


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


def test_a_failed_attempt_is_retried_once(pod: Pod) -> None:
    pod.decode[0].failing = True
    assert [pod.ask("POST", "/v1/completions", BODY)[0] for _ in range(4)] == [200] * 4

    pod.decode[1].failing = True
    before = len(pod.decode[0].asked) + len(pod.decode[1].asked)
    assert pod.ask("POST", "/v1/completions", BODY)[0] >= 500
    assert len(pod.decode[0].asked) + len(pod.decode[1].asked) - before <= 2


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
