"""A control plane without our CRD, which the chart brings, and helm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed.control_plane import Bed
from tests.bed.fleet import Fleet
from tests.chart.programs import NAMESPACE, RELEASE, Helm, monitoring_crds
from tools.chart import CHART


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    """A control plane with the Gateway API's and the Prometheus Operator's kinds."""
    with Bed() as running:
        running.install_gateway_api()
        for kind in ("servicemonitors", "podmonitors", "prometheusrules"):
            file = monitoring_crds() / f"monitoring.coreos.com_{kind}.yaml"
            running.kubectl("apply", "--server-side", "-f", str(file))
            running.kubectl("wait", "--for=condition=Established", f"crd/{kind}.monitoring.coreos.com")
        yield running


@pytest.fixture(scope="session")
def fleet(bed: Bed) -> Iterator[Fleet]:
    with Fleet(bed) as running:
        running.play({})
        yield running


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm without a cluster."""
    return Helm("3", None, tmp_path_factory.mktemp("renderer"))


@pytest.fixture(scope="session")
def helm3(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm("3", bed, tmp_path_factory.mktemp("helm3"))


@pytest.fixture(params=["3", "4"])
def helm(request: pytest.FixtureRequest, bed: Bed, tmp_path: Path) -> Helm:
    """Each tested version of helm."""
    return Helm(request.param, bed, tmp_path)


@pytest.fixture
def release(bed: Bed, helm3: Helm) -> Iterator[Helm]:
    """The chart as it is, installed; taken away afterwards with all of its traces."""
    try:
        helm3("install", RELEASE, CHART, "--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "300s")
        yield helm3
    finally:
        clean(bed, helm3)


def clean(bed: Bed, helm: Helm) -> None:
    """Nothing of a release is left, whatever a test has made of it."""
    helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--ignore-not-found")
    # Helm didn't make it, so it doesn't go with the release.
    bed.kubectl("delete", "leases", "--all", "--namespace", NAMESPACE)
    bed.kubectl("delete", "crd", "specdecodedeployments.specdecode.dev", "--ignore-not-found", "--timeout=300s")
