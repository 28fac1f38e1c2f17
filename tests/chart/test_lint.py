"""What kube-linter looks for in a chart by default, looked for in every combination of values.

Two of its checks are left out on purpose. *unset-cpu-requirements* asks for a CPU limit too: throttling would delay the
renewal of the Lease, so there is a request alone. *minimum-three-replicas* (off by default there): one operator is
enough where 20 seconds without one are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bed.api import Json
from tests.chart.programs import NAMESPACE, RELEASE, Helm
from tests.chart.test_rendering import COMBINATIONS, settings
from tools.chart import CHART


@pytest.fixture(params=COMBINATIONS)
def rendered(renderer: Helm, tmp_path: Path, request: pytest.FixtureRequest) -> list[Json]:
    """All objects, hooks too."""
    given = settings(tmp_path, COMBINATIONS[request.param])
    made = renderer("template", RELEASE, CHART, "--namespace", NAMESPACE, *given)
    return [obj for obj in yaml.safe_load_all(made) if obj]


def pods(objects: list[Json]) -> Iterator[tuple[str, Json]]:
    """Kind, and what a Pod or a Pod template says: its spec with its labels."""
    for obj in objects:
        if obj["kind"] == "Pod":
            yield "Pod", {"labels": obj["metadata"]["labels"], **obj["spec"]}
        elif obj["kind"] == "Deployment":
            template = obj["spec"]["template"]
            yield "Deployment", {"labels": template["metadata"]["labels"], **template["spec"]}


def faults(objects: list[Json]) -> list[str]:
    """Findings, each under the name of kube-linter's check."""
    found = []
    for kind, pod in pods(objects):
        found += [f"{kind}: host-namespace {name}" for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
        found += [f"{kind}: sensitive-host-mounts" for volume in pod.get("volumes", []) if "hostPath" in volume]
        if kind == "Deployment" and pod.get("serviceAccountName", "default") == "default":
            found.append(f"{kind}: default-service-account")
        if pod.get("serviceAccount"):
            found.append(f"{kind}: deprecated-service-account-field")
        found += [f"{kind}: {text}" for text in _pod_security(pod)]
        for container in pod["containers"]:
            found += [f"{kind}: {text}" for text in _container(container, serves=kind == "Deployment")]
    found += _selectors(objects)
    found += _accounts(objects)
    found += _rules(objects)
    return found


def _pod_security(pod: Json) -> Iterator[str]:
    context = pod.get("securityContext") or {}
    if not context.get("runAsNonRoot") or not context.get("runAsUser"):
        yield "run-as-non-root"
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "seccomp-profile"


def _container(container: Json, *, serves: bool) -> Iterator[str]:
    context = container.get("securityContext", {})
    if context.get("readOnlyRootFilesystem") is not True:
        yield "no-read-only-root-fs"
    if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
        yield "privilege-escalation-container"
    if context.get("capabilities", {}).get("drop") != ["ALL"] or context["capabilities"].get("add"):
        yield "drop-capabilities"
    image = container["image"]
    if image.endswith(":latest") or (":" not in image.rsplit("/", 1)[-1] and "@" not in image):
        yield "latest-tag"
    resources: Any = container.get("resources") or {}
    if "memory" not in resources.get("limits", {}) or "memory" not in resources.get("requests", {}):
        yield "unset-memory-requirements"
    if "cpu" not in resources.get("requests", {}):
        yield "unset-cpu-requirements"
    if serves:
        yield from (f"no-{probe}" for probe in ("livenessProbe", "readinessProbe") if probe not in container)
    ports = {port["name"] for port in container.get("ports", [])}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if probe in container and container[probe]["httpGet"]["port"] not in ports:
            yield f"{probe.removesuffix('Probe')}-port"
    names = [variable["name"] for variable in container.get("env", [])]
    if len(names) != len(set(names)):
        yield "duplicate-env-var"
    for port in container.get("ports", []):
        if port["containerPort"] < 1024:
            yield "privileged-ports"
    for variable in container.get("env", []):
        if "secret" in variable["name"].lower() and "value" in variable:
            yield "env-var-secret"


def _selectors(objects: list[Json]) -> Iterator[str]:
    """Every selector means the operator's Pods, and no Service or budget means the Pod of the test."""
    labels = {kind: pod["labels"] for kind, pod in pods(objects)}
    for obj in objects:
        selector: Json | None = None
        match obj["kind"]:
            case "Service":
                selector = obj["spec"]["selector"]
                if obj["spec"]["type"] != "ClusterIP":
                    yield "exposed-services"
                if {port["targetPort"] for port in obj["spec"]["ports"]} != {"metrics"}:
                    yield "invalid-target-ports"
            case "PodDisruptionBudget" | "Deployment":
                selector = obj["spec"]["selector"]["matchLabels"]
                if obj["kind"] == "PodDisruptionBudget":
                    yield from _budget(obj["spec"])
            case "NetworkPolicy":
                selector = obj["spec"]["podSelector"]["matchLabels"]
        if selector is None:
            continue
        if not selector.items() <= labels["Deployment"].items():
            yield f"dangling-{obj['kind'].lower()}"
        if "Pod" in labels and selector.items() <= labels["Pod"].items():
            yield f"{obj['kind']} means the Pod of the test too"


def _budget(spec: Json) -> Iterator[str]:
    if spec.get("maxUnavailable") in (None, 0, "0%") or "minAvailable" in spec:
        yield "pdb-max-unavailable"
    if spec.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
        yield "pdb-unhealthy-pod-eviction-policy"


def _accounts(objects: list[Json]) -> Iterator[str]:
    """The operator's ServiceAccount is the chart's; with `serviceAccount.create: false` it is somebody else's."""
    made = {obj["metadata"]["name"] for obj in objects if obj["kind"] == "ServiceAccount"}
    (used,) = (pod["serviceAccountName"] for kind, pod in pods(objects) if kind == "Deployment")
    if made and made != {used}:
        yield "non-existent-service-account"
    for obj in objects:
        if obj["kind"].endswith("RoleBinding"):
            if obj["roleRef"]["name"] == "cluster-admin":
                yield "cluster-admin-role-binding"
            if {subject["name"] for subject in obj["subjects"]} != {used}:
                yield "dangling-role-binding"


def _rules(objects: list[Json]) -> Iterator[str]:
    for obj in objects:
        if obj["kind"] not in ("Role", "ClusterRole"):
            continue
        for rule in obj["rules"]:
            if any("*" in text for field in ("apiGroups", "resources", "verbs") for text in rule[field]):
                yield "wildcard-in-rules"
            if "secrets" in rule["resources"]:
                yield "access-to-secrets"
            if "pods" in rule["resources"] and "create" in rule["verbs"]:
                yield "access-to-create-pods"


def test_no_finding(rendered: list[Json]) -> None:
    assert len(list(pods(rendered))) >= 1
    assert faults(rendered) == []


def test_replicas_keep_apart(rendered: list[Json]) -> None:
    (deployment,) = (obj for obj in rendered if obj["kind"] == "Deployment")
    affinity = deployment["spec"]["template"]["spec"]["affinity"]
    assert "podAntiAffinity" in affinity or "nodeAffinity" in affinity  # the latter by a value of one combination


def _break(objects: list[Json], kind: str, *path: str | int, value: Any) -> None:
    at: Any
    (at,) = (obj for obj in objects if obj["kind"] == kind and not obj["metadata"]["name"].endswith(("-view", "-edit")))
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value


CONTAINER = ("spec", "template", "spec", "containers", 0)
BREAKS: dict[str, tuple[str, tuple[str | int, ...], Any]] = {
    "Deployment: latest-tag": ("Deployment", (*CONTAINER, "image"), "operator"),
    "Deployment: run-as-non-root": ("Deployment", ("spec", "template", "spec", "securityContext"), {}),
    "Deployment: unset-memory-requirements": ("Deployment", (*CONTAINER, "resources"), {}),
    "Deployment: drop-capabilities": ("Deployment", (*CONTAINER, "securityContext", "capabilities"), {}),
    "Deployment: liveness-port": ("Deployment", (*CONTAINER, "ports"), []),
    "Deployment: host-namespace hostPID": ("Deployment", ("spec", "template", "spec", "hostPID"), True),
    "dangling-service": ("Service", ("spec", "selector"), {"app": "another"}),
    "invalid-target-ports": ("Service", ("spec", "ports", 0, "targetPort"), "http"),
    "pdb-max-unavailable": ("PodDisruptionBudget", ("spec", "maxUnavailable"), 0),
    "non-existent-service-account": ("ServiceAccount", ("metadata", "name"), "another"),
    "cluster-admin-role-binding": ("ClusterRoleBinding", ("roleRef", "name"), "cluster-admin"),
    "wildcard-in-rules": ("ClusterRole", ("rules", 3, "verbs"), ["*"]),
    "access-to-secrets": ("ClusterRole", ("rules", 3, "resources"), ["secrets"]),
}


@pytest.mark.parametrize("finding", BREAKS)
def test_a_finding_is_found(renderer: Helm, finding: str) -> None:
    made = renderer.template()
    assert faults(made) == []
    kind, path, value = BREAKS[finding]
    _break(made, kind, *path, value=value)
    assert finding in faults(made)
