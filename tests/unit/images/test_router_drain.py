"""The pre-stop hook of a router Pod, against a stand-in for Envoy's admin interface."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[3] / "images" / "router" / "specdecode_router_drain.py"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The hook, with a clock that its own sleeps move."""
    spec = importlib.util.spec_from_file_location("specdecode_router_drain", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds

    monkeypatch.setattr(module, "time", Clock())
    return module


@contextmanager
def admin(pages: list[str]) -> Iterator[tuple[str, list[str]]]:
    """An admin interface that answers with one page after the other, then with the last; and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._answer("OK\n")

        def do_GET(self) -> None:
            self._answer(pages.pop(0) if len(pages) > 1 else pages[0])

        def _answer(self, body: str) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


def _page(active: int) -> str:
    return f"http.entry.downstream_rq_active: {active}\n"


def test_it_waits_until_nothing_is_left(hook: ModuleType) -> None:
    with admin([_page(2), _page(1), _page(0)]) as (url, asked):
        assert hook.drain(url, 5.0, 60.0)
    assert asked[0] == "POST /healthcheck/fail"
    assert len(asked) == 4
    assert hook.time.monotonic() == 6.0


def test_it_gives_up_at_last(hook: ModuleType) -> None:
    with admin([_page(1)]) as (url, _):
        assert not hook.drain(url, 5.0, 8.0)
    assert hook.time.monotonic() == 8.0


def test_a_proxy_that_is_gone_is_not_waited_for(hook: ModuleType) -> None:
    with admin([_page(1)]) as (url, _):
        pass
    assert hook.drain(url, 5.0, 60.0)
    assert hook.time.monotonic() == 0.0


def test_an_answer_that_is_not_envoys(hook: ModuleType) -> None:
    with admin(["hello\n"]) as (url, _):
        assert hook.drain(url, 5.0, 60.0)
        with pytest.raises(hook.ProxyGoneError, match="downstream_rq_active"):
            hook.active(url)


def test_the_pod_template_asks_for_it_as_it_is() -> None:
    from specdecode.workload import render
    from tests.unit.engine.specs import resource

    for container in render(resource(), router_image="r:1")["router"]["spec"]["containers"]:
        words = container["lifecycle"]["preStop"]["exec"]["command"]
        assert words == ["specdecode-router-drain", "--at-least", "5", "--at-most", "1800"]
