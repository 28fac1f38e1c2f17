"""The chart installed by helm into a namespace with restricted Pod security, as a person would."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from tests.bed import helm
from tests.bed.control_plane import ROOT
from tests.bed.processes import BedError
from tests.node.node import Node
from tests.node.product import OPERATOR, ROUTER
from tests.node.settings import run_folder
from tests.node.workshop import make_namespace

CHART: Final = ROOT / "charts" / "specdecode-operator"
NAMESPACE: Final = "specdecode-system"
RELEASE: Final = "specdecode-operator"
VALUES: Final = {
    "image.registry": "localhost",
    "routerImage.registry": "localhost",
    "image.tag": OPERATOR.rpartition(":")[2],
    "routerImage.tag": ROUTER.rpartition(":")[2],
    # Two processors for all engines: the operator comes before them, and a late renewal doesn't end it.
    "resources.requests.cpu": "500m",
    "leaderElection.durationSeconds": "40",
}


class Helm:
    """Helm 3 against the node, with its own files in the node's folder."""

    def __init__(self, node: Node) -> None:
        self._program = helm.ensure("3")
        homes = {f"HELM_{name}_HOME": str(run_folder() / "helm" / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        self._environment = os.environ | homes | {"KUBECONFIG": str(node.kubeconfig)}

    def __call__(self, *arguments: str | Path) -> str:
        """What it prints.

        Raises:
            BedError: it exits non-zero.
        """
        words = [str(self._program), *map(str, arguments)]
        ran = subprocess.run(words, env=self._environment, capture_output=True, text=True, timeout=600, check=False)
        if ran.returncode:
            raise BedError(f"helm {arguments[0]} exited with {ran.returncode}: {ran.stderr.strip()}")
        return ran.stdout


def install(node: Node) -> str:
    """The release, whose operator is Ready when this returns; what helm printed."""
    make_namespace(node, NAMESPACE)
    settings = [word for name, value in VALUES.items() for word in ("--set", f"{name}={value}")]
    return Helm(node)(
        "upgrade", "--install", RELEASE, CHART, "--namespace", NAMESPACE, *settings, "--wait", "--timeout", "300s"
    )


def remove(node: Node) -> None:
    """Takes the release and its namespace away, if they are there."""
    Helm(node)("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found", "--wait")
    node.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
