"""What kube-linter looks for in a chart, looked for in every combination of values.

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
            case "PodDisruptionBudget" | "Deployment":
                selector = obj["spec"]["selector"]["matchLabels"]
            case "NetworkPolicy":
                selector = obj["spec"]["podSelector"]["matchLabels"]
        if selector is None:
            continue
        if not selector.items() <= labels["Deployment"].items():
            yield f"dangling-{obj['kind'].lower()}"
        if "Pod" in labels and selector.items() <= labels["Pod"].items():
            yield f"{obj['kind']} means the Pod of the test too"


def test_no_finding(rendered: list[Json]) -> None:
    assert len(list(pods(rendered))) >= 1
    assert faults(rendered) == []


def test_replicas_keep_apart(rendered: list[Json]) -> None:
    (deployment,) = (obj for obj in rendered if obj["kind"] == "Deployment")
    affinity = deployment["spec"]["template"]["spec"]["affinity"]
    assert "podAntiAffinity" in affinity or "nodeAffinity" in affinity  # the latter by a value of one combination


def test_findings_are_found(renderer: Helm) -> None:
    made = renderer.template("--set", "podSecurityContext=null", "--set", "image.tag=latest", "--set", "resources=null")
    found = faults(made)
    assert {"Deployment: latest-tag", "Deployment: run-as-non-root", "Deployment: unset-memory-requirements"} <= {
        *found
    }
