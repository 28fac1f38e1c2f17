"""A real Prometheus scrapes a canary on the way: every panel has data, and no alert's expression fails."""

from __future__ import annotations

import json
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from specdecode.api.names import LABEL_ROLE
from tests.bed.control_plane import ROOT, Bed, is_true
from tests.bed.fleet import Fleet
from tests.bed.operator_process import OperatorProcess
from tests.bed.processes import Child, wait_for
from tests.chart.programs import Helm, chart_operator
from tests.unit.chart import queries
from tools.chart import CHART

pytestmark = pytest.mark.needs_bed

NAMESPACE = "observed"
BUSY = {"rate": 100, "life": {"median": 3, "sigma": 0.6}}
GOOD = {"acceptance": [0.92, 0.84, 0.74], "concentration": 8, "draftRate": 20}


def discovered(bed: Bed) -> list[dict[str, Any]]:
    """Serving Pods as Prometheus's discovery gives them; Debian's Prometheus has none for Kubernetes."""
    found = []
    for pod in bed.api.list("Pod", NAMESPACE, LABEL_ROLE):
        if not (address := pod["status"].get("podIP")):
            continue
        about = {"namespace": NAMESPACE, "pod_name": pod["metadata"]["name"]}
        about |= {
            f"pod_label_{re.sub('[^a-z]', '_', name)}": value for name, value in pod["metadata"]["labels"].items()
        }
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []):
                labels = about | {"pod_container_port_name": port["name"]}
                meta = {f"__meta_kubernetes_{name}": value for name, value in labels.items()}
                found.append({"targets": [f"{address}:{port['containerPort']}"], "labels": meta})
    return found


class Prometheus:
    """A running Prometheus with the jobs of deploy/prometheus.yaml and the alerts."""

    def __init__(self, bed: Bed, operator: OperatorProcess, folder: Path) -> None:
        program = shutil.which("prometheus")
        assert program, "prometheus isn't on PATH: install it (Debian: apt-get install prometheus)"
        jobs = yaml.safe_load((ROOT / "deploy" / "prometheus.yaml").read_text())
        for job in jobs:
            if job["job_name"] == "specdecode-operator":  # not in a Pod here
                del job["kubernetes_sd_configs"], job["relabel_configs"]
                job["static_configs"] = [{"targets": [operator.url.removeprefix("http://")]}]
            else:
                assert job.pop("kubernetes_sd_configs")[0]["selectors"] == [{"role": "pod", "label": LABEL_ROLE}]
                (folder / "pods.json").write_text(json.dumps(discovered(bed)))
                job["file_sd_configs"] = [{"files": [str(folder / "pods.json")]}]
        config = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
            "rule_files": [str(CHART / "files" / "alerts.yaml")],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        address = f"{bed.network.host}:{bed.network.free_port()}"
        self.url = f"http://{address}"
        command = [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address={address}"]
        self.child = Child.start("prometheus", command, folder / "prometheus.log")
        wait_for("Prometheus", self._ready, 60, [self.child])

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=20) as answer:
            return json.loads(answer.read())["data"]

    def query(self, expression: str) -> list[Any]:
        """Series that an expression has at this moment."""
        found: list[Any] = self.get("/api/v1/query", query=expression)["result"]
        return found


@contextmanager
def removed(bed: Bed) -> Iterator[None]:
    """Removes the namespace at the end, however that comes."""
    try:
        yield
    finally:
        bed.kubectl("delete", "namespace", NAMESPACE, "--timeout=300s")


@pytest.fixture
def canary(bed: Bed, fleet: Fleet, release: Helm) -> Iterator[OperatorProcess]:
    """The operator, with a resource whose second revision was promoted and whose third is on trial."""
    bed.namespace(NAMESPACE)
    fleet.play({"traffic": BUSY, "behaviour": GOOD})
    (body,) = yaml.safe_load_all((ROOT / "examples" / "01-plain.yaml").read_text())
    body["metadata"] |= {"namespace": NAMESPACE, "name": "glm"}
    body["spec"]["topology"] = {"prefill": {"replicas": 1}, "decode": {"replicas": 2}, "router": {"replicas": 2}}

    def applied(rollout: dict[str, Any], depth: int) -> None:
        body["spec"]["rollout"] = rollout
        body["spec"]["speculation"]["depth"] = depth
        bed.api.apply(body)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = bed.api.get("SpecDecodeDeployment", NAMESPACE, "glm").get("status", {})
        return found

    with removed(bed), chart_operator(bed) as operator:
        applied({}, 3)
        ready = lambda: is_true(bed.api.get("SpecDecodeDeployment", NAMESPACE, "glm"), "Ready")  # noqa: E731
        wait_for("the first revision", ready, 360)
        capacity = {role: {"maxSurge": "100%", "maxUnavailable": 0} for role in ("prefill", "decode")}
        # Of equal weights, by which it is judged soonest; wide, for that isn't what is tested here.
        judged = {"interval": "2s", "margin": "20%"}
        steps = [{"weight": 50}, {"weight": 100}]
        applied({"steps": steps, "promotionDelay": "1s", "capacity": capacity, "analysis": judged}, 2)
        promoted = lambda: status().get("stable", {}).get("revision") == 2 and status().get("baseline")  # noqa: E731
        wait_for("the second to be promoted, with a baseline", promoted, 240)
        applied({"steps": [{"weight": 50, "pause": {}}, {"weight": 100}], "capacity": capacity}, 1)
        wait_for("the third to have traffic", lambda: status().get("weight", {}).get("reached"), 360)
        yield operator


def test_every_panel_has_data_while_a_canary_is_on_trial(bed: Bed, canary: OperatorProcess, tmp_path: Path) -> None:
    prometheus = Prometheus(bed, canary, tmp_path)
    try:
        asked = [
            (title, text.replace("$__rate_interval", "20s").replace("$namespace", NAMESPACE).replace("$name", "glm"))
            for title, texts in queries.panels()
            for text in texts
        ]

        def empty() -> list[tuple[str, str]]:
            return [(title, text) for title, text in asked if not prometheus.query(text)]

        try:
            wait_for("data for every query of the dashboard", lambda: not empty(), 120, [prometheus.child])
        finally:
            assert empty() == []
        arms = {
            s["metric"]["arm"] for s in prometheus.query(f'specdecode_acceptance_length{{namespace="{NAMESPACE}"}}')
        }
        assert arms == {"stable", "canary"}
        revisions = {s["metric"]["revision"] for s in prometheus.query('vllm:generation_tokens_total{role="decode"}')}
        assert revisions == {"2", "3"}
        rules = [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
        assert {rule["name"] for rule in rules} == {alert["alert"] for alert in queries.alerts()}
        wait_for("all rules to be evaluated", lambda: _healthy(prometheus), 180)
        assert is_true(bed.api.get("SpecDecodeDeployment", NAMESPACE, "glm"), "Available")
    finally:
        prometheus.child.stop()


def _healthy(prometheus: Prometheus) -> bool:
    rules = [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    return all(rule["health"] == "ok" for rule in rules)
