"""Helm, and the Prometheus Operator's kinds, as these tests use them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

from tests.bed import binaries, helm
from tests.bed.api import Json
from tests.bed.control_plane import Bed
from tests.bed.operator_process import OperatorProcess
from tools.chart import CHART

RELEASE: Final = "sdo"
"""Not the name of the release file's objects, which every bed has for its operator."""
NAMESPACE: Final = "sdo-system"
FULL_NAME: Final = "sdo-specdecode-operator"
_MONITORING: Final = "github.com/prometheus-operator/prometheus-operator@v0.92.0"
_MONITORING_SUM: Final = "h1:tAbsod3+9sQsxDeAvLP27dAe9terToht5M+YdDwLGP0="


class HelmError(Exception):
    """Helm refused; the message is what it said."""


class Helm:
    """One version of helm, with its files in a folder of its own."""

    def __init__(self, major: str, bed: Bed | None, folder: Path) -> None:
        self.program = str(helm.ensure(major))
        homes = {f"HELM_{name}_HOME": str(folder / name) for name in ("CACHE", "CONFIG", "DATA")}
        self._environment = os.environ | homes
        if bed is not None:
            self._environment["KUBECONFIG"] = str(bed.kubeconfig)

    def __call__(self, *arguments: str | Path) -> str:
        """What it prints.

        Raises:
            HelmError: it exits non-zero.
        """
        command = [self.program, *map(str, arguments)]
        ran = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=400)
        if ran.returncode:
            raise HelmError(ran.stderr.strip())
        return ran.stdout

    def template(self, *settings: str, chart: Path = CHART) -> list[Json]:
        """The objects of a release, without hooks."""
        made = self("template", RELEASE, chart, "--namespace", NAMESPACE, "--no-hooks", *settings)
        return [obj for obj in yaml.safe_load_all(made) if obj]


def monitoring_crds() -> Path:
    """Folder with the CustomResourceDefinitions of ServiceMonitor, PodMonitor and PrometheusRule.

    Raises:
        BuildError: the module can't be had, or isn't what was tested.
    """
    asked = subprocess.run(
        [binaries.find_go(print), "mod", "download", "-json", _MONITORING], cwd="/", capture_output=True, text=True
    )
    if asked.returncode:
        raise binaries.BuildError(f"the module {_MONITORING} can't be downloaded: {asked.stderr or asked.stdout}")
    module = json.loads(asked.stdout)
    if module["Sum"] != _MONITORING_SUM:
        raise binaries.BuildError(f"{_MONITORING} has checksum {module['Sum']}: not what we tested")
    return Path(module["Dir"], "example", "prometheus-operator-crd")


def chart_operator(
    bed: Bed, name: str = "chart-operator", *more: str, lease: float | None = 120.0, **options: Any
) -> OperatorProcess:
    """The operator as the installed chart would run it: its Deployment's arguments, its ServiceAccount's permissions.

    Each call makes a token of its own, by which the audit log tells processes apart.

    Args:
        bed: where.
        name: of its log.
        more: further arguments.
        lease: seconds of its Lease, so long that a busy machine doesn't end it; None for the chart's.
        options: as of `OperatorProcess`.
    """
    deployment = bed.api.get("Deployment", NAMESPACE, FULL_NAME)
    pod = deployment["spec"]["template"]["spec"]
    arguments = [text for text in pod["containers"][0]["args"] if not text.startswith("--metrics-bind")]
    account = pod["serviceAccountName"]
    made = bed.service_account_kubeconfig(NAMESPACE, account)
    own = made.rename(made.with_name(f"{name}.kubeconfig"))
    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    if lease is not None:
        arguments.append(f"--lease-duration={lease:g}")
    return OperatorProcess(bed, [*arguments, *more], kubeconfig=own, user=user, name=name, **options)
