"""The chart's permissions: enough for all that the operator does, and no rule that nothing needs."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator

import pytest
import yaml

from specdecode.api.names import LABEL_DEPLOYMENT
from tests.bed.api import Json
from tests.bed.audit import Request, requests
from tests.bed.control_plane import ROOT, Bed, is_true
from tests.bed.fleet import Fleet
from tests.bed.processes import wait_for
from tests.chart.conftest import clean
from tests.chart.programs import FULL_NAME, NAMESPACE, RELEASE, Helm, chart_operator
from tools.chart import CHART

pytestmark = pytest.mark.needs_bed

USER = f"system:serviceaccount:{NAMESPACE}:{FULL_NAME}"
Permission = tuple[str, str, str]
"""Group, resource with its subresource, verb."""


def granted(rules: list[Json]) -> set[Permission]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(found: list[Request], groups: dict[str, str]) -> set[Permission]:
    """What requests needed. A server-side apply that makes an object needs to create as well as to patch."""
    needed = set()
    for request in found:
        resource = "/".join(part for part in (request.resource, request.subresource) if part)
        verbs = [request.verb]
        if request.verb == "patch" and request.code == 201:
            verbs.append("create")
        needed |= {(groups[request.resource], resource, verb) for verb in verbs}
    return needed


@pytest.fixture(scope="module")
def everything(
    bed: Bed, fleet: Fleet, helm3: Helm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Request]]:
    """All that an operator does in a life: every kind made, changed and removed, a lost Node, names taken."""
    namespace, began = bed.namespace("permissions"), time.time()
    try:
        helm3("install", RELEASE, CHART, "--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "300s")
        _live(bed, namespace)
        yield list(requests(bed.audit_log, user=USER, since=began))
    finally:
        bed.kubectl("delete", "namespace", namespace, "--timeout=300s")
        clean(bed, helm3)


def resource(name: str, **spec: Json) -> Json:
    (body,) = yaml.safe_load_all((ROOT / "examples" / "01-plain.yaml").read_text())
    body = copy.deepcopy(body)
    body["metadata"]["name"] = name
    body["spec"]["topology"] = {"prefill": {"replicas": 1}, "decode": {"replicas": 1}, "router": {"replicas": 1}}
    body["spec"] |= spec
    return dict(body)


def _live(bed: Bed, namespace: str) -> None:
    def apply(body: Json) -> None:
        body["metadata"]["namespace"] = namespace
        bed.api.apply(body)

    def stable(name: str, revision: int) -> bool:
        found = bed.api.get("SpecDecodeDeployment", namespace, name)
        status = found.get("status", {})
        ready = is_true(found, "Ready") and status.get("observedGeneration") == found["metadata"]["generation"]
        return bool(ready and status.get("stable", {}).get("revision") == revision)

    # A record's name is taken by an object that isn't ours: its creation is refused, and it is looked at.
    taken: Json = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1}
    taken |= {"metadata": {"name": "taken-1", "namespace": namespace}, "data": {}}
    bed.api.create(taken)
    apply(resource("taken"))
    gateway = {"gateway": {"parentRefs": [{"name": "public"}]}}
    swift: Json = {"strategy": "Immediate", "revisionHistoryLimit": 0}
    apply(resource("glm", rollout=swift, traffic=gateway))
    apply(resource("plain", rollout=swift))
    with chart_operator(bed):
        wait_for("plain to serve", lambda: stable("plain", 1), 270)
        wait_for("a route", lambda: bed.api.find("HTTPRoute", namespace, "glm"), 180)
        wait_for("the taken name to be told", lambda: "ControllerRevision taken-1 exists" in _told(bed, namespace), 180)
        # Another revision: everything of the old one goes, its record too.
        for name in ("plain", "glm"):
            changed = resource(name, rollout=swift)
            changed["spec"]["speculation"] = {"depth": 2}
            apply(changed)
        wait_for("plain's second revision to serve", lambda: stable("plain", 2), 360)
        gone = lambda: bed.api.find("ControllerRevision", namespace, "plain-1") is None  # noqa: E731
        wait_for("plain's first record to go", gone, 180)
        wait_for("the route to go", lambda: bed.api.find("HTTPRoute", namespace, "glm") is None, 180)
        # A Node that is gone: its Pods can only be deleted by force.
        (pod,) = bed.api.list("Pod", namespace, f"{LABEL_DEPLOYMENT}=plain,specdecode.dev/role=decode")
        bed.lose_node(pod["spec"]["nodeName"])
        bed.api.delete("Pod", namespace, pod["metadata"]["name"], gracePeriodSeconds=1)

        def freed() -> bool:
            found = bed.api.find("Pod", namespace, pod["metadata"]["name"])
            return found is None or found["metadata"]["uid"] != pod["metadata"]["uid"]

        wait_for("the Pod on the lost Node to be freed", freed, 360)
        bed.restore_node(pod["spec"]["nodeName"])
    # Objects that aren't ours any more to make.
    with chart_operator(bed, "without-policies", "--no-network-policies"):
        none = lambda: not bed.api.list("NetworkPolicy", namespace)  # noqa: E731
        wait_for("the policies to go", none, 180)


def _told(bed: Bed, namespace: str) -> str:
    return str(bed.api.get("SpecDecodeDeployment", namespace, "taken").get("status", {}))


def _rules(bed: Bed) -> list[Json]:
    cluster = bed.api.get("ClusterRole", None, FULL_NAME)["rules"]
    own = bed.api.get("Role", NAMESPACE, f"{FULL_NAME}-lease")["rules"]
    return [*cluster, *own]


def _groups(bed: Bed) -> dict[str, str]:
    return {resource.split("/")[0]: group for group, resource, _ in granted(_rules(bed))}


def test_nothing_is_refused(everything: list[Request]) -> None:
    assert everything
    assert [r for r in everything if r.code in (401, 403)] == []


def test_every_permission_is_used(bed: Bed, everything: list[Request]) -> None:
    allowed = granted(_rules(bed))
    needed = used(everything, _groups(bed))
    assert needed <= allowed
    assert allowed - needed == set()


def test_no_secret_is_read(everything: list[Request]) -> None:
    assert not [r for r in everything if r.resource == "secrets"]


@pytest.mark.parametrize(
    ("kind", "namespace", "name"), [("ClusterRole", None, FULL_NAME), ("Role", NAMESPACE, f"{FULL_NAME}-lease")]
)
def test_without_any_one_rule_something_is_refused(
    bed: Bed, everything: list[Request], kind: str, namespace: str | None, name: str
) -> None:
    """Takes each rule away in turn, and asks the API server whether all that was done would still be allowed."""
    whole = bed.api.get(kind, namespace, name)["rules"]
    assert len(whole) > 1
    try:
        for left_out, rule in enumerate(whole):
            fewer = [other for number, other in enumerate(whole) if number != left_out]
            bed.api.merge(kind, namespace, name, {"rules": fewer})
            group, resource, verb = sorted(granted([rule]))[0]
            asked = next(r for r in everything if _matches(r, resource, verb))
            wait_for(f"{rule} to be missed", lambda p=(asked, group, verb): not _may(bed, *p), 10)
            bed.api.merge(kind, namespace, name, {"rules": whole})
            wait_for(f"{rule} to be back", lambda p=(asked, group, verb): _may(bed, *p), 10)
    finally:
        bed.api.merge(kind, namespace, name, {"rules": whole})


def _matches(request: Request, resource: str, verb: str) -> bool:
    made = verb == "create" and request.verb == "patch" and request.code == 201
    name = "/".join(part for part in (request.resource, request.subresource) if part)
    return name == resource and (request.verb == verb or made)


def _may(bed: Bed, request: Request, group: str, verb: str) -> bool:
    attributes = {
        "group": group,
        "resource": request.resource,
        "subresource": request.subresource,
        "verb": verb,
        "namespace": request.namespace,
        "name": request.name,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": USER, "groups": ["system:serviceaccounts"], "resourceAttributes": attributes},
    }
    answer = bed.api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])
