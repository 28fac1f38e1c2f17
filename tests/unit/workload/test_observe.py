"""Raw Kubernetes objects as the planner sees them."""

from __future__ import annotations

from typing import Any

import pytest

from specdecode.rollout.types import PodObserved, RevisionRecord
from specdecode.workload import controller_revision, observe, preview, render
from tests.unit.engine.specs import resource

OWNER = {"apiVersion": "specdecode.dev/v1alpha1", "kind": "SpecDecodeDeployment", "controller": True}


def _pod(
    name: str = "demo-1-decode-0", role: str = "decode", revision: str = "1", node: str = "n1", **more: Any
) -> dict[str, Any]:
    labels = {"specdecode.dev/deployment": "demo", "specdecode.dev/revision": revision, "specdecode.dev/role": role}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels} | more.pop("metadata", {}),
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIP": "10.0.0.1"} | more,
    }


def _one(pod: dict[str, Any], **context: Any) -> PodObserved:
    (arm,) = observe(resource(), [pod], **context).arms.values()
    (found,) = (*arm.prefill.pods, *arm.decode.pods, *arm.router.pods)
    return found


def _ready(status: str) -> list[dict[str, str]]:
    return [{"type": "Ready", "status": status}]


def test_what_was_applied_is_observed() -> None:
    objects = [o for o in preview(resource(), router_image="r:1") if o["kind"] != "ControllerRevision"]
    found = observe(resource(), objects)
    assert found.conflicts == ()
    assert found.records == ()
    arm = found.arms[1]
    assert (arm.prefill.exists, arm.prefill.replicas) == (True, 2)
    assert (arm.decode.exists, arm.decode.replicas) == (True, 4)
    assert (arm.router.exists, arm.router.replicas, arm.router.backends) == (True, 2, (2, 4))
    assert arm.decode.pods == ()


def test_pods_by_revision_and_role() -> None:
    pods = [
        _pod("demo-1-decode-10", conditions=_ready("True")),
        _pod("demo-1-decode-9", conditions=_ready("False")),
        _pod("demo-1-decode-0", conditions=_ready("True"), metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        _pod("demo-2-prefill-0", role="prefill", revision="2"),
        _pod("demo-2-decode-0", revision="2", phase="Failed"),
    ]
    found = observe(resource(), pods)
    decode = found.arms[1].decode
    assert [p.ordinal for p in decode.pods] == [0, 9, 10]
    assert (decode.ready, decode.total, decode.terminating) == (1, 3, 1)
    assert not decode.exists
    assert found.arms[2].prefill.total == 1
    assert found.arms[2].decode.total == 0
    assert not found.arms[1].gone


@pytest.mark.parametrize(
    "labels",
    [
        {"specdecode.dev/revision": "x", "specdecode.dev/role": "decode"},
        {"specdecode.dev/revision": "1", "specdecode.dev/role": "other"},
        {},
    ],
)
def test_pods_with_other_labels_are_nobodys(labels: dict[str, str]) -> None:
    pod = _pod()
    pod["metadata"]["labels"] = labels
    assert observe(resource(), [pod]).arms == {}


@pytest.mark.parametrize("name", ["demo-1-decode-0-copy-7", "demo-2-decode-7", "debug-7", "7"])
def test_a_pod_with_our_labels_that_is_not_the_workload_s_has_no_ordinal(name: str) -> None:
    assert _one(_pod(name)).ordinal is None


def test_a_router_pod() -> None:
    pod = _pod(
        "demo-1-router-5d8f-8",
        role="router",
        conditions=_ready("True"),
        containerStatuses=[
            {"name": "router", "imageID": "sha256:b", "ready": True},
            {"name": "proxy", "imageID": "sha256:a", "ready": True},
            {"name": "istio-proxy", "imageID": "sha256:c", "ready": True},
        ],
        metadata={"annotations": {"specdecode.dev/backends": "2/4"}},
    )
    found = _one(pod)
    assert (found.ordinal, found.backends) == (None, (2, 4))
    assert found.image_ids == ("sha256:a", "sha256:b")


@pytest.mark.parametrize(("said", "since"), [({}, 0.0), ({"lastTransitionTime": "2026-01-01T00:00:05Z"}, 1767225605.0)])
def test_since_when_a_pod_is_ready(said: dict[str, str], since: float) -> None:
    assert _one(_pod("demo-1-decode-0", conditions=[_ready("True")[0] | said])).ready_since == since


@pytest.mark.parametrize(
    ("status", "waiting", "message"),
    [
        ({"state": {"running": {}}, "ready": True, "restartCount": 9}, "", ""),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, "", ""),
        ({"state": {"running": {}}, "restartCount": 2}, "", ""),
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}},
            "ImagePullBackOff",
            "container vllm: no such tag",
        ),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                "restartCount": 4,
            },
            "CrashLoopBackOff",
            "container vllm: back-off 40s; last exit code 137 (OOMKilled), 4 restarts",
        ),
        (
            {
                "state": {"running": {}},
                "ready": False,
                "restartCount": 3,
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
            },
            "CrashLoopBackOff",
            "container vllm: CrashLoopBackOff; last exit code 1 (Error), 3 restarts",
        ),
    ],
)
def test_why_a_container_waits(status: dict[str, Any], waiting: str, message: str) -> None:
    found = _one(_pod(containerStatuses=[{"name": "vllm"} | status]))
    assert (found.waiting, found.message) == (waiting, message)


