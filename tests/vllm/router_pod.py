"""A router Pod on loopback addresses: vllm-router behind Envoy with the image's configuration.

Behind it are stand-ins for engines: they say which of them answered, and can be told to fail or to stream slowly.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.vllm.install import ROOT
from tests.vllm.servers import run, wait_until_healthy

CONFIG = ROOT / "images/router/envoy.yaml"
SLOW_SECONDS = 6.0  # a stream longer than the age at which connections end here
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
    """A running router Pod: the ports that it shows, Envoy's admin port, and the engines behind it."""

    entry: int
    metrics: int
    admin: int
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


@contextlib.contextmanager
def router_pod(folder: Path, program: Callable[[str], list[str]]) -> Iterator[Pod]:
    """Two prefill and two decode stand-ins, and the Pod's two processes before them.

    Args:
        folder: for configuration and logs.
        program: the command that starts ``vllm-router`` or ``envoy``, to which arguments are added.

    Raises:
        StartError: one of them ended.
    """
    entry, admin, metrics, router, router_metrics, *engines = free_ports(9)
    stand_ins = [StandIn(name, port) for name, port in zip(("p0", "p1", "d0", "d1"), engines, strict=True)]
    with contextlib.ExitStack() as stack:
        for engine in stand_ins:
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", engine.port), engine.handler()))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
        prefill, decode = tuple(stand_ins[:2]), tuple(stand_ins[2:])
        command = [*program("vllm-router"), "--host", "127.0.0.1", "--port", str(router)]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(router_metrics)]
        command += ["--vllm-pd-disaggregation", "--kv-connector", "nixl", "--policy", "round_robin"]
        command += ["--health-check-interval-secs", "1", "--health-check-timeout-secs", "2"]
        command += ["--health-failure-threshold", "1", "--health-success-threshold", "1"]
        command += ["--worker-startup-check-interval", "1"]
        for role, members in (("--prefill", prefill), ("--decode", decode)):
            for engine in members:
                command += [role, f"http://127.0.0.1:{engine.port}"]
        routing = stack.enter_context(run(command, folder / "router.log", os.environ))
        wait_until_healthy(f"http://127.0.0.1:{router}/liveness", routing, folder / "router.log")
        config = folder / "envoy.yaml"
        config.write_text(yaml.safe_dump(proxy_config({8080: entry, 9901: admin, 9902: metrics, 30000: router})))
        envoy = [*program("envoy"), "-c", str(config), "--disable-hot-restart", "--log-level", "warning"]
        process = stack.enter_context(run(envoy, folder / "envoy.log", os.environ))
        wait_until_healthy(f"http://127.0.0.1:{entry}/readiness", process, folder / "envoy.log")
        yield Pod(entry, metrics, admin, prefill, decode)
