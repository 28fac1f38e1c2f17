"""What the chart renders: admitted by a real API server for many sets of values, refused for wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bed.api import Json
from tests.bed.control_plane import Bed
from tests.bed.processes import BedError
from tests.chart.programs import FULL_NAME, NAMESPACE, Helm, HelmError
from tools.chart import CHART, release
from tools.chart import RELEASE as RELEASE_FILE

pytestmark = pytest.mark.needs_bed

EVERYTHING: dict[str, Any] = {
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "podMonitor": {"enabled": True, "metricRelabelings": [{"action": "labeldrop", "regex": "pod"}]},
    "prometheusRule": {"enabled": True, "runbookBaseURL": "https://runbooks.example/sd/"},
}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "highly available": {"replicas": 3, "priorityClassName": "system-cluster-critical"},
    "some namespaces": {"watchNamespaces": ["default", "kube-public"]},
    "some namespaces, cluster reads": {"watchNamespaces": ["default"], "rbac": {"clusterReads": True}},
    "monitored": EVERYTHING,
    "fewer alerts": {
        "prometheusRule": {"enabled": True, "disabled": ["SpecDecodeRolledBack"], "alertLabels": {"a": "b"}}
    },
    "no rbac, own account": {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "mine"}},
    "no crd": {"crds": {"enabled": False}},
    "crd goes": {"crds": {"keep": False, "annotations": {"argocd.argoproj.io/sync-options": "ServerSideApply=true"}}},
    "no policies": {"networkPolicies": {"operator": False, "revisions": False, "monitoringNamespaces": []}},
    "own registry": {
        "image": {"registry": "registry.example.com:5000/ai", "digest": "sha256:" + "a" * 64, "pullPolicy": "Always"},
        "routerImage": {"registry": "registry.example.com/ai/", "tag": "1.2.3"},
        "imagePullSecrets": [{"name": "pull"}],
    },
    "placed": {
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "control-plane", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        ],
    },
    "labelled": {
        "commonLabels": {"team": "serving"},
        "commonAnnotations": {"contact": "serving@example.com"},
        "podLabels": {"pod": "yes"},
        "podAnnotations": {"note": "1"},
        "fullnameOverride": "another-name",
    },
    "IPv6, other port": {"metrics": {"listen": "::", "port": 9090}, "log": {"format": "text", "level": "debug"}},
    "lean": {
        "dashboard": {"enabled": False},
        "metrics": {"service": {"enabled": False}},
        "podDisruptionBudget": {"enabled": False},
        "rbac": {"aggregate": False},
        "resources": {"requests": {"cpu": "50m"}, "limits": {"memory": "512Mi", "cpu": 1}},
    },
    "proxied": {"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}]},
}


def settings(tmp_path: Path, values: dict[str, Any]) -> list[str]:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return ["--values", str(file)]


@pytest.fixture(scope="session")
def release_namespace(bed: Bed) -> str:
    if bed.api.find("Namespace", None, NAMESPACE) is None:
        bed.namespace(NAMESPACE)
    return NAMESPACE


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_api_server_takes_every_combination(
    bed: Bed, renderer: Helm, tmp_path: Path, release_namespace: str, name: str
) -> None:
    given = settings(tmp_path, COMBINATIONS[name])
    renderer("lint", CHART, "--strict", *given)
    objects = renderer.template(*given)
    bed.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(objects))


def objects(made: list[Json]) -> dict[tuple[str, str], Json]:
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in made}


def test_with_a_list_of_namespaces_nothing_is_granted_cluster_wide(renderer: Helm, tmp_path: Path) -> None:
    made = renderer.template(*settings(tmp_path, COMBINATIONS["some namespaces"]))
    kinds = [(obj["kind"], obj["metadata"]["name"], obj["metadata"].get("namespace")) for obj in made]
    assert not [kind for kind in kinds if kind[0] == "ClusterRoleBinding"]
    assert [k for k in kinds if k[0] == "ClusterRole"] == [
        ("ClusterRole", f"{FULL_NAME}-view", None),
        ("ClusterRole", f"{FULL_NAME}-edit", None),
    ]
    assert {k[2] for k in kinds if k[0] == "RoleBinding"} == {"default", "kube-public", NAMESPACE}
    arguments = objects(made)["Deployment", FULL_NAME]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [text for text in arguments if text.startswith("--namespace=")] == [
        "--namespace=default",
        "--namespace=kube-public",
    ]


def test_the_rule_names_its_runbooks_and_leaves_out_what_it_should(renderer: Helm, tmp_path: Path) -> None:
    def alerts(values: dict[str, Any]) -> list[Json]:
        rule = objects(renderer.template(*settings(tmp_path, values)))["PrometheusRule", FULL_NAME]
        return [alert for group in rule["spec"]["groups"] for alert in group["rules"]]

    for alert in alerts(EVERYTHING):
        assert alert["annotations"]["runbook_url"] == f"https://runbooks.example/sd/{alert['alert']}.md"
    fewer = alerts(COMBINATIONS["fewer alerts"])
    assert "SpecDecodeRolledBack" not in [alert["alert"] for alert in fewer]
    assert len(fewer) == len(alerts(EVERYTHING)) - 1
    assert all(alert["labels"]["a"] == "b" and alert["labels"]["severity"] for alert in fewer)


def test_images(renderer: Helm, tmp_path: Path) -> None:
    made = objects(renderer.template(*settings(tmp_path, COMBINATIONS["own registry"])))["Deployment", FULL_NAME]
    pod = made["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example.com:5000/ai/specdecode-operator@sha256:" + "a" * 64
    assert "--router-image=registry.example.com/ai/specdecode-router:1.2.3" in pod["containers"][0]["args"]
    assert pod["imagePullSecrets"] == [{"name": "pull"}]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replicaCount": 2}, "replicaCount"),
        ({"image": {"name": "x"}}, "name"),
        ({"replicas": 0}, "replicas"),
        ({"watchNamespaces": "prod"}, "watchNamespaces"),
        ({"watchNamespaces": ["Prod"]}, "watchNamespaces"),
        ({"log": {"level": "loud"}}, "level"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"crds": {"enabled": "yes"}}, "enabled"),
        ({"prometheusRule": {"disabled": ["NoSuchAlert"]}}, "disabled"),
        ({"serviceMonitor": {"interval": 30}}, "interval"),
        ({"commonLabels": {"a": 1}}, "commonLabels"),
        ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "podLabels"),
        ({"leaderElection": {"durationSeconds": 8}}, "leaderElection.durationSeconds: 8 is too short"),
        (
            {"serviceMonitor": {"enabled": True}, "metrics": {"service": {"enabled": False}}},
            "serviceMonitor.enabled: true needs metrics.service.enabled: true",
        ),
    ],
)
def test_unknown_and_wrong_values_are_refused(renderer: Helm, tmp_path: Path, values: Any, named: str) -> None:
    with pytest.raises(HelmError, match=named):
        renderer.template(*settings(tmp_path, values))


def test_an_old_cluster_is_refused_with_the_version_that_is_needed(renderer: Helm) -> None:
    with pytest.raises(HelmError, match=r"Kubernetes v1\.29\.0: 1\.31 or later is needed"):
        renderer.template("--kube-version", "1.29.0")


def test_the_committed_release_file_is_today_s_and_is_taken(bed: Bed, renderer: Helm) -> None:
    assert RELEASE_FILE.read_text() == release(renderer.program), "run make release"
    bed.kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", str(RELEASE_FILE))


def keyed(made: list[Json]) -> dict[str, Json]:
    return {f"{obj['kind']}/{obj['metadata']['name']}": obj for obj in made}


def test_helm_4_renders_the_same(renderer: Helm, tmp_path: Path) -> None:
    given = settings(tmp_path, EVERYTHING)
    assert keyed(Helm("4", None, tmp_path).template(*given)) == keyed(renderer.template(*given))


def test_the_api_server_looks(bed: Bed, renderer: Helm) -> None:
    broken = renderer.template()
    for obj in broken:
        if obj["kind"] == "Deployment":
            obj["spec"]["template"]["metadata"]["labels"] = {}
    with pytest.raises(BedError, match="selector"):
        bed.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(broken))
