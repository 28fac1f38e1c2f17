"""`status` and `why` against a small API server on a loopback address."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from specdecode.api import timestamp
from specdecode.cli.main import main
from tests.unit.cli.resources import SERVING, stored

RESOURCES = "/apis/specdecode.dev/v1alpha1/namespaces/models/specdecodedeployments"
EVENTS = "/api/v1/namespaces/models/events"


class Server(ThreadingHTTPServer):
    """Answers GET from a table of documents; everything else is not found."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.documents: dict[str, Any] = {}
        self.asked: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append(self.path)
        if self.headers["Authorization"] != "Bearer secret":
            self._answer(401, {"kind": "Status", "message": "Unauthorized"})
        elif path in self.server.documents:
            self._answer(200, self.server.documents[path])
        else:
            details = {"name": path.rsplit("/", 1)[1]} if RESOURCES in path else {}
            message = "not found" if details else "the server could not find the requested resource"
            self._answer(404, {"kind": "Status", "message": message, "details": details})

    def _answer(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config"
    contexts = [
        {"name": name, "context": {"cluster": "c", "user": user, **namespace}}
        for name, user, namespace in (("here", "u", {"namespace": "models"}), ("stranger", "x", {}))
    ]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}, {"name": "x", "user": {"token": "wrong"}}],
        "contexts": contexts,
        "current-context": "here",
    }
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.fixture
def plain(server: Server, kubeconfig: Path) -> Server:
    found = stored(SERVING)
    server.documents[f"{RESOURCES}/plain"] = found
    server.documents[RESOURCES] = {"items": [found]}
    server.documents["/apis/specdecode.dev/v1alpha1/specdecodedeployments"] = {"items": [found]}
    server.documents[EVENTS] = {
        "items": [
            {
                "type": "Normal",
                "reason": "Promoted",
                "message": "Revision 1 is stable",
                "lastTimestamp": timestamp(time.time() - 240),
                "metadata": {},
            }
        ]
    }
    return server


def test_status_of_a_namespace(plain: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "NAME"
    assert line.split()[:3] == ["plain", "deepseek-ai/DeepSeek-V3.2", "3"]


def test_status_of_all_namespaces(plain: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "-A"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["models", "plain"]


def test_status_of_one_in_full(plain: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "plain", "-n", "models"]) == 0
    assert "Ready        True (UpToDate) Revision 1 is what the spec asks for" in capsys.readouterr().out


def test_status_as_json(plain: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "-o", "json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["namespace"], listed["name"], listed["generation"]) == ("models", "plain", 2)
    assert main(["status", "plain", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == listed
    assert listed["status"]["stable"]["decode"] == 4


def test_an_empty_namespace(server: Server, kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.documents[RESOURCES] = {"items": []}
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "There is no SpecDecodeDeployment in namespace models.\n"


def test_watch_shows_each_change_once(
    plain: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = 0

    async def tick(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            plain.documents[f"{RESOURCES}/plain"]["metadata"]["resourceVersion"] = "8"
        if looks == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("specdecode.cli.online.asyncio.sleep", tick)
    assert main(["status", "plain", "--watch", "-o", "json"]) == 130
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_why_with_events(plain: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "plain"]) == 0
    first, head, event = capsys.readouterr().out.splitlines()
    assert first == "Revision 1 serves and is what the spec asks for. Nothing is under way."
    assert head == "Recent events:"
    assert event.startswith("  4m")
    assert event.endswith(" ago  Normal  Promoted: Revision 1 is stable")
    (asked,) = [path for path in plain.asked if path.startswith(EVENTS)]
    assert "involvedObject.uid=u-1" in parse_qs(urlsplit(asked).query)["fieldSelector"][0]


def test_why_as_json(plain: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "plain", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["conditions"]["Ready"] == {"status": "True", "reason": "UpToDate"}
    assert told["why"][0].startswith("Revision 1 serves")


def test_why_answers_without_events(plain: Server, capsys: pytest.CaptureFixture[str]) -> None:
    del plain.documents[EVENTS]
    assert main(["why", "plain"]) == 0
    out, err = capsys.readouterr()
    assert out == "Revision 1 serves and is what the spec asks for. Nothing is under way.\n"
    assert "Events can't be read" in err


def test_a_resource_that_is_not_there(plain: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "other"]) == 1
    assert "`kubectl specdecode status -A` lists what there is" in capsys.readouterr().err


def test_a_cluster_without_the_crd(server: Server, kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "-A"]) == 1
    assert "install the operator's CRD" in capsys.readouterr().err


def test_a_token_that_is_refused(plain: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--context", "stranger", "-n", "models"]) == 1
    assert "Unauthorized: log in again, or choose another --context" in capsys.readouterr().err


def test_a_server_that_is_gone(server: Server, kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    kubeconfig.write_text(yaml.safe_dump(config))
    assert main(["status"]) == 1
    assert "the API server can't be reached" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "said"), [(None, "doesn't exist"), ("", "is empty")])
def test_a_kubeconfig_that_is_not_there(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none"
    if text is not None:
        path.write_text(text)
    assert main(["status", "--kubeconfig", str(path)]) == 1
    out, err = capsys.readouterr()
    assert (out, f"kubeconfig {path} {said}: set KUBECONFIG" in err) == ("", True)


@pytest.mark.parametrize("text", ["{]", "kind: Config\n"])
def test_a_kubeconfig_that_cannot_be_used(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad"
    path.write_text(text)
    assert main(["status", "--kubeconfig", str(path)]) == 1
    assert f"kubeconfig {path} can't be used" in capsys.readouterr().err


def test_a_resource_of_another_version(plain: Server, capsys: pytest.CaptureFixture[str]) -> None:
    plain.documents[f"{RESOURCES}/plain"]["spec"]["speculation"] = {}
    assert main(["why", "plain"]) == 1
    assert "was written for another version of the operator (spec.speculation.depth" in capsys.readouterr().err
