"""What the builders make, on a real API server: admitted, unchanged by a second look, and told apart when changed."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from specdecode.api.names import FIELD_MANAGER
from specdecode.workload import changed, handover, preview
from tests.bed.api import Json
from tests.bed.control_plane import Bed
from tests.bed.processes import wait_for
from tests.unit.engine.specs import resource
from tests.unit.workload.test_golden import CASES

pytestmark = pytest.mark.needs_bed

BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets/{}"


def _objects(namespace: str, changes: dict[str, Any]) -> list[Json]:
    made = resource(changes)
    # Owned by nobody: the garbage collector would take away what an owner that doesn't exist owns.
    metadata = made.metadata.model_copy(update={"namespace": namespace, "uid": ""})
    return preview(made.model_copy(update={"metadata": metadata}), router_image="registry.example/router:1")


def _apply(bed: Bed, body: Json, manager: str = FIELD_MANAGER) -> Json:
    if body["kind"] != "PodDisruptionBudget":
        return bed.api.apply(body, manager)
    path = BUDGETS.format(body["metadata"]["namespace"], body["metadata"]["name"])
    query = f"?fieldManager={manager}&force=true"
    applied: Json = bed.api.request("PATCH", path + query, body, "application/apply-patch+yaml")
    return applied


def _get(bed: Bed, body: Json) -> Json:
    meta = body["metadata"]
    if body["kind"] != "PodDisruptionBudget":
        return bed.api.get(body["kind"], meta["namespace"], meta["name"])
    found: Json = bed.api.request("GET", BUDGETS.format(meta["namespace"], meta["name"]))
    return found


@pytest.mark.parametrize("case", CASES)
def test_an_applied_object_is_never_written_again(bed: Bed, namespace: str, case: str) -> None:
    bodies = _objects(namespace, CASES[case])
    for body in bodies:
        assert not changed(body, _apply(bed, body)), f"{body['kind']} {body['metadata']['name']}"
    for body in bodies:
        live = _get(bed, body)
        assert live["metadata"]["managedFields"]
        assert not changed(body, live), f"{body['kind']} {body['metadata']['name']}"
        assert _apply(bed, body)["metadata"]["generation" if "generation" in live["metadata"] else "uid"] == (
            live["metadata"].get("generation", live["metadata"]["uid"])
        )


@pytest.mark.parametrize("case", ["plain", "aggregated", "data-parallel", "cpu"])
def test_pods_are_admitted_under_the_restricted_standard(bed: Bed, namespace: str, case: str) -> None:
    enforce = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    bed.api.merge("Namespace", None, namespace, enforce)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "serving", "namespace": namespace}}
    bed.api.create(account)
    for body in _objects(namespace, CASES[case]):
        if body["kind"] in ("StatefulSet", "Deployment"):
            _apply(bed, body)
            template = body["spec"]["template"]
            template["metadata"]["name"] = f"try-{body['metadata']['name']}"
            path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
            bed.api.request("POST", path, {"apiVersion": "v1", "kind": "Pod"} | template)


def test_a_field_that_is_no_longer_asked_for_is_a_difference(bed: Bed, namespace: str) -> None:
    body = next(b for b in _objects(namespace, {}) if b["kind"] == "StatefulSet")
    _apply(bed, body)
    fewer = deepcopy(body)
    del fewer["spec"]["template"]["spec"]["containers"][0]["env"][0]
    assert changed(fewer, _get(bed, body))
    assert not changed(fewer, _apply(bed, fewer))


def test_entries_of_others_are_let_be(bed: Bed, namespace: str) -> None:
    body = next(b for b in _objects(namespace, {}) if b["kind"] == "Deployment")
    _apply(bed, body)
    container = {"name": "router", "env": [{"name": "THEIRS", "value": "1"}]}
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": body["metadata"]["name"], "namespace": namespace, "annotations": {"theirs": "1"}},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    _apply(bed, theirs, "somebody")
    live = _get(bed, body)
    assert live["metadata"]["annotations"]["theirs"] == "1"
    assert not changed(body, live)


def test_replicas_survive_the_handover_to_an_autoscaler(bed: Bed, namespace: str) -> None:
    fixed = next(
        b for b in _objects(namespace, {}) if b["metadata"]["name"].endswith("-decode") and b["kind"] == "StatefulSet"
    )
    autoscaled = deepcopy(fixed)
    del autoscaled["spec"]["replicas"]
    live = _apply(bed, fixed)
    assert changed(autoscaled, live)
    first = handover(autoscaled, live)
    assert first is not None
    _apply(bed, first, "specdecode-operator-handover")
    after = _apply(bed, autoscaled)
    assert after["spec"]["replicas"] == 4
    assert not changed(autoscaled, after)
    assert handover(autoscaled, after) is None


def test_pods_of_the_longest_name_are_made(bed: Bed, namespace: str) -> None:
    made = resource()
    metadata = made.metadata.model_copy(update={"name": "a" * 40, "namespace": namespace, "uid": ""})
    bodies = preview(made.model_copy(update={"metadata": metadata}), router_image="registry.example/router:1")
    for body in bodies:
        _apply(bed, body)
    wait_for("all Pods to exist", lambda: len(bed.api.list("Pod", namespace)) == 8, 30.0)
