"""Helm's whole life of a release on a real API server, with the real operator as the chart runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from specdecode.api.names import CRD_NAME
from tests.bed.api import Json
from tests.bed.audit import requests
from tests.bed.control_plane import ROOT, Bed, is_true
from tests.bed.fleet import Fleet
from tests.bed.processes import BedError, wait_for
from tests.chart.conftest import clean
from tests.chart.programs import FULL_NAME, NAMESPACE, RELEASE, Helm, HelmError, chart_operator
from tools.chart import CHART

pytestmark = pytest.mark.needs_bed

SERVING = "serving"


@pytest.fixture
def serving(bed: Bed) -> Iterator[str]:
    """A namespace for the sample."""
    yield bed.namespace(SERVING)
    bed.kubectl("delete", "namespace", SERVING, "--timeout=300s")


@pytest.fixture
def cleaned(bed: Bed, helm: Helm) -> Iterator[Helm]:
    """Helm, with no release left after the test."""
    yield helm
    clean(bed, helm)


def changed_chart(folder: Path, version: str, change: Any) -> Path:
    """A copy of the chart with another version and another CRD."""
    copy = folder / f"chart-{version}"
    shutil.copytree(CHART, copy)
    about = yaml.safe_load((copy / "Chart.yaml").read_text()) | {"version": version, "appVersion": version}
    (copy / "Chart.yaml").write_text(yaml.safe_dump(about))
    file = copy / "files" / "crd.yaml"
    crd = yaml.safe_load(file.read_text())
    change(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])
    file.write_text(yaml.safe_dump(crd))
    return copy


def add_field(properties: Json) -> None:
    properties["oneMore"] = {"type": "string"}


def drop_guard(properties: Json) -> None:
    del properties["guard"]


def spec_fields(bed: Bed) -> set[str]:
    crd = bed.api.get("CustomResourceDefinition", None, CRD_NAME)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return set(schema["properties"]["spec"]["properties"])


def sample(bed: Bed) -> Json:
    return bed.api.get("SpecDecodeDeployment", SERVING, "mimo")


def apply_sample(bed: Bed) -> None:
    bed.kubectl("apply", "-n", SERVING, "-f", str(ROOT / "examples" / "01-plain.yaml"))


def is_ready(bed: Bed) -> bool:
    return is_true(sample(bed), "Ready")


def pods(bed: Bed) -> dict[str, str]:
    found = bed.api.list("Pod", SERVING)
    staying = [pod["metadata"] for pod in found if "deletionTimestamp" not in pod["metadata"]]
    return {meta["name"]: meta["uid"] for meta in staying}


def is_whole(bed: Bed) -> bool:
    """All Pods of the sample and no others are there: routers that began with fewer engines have been replaced."""
    routers = bed.api.list("Pod", SERVING, "specdecode.dev/role=router")
    known = [pod["metadata"].get("annotations", {}).get("specdecode.dev/backends") for pod in routers]
    return known == ["2/4"] * 2 and len(pods(bed)) == 2 + 4 + 2


def is_watched(bed: Bed) -> bool:
    """Whether the garbage collector watches the sample's kind, which begins some time after its definition came.

    One that goes before leaves Pods whose owner nobody can ask for. With no operator nobody else watches it.
    """
    page = bed.kubectl("get", "--raw", "/metrics")
    watches = re.findall(r'apiserver_longrunning_requests{[^}]*"specdecodedeployments"[^}]*"WATCH"[^}]*} (\S+)', page)
    return any(float(number) > 0 for number in watches)


def revisions(bed: Bed) -> list[str]:
    found = bed.api.list("ControllerRevision", SERVING, "specdecode.dev/deployment=mimo")
    return sorted(r["metadata"]["name"] for r in found if r["metadata"]["name"].count("-") == 1)


def test_install_upgrade_rollback_uninstall(
    bed: Bed, fleet: Fleet, cleaned: Helm, serving: str, tmp_path: Path
) -> None:
    helm, began = cleaned, time.time()
    where = ("--namespace", NAMESPACE)
    said = helm("install", RELEASE, CHART, *where, "--create-namespace", "--wait", "--timeout", "300s")
    assert "kubectl apply -f examples/01-plain.yaml" in said
    apply_sample(bed)
    with chart_operator(bed):
        wait_for("the sample to be Ready", lambda: is_ready(bed), 360)
        wait_for("2 + 4 engines and 2 routers", lambda: is_whole(bed), 180)
    spec, running, known = sample(bed)["spec"], pods(bed), revisions(bed)
    assert known == ["mimo-1"]

    # A newer chart with another CRD: nothing rolls, nothing is lost.
    helm("upgrade", RELEASE, changed_chart(tmp_path, "0.2.0", add_field), *where, "--wait", "--timeout", "300s")
    assert "oneMore" in spec_fields(bed)
    with chart_operator(bed):
        wait_for("the sample to be Ready", lambda: is_ready(bed), 180)
    assert (sample(bed)["spec"], pods(bed), revisions(bed)) == (spec, running, known)

    # Back to this one, by Helm's own rollback.
    helm("rollback", RELEASE, "1", *where, "--wait", "--timeout", "300s")
    assert "oneMore" not in spec_fields(bed)
    assert (sample(bed)["spec"], pods(bed), revisions(bed)) == (spec, running, known)

    # Uninstalled, it leaves what serves, and can be installed again over it.
    helm("uninstall", RELEASE, *where, "--wait")
    assert bed.api.find("Deployment", NAMESPACE, FULL_NAME) is None
    assert bed.api.find("ClusterRole", None, FULL_NAME) is None
    assert (sample(bed)["spec"], pods(bed), revisions(bed)) == (spec, running, known)
    helm("install", RELEASE, CHART, *where, "--wait", "--timeout", "300s")
    with chart_operator(bed):
        wait_for("the sample to be Ready", lambda: is_ready(bed), 180)
    assert (pods(bed), revisions(bed)) == (running, known)

    # Told not to keep the CRD, it takes all of it away.
    helm("upgrade", RELEASE, CHART, *where, "--set", "crds.keep=false", "--wait", "--timeout", "300s")
    wait_for("the garbage collector's watch", lambda: is_watched(bed), 180)
    helm("uninstall", RELEASE, *where, "--wait")
    wait_for("the CRD to go", lambda: bed.api.find("CustomResourceDefinition", None, CRD_NAME) is None, 180)
    wait_for("the Pods to go", lambda: not pods(bed), 180)

    user = f"system:serviceaccount:{NAMESPACE}:{FULL_NAME}"
    asked = list(requests(bed.audit_log, user=user, since=began))
    assert asked
    assert [request for request in asked if request.forbidden] == []


def test_an_older_crd_is_upgraded_with_its_objects(
    bed: Bed, fleet: Fleet, helm3: Helm, serving: str, tmp_path: Path
) -> None:
    where = ("--namespace", NAMESPACE, "--wait", "--timeout", "300s")
    try:
        helm3("install", RELEASE, changed_chart(tmp_path, "0.0.9", drop_guard), "--create-namespace", *where)
        apply_sample(bed)
        spec = sample(bed)["spec"]
        assert "guard" not in spec
        # This version's operator refuses to act on it, and says what to do.
        with pytest.raises(BedError, match="guard"), chart_operator(bed, "too-new"):
            pass
        helm3("upgrade", RELEASE, CHART, *where)
        assert "guard" in spec_fields(bed)
        assert {name: sample(bed)["spec"][name] for name in spec} == spec
        with chart_operator(bed):
            wait_for("the sample to be Ready", lambda: is_ready(bed), 360)
            wait_for("2 + 4 engines and 2 routers", lambda: is_whole(bed), 180)
        running = pods(bed)
        # Downgraded without its CRD, the older chart leaves today's, and all that runs.
        older = changed_chart(tmp_path, "0.0.8", drop_guard)
        with pytest.raises(HelmError, match=r"newer than this chart's 0\.0\.8.*crds\.enabled: false"):
            helm3("upgrade", RELEASE, older, *where)
        helm3("upgrade", RELEASE, older, *where, "--set", "crds.enabled=false")
        assert "guard" in spec_fields(bed)
        assert pods(bed) == running
    finally:
        clean(bed, helm3)


def test_helms_own_test_asks_the_operator(bed: Bed, fleet: Fleet, release: Helm) -> None:
    """Its script, run here as its Pod would run it: where there is no kubelet, no Pod runs."""
    made = release("get", "hooks", RELEASE, "--namespace", NAMESPACE)
    pod = yaml.safe_load(made)
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python", "-c"]
    (script,) = container["args"]
    address = f"http://{FULL_NAME}-metrics.{NAMESPACE}.svc:8081"
    assert f'address = "{address}"' in script

    def ran(url: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", script.replace(address, url)]
        return subprocess.run(program, capture_output=True, text=True, timeout=60)

    with chart_operator(bed) as operator:
        good = ran(operator.url)
        assert (good.returncode, good.stdout) == (0, "the operator is ready and tells its metrics\n"), good.stderr
    assert ran(operator.url).returncode != 0