def test_an_init_container_in_trouble() -> None:
    broken = {"name": "fetch", "state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}}}
    waits = {"name": "vllm", "state": {"waiting": {"reason": "PodInitializing"}}}
    found = _one(_pod(initContainerStatuses=[broken], containerStatuses=[waits]))
    assert (found.waiting, found.message) == ("ErrImagePull", "container fetch: denied")


def test_unschedulable() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    }
    found = _one(_pod(phase="Pending", conditions=[condition]))
    assert found.unschedulable
    assert "nvidia.com/gpu" in found.message


@pytest.mark.parametrize(
    ("deleted", "lost_nodes", "now", "lost"),
    [
        ("1970-01-01T00:01:40Z", {"n1"}, 100.0, True),
        ("1970-01-01T00:01:40Z", {"n1"}, 99.0, False),
        ("1970-01-01T00:01:40Z", {"n2"}, 100.0, False),
        ("1970-01-01T00:01:40Z", set(), 100.0, False),
        (None, {"n1"}, 100.0, False),
    ],
)
def test_lost(deleted: str | None, lost_nodes: set[str], now: float, lost: bool) -> None:
    metadata = {} if deleted is None else {"deletionTimestamp": deleted}
    assert _one(_pod(metadata=metadata), lost_nodes=lost_nodes, now=now).lost is lost


def test_records_and_the_records_of_stateful_sets() -> None:
    made = resource()
    kept = RevisionRecord(2, made.spec, render(made, router_image="r:1"))
    theirs = {
        "kind": "ControllerRevision",
        "metadata": {"name": "x", "ownerReferences": [{"kind": "StatefulSet", "uid": "s", "controller": True}]},
    }
    found = observe(made, [controller_revision(made, kept), theirs])
    assert [r.number for r in found.records] == [2]
    assert found.conflicts == ()


def test_a_record_that_cannot_be_read_is_a_conflict() -> None:
    made = resource()
    stored = controller_revision(made, RevisionRecord(2, made.spec, {}))
    stored["data"]["spec"]["speculation"]["depth"] = 99
    found = observe(made, [stored])
    assert found.records == ()
    assert found.conflicts[0].startswith("ControllerRevision demo-2: spec.speculation.depth:")


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ([], "belongs to nobody"),
        ([{"kind": "Chart", "name": "x", "uid": "c", "controller": True}], "belongs to Chart x"),
        ([OWNER | {"name": "demo", "uid": "old"}], "former SpecDecodeDeployment demo (uid old)"),
        ([OWNER | {"name": "demo", "uid": "7d5c", "controller": False}], "belongs to nobody"),
    ],
)
def test_objects_of_others_are_conflicts(owners: list[dict[str, Any]], words: str) -> None:
    item = {"kind": "Service", "metadata": {"name": "demo", "ownerReferences": owners}, "spec": {}}
    (conflict,) = observe(resource(), [item]).conflicts
    assert conflict.startswith("Service demo ")
    assert words in conflict


def _route(*parents: dict[str, Any], refs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    made = resource({"traffic.gateway": {"parentRefs": [{"name": "public"}]}})
    route = next(o for o in preview(made, router_image="r:1") if o["kind"] == "HTTPRoute")
    route["metadata"]["generation"] = 3
    if refs is not None:
        route["spec"]["parentRefs"] = refs
    route["status"] = {"parents": list(parents)}
    return route


def _parent(accepted: str = "True", resolved: str = "True", generation: int = 3, **ref: Any) -> dict[str, Any]:
    return {
        "parentRef": {"name": "public", "group": "gateway.networking.k8s.io", "kind": "Gateway"} | ref,
        "controllerName": "example.com/x",
        "conditions": [
            {"type": "Accepted", "status": accepted, "observedGeneration": generation, "message": "no listener"},
            {"type": "ResolvedRefs", "status": resolved, "observedGeneration": generation, "message": "no Service"},
        ],
    }


@pytest.mark.parametrize(
    ("route", "accepted", "message"),
    [
        (_route(_parent()), True, ""),
        (_route(_parent(namespace="prod")), True, ""),
        (_route(), False, "Gateway prod/public has not answered"),
        (_route(_parent(namespace="other")), False, "Gateway prod/public has not answered"),
        (_route(_parent(generation=2)), False, "Gateway prod/public has not answered to this generation"),
        (_route(_parent(accepted="False")), False, "Gateway prod/public: Accepted is False: no listener"),
        (_route(_parent(resolved="False")), False, "Gateway prod/public: ResolvedRefs is False: no Service"),
        (
            _route(_parent(), refs=[{"name": "public"}, {"name": "inner", "namespace": "edge"}]),
            False,
            "Gateway edge/inner has not answered",
        ),
    ],
)
def test_the_route(route: dict[str, Any], accepted: bool, message: str) -> None:
    found = observe(resource(), [route]).route
    assert found.exists
    assert found.weights == {1: 100}
    assert (found.accepted, found.message) == (accepted, message)
    assert found.gateway is not None
    names = [ref["name"] for ref in route["spec"]["parentRefs"]]
    assert [ref.name for ref in found.gateway.parent_refs] == names


def test_of_a_route_without_parents_no_gateway_is_known() -> None:
    assert observe(resource(), [_route(refs=[])]).route.gateway is None


@pytest.mark.parametrize("listed", ["²/1", "9" * 5000 + "/1", "1/", "/1", "-1/1", "1"])
def test_a_list_of_pods_that_is_no_list_is_none(listed: str) -> None:
    annotations = {"specdecode.dev/backends": listed}
    assert _one(_pod(role="router", metadata={"annotations": annotations})).backends is None
