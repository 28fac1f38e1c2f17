"""The real operator on a real control plane: its main job, and what it does when it is hindered."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bed.audit import count_writes
from tests.bed.control_plane import OPERATOR, OPERATOR_NAMESPACE, Bed
from tests.bed.fleet import Fleet
from tests.bed.operator_process import OperatorProcess
from tests.bed.processes import BedError, wait_for
from tests.bed.recorder import Recorder

pytestmark = pytest.mark.needs_bed

SCENARIOS = Path(__file__).parents[1] / "bed" / "scenarios"
BUSY = {"rate": 100, "life": {"median": 3, "sigma": 0.6}}
GOOD = {"acceptance": [0.92, 0.84, 0.74], "concentration": 8, "draftRate": 20}
LEASE = (OPERATOR_NAMESPACE, "specdecode-operator")
Start = Callable[..., OperatorProcess]


def play(fleet: Fleet, canary: dict[str, Any] | None = None) -> None:
    """Busy traffic, and revision 2 as given; else as good as revision 1."""
    rules = [{"match": {"revision": 2}} | canary] if canary else []
    fleet.play({"traffic": BUSY, "behaviour": GOOD, "rules": rules})


def conditions(resource: dict[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = resource.get("status", {}).get("conditions", [])
    return found


class World:
    """One resource in a namespace of its own, and what can be seen of it."""

    def __init__(self, bed: Bed, fleet: Fleet, namespace: str, start: Start) -> None:
        self.bed, self.fleet, self.namespace, self._start = bed, fleet, namespace, start
        self.operators: list[OperatorProcess] = []

    def operate(self, *arguments: str, **options: Any) -> OperatorProcess:
        """Starts an operator for this namespace."""
        base = ["--namespace", self.namespace, "--lease-duration", "9", "--lease-retry", "1"]
        self.operators.append(self._start(*base, *arguments, **options))
        return self.operators[-1]

    def apply(self, **rollout: Any) -> None:
        """Applies the resource: 1 prefill, 2 decode, 2 routers."""
        spec = {
            "model": {"name": "org/glm"},
            "speculation": {"depth": 3},
            "engine": {"image": "vllm:0.33.0"},
            "topology": {"prefill": {"replicas": 1}, "decode": {"replicas": 2}},
            "rollout": {
                "steps": [{"weight": 20}, {"weight": 100}],
                "promotionDelay": "1s",
                "analysis": {"interval": "2s"},
            }
            | rollout,
        }
        metadata = {"name": "glm", "namespace": self.namespace}
        self.bed.api.apply(
            {
                "apiVersion": "specdecode.dev/v1alpha1",
                "kind": "SpecDecodeDeployment",
                "metadata": metadata,
                "spec": spec,
            }
        )

    def edit(self, image: str = "vllm:0.33.0-next") -> None:
        """Changes the spec, so that a canary begins."""
        patch = {"spec": {"engine": {"image": image}}}
        self.bed.api.merge("SpecDecodeDeployment", self.namespace, "glm", patch)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.bed.api.get("SpecDecodeDeployment", self.namespace, "glm").get("status", {})
        return found

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        for condition in conditions({"status": self.status()}):
            if condition["type"] == kind:
                return condition["status"], condition["reason"]
        return "", ""

    def wait(self, what: str, holds: Callable[[], object], seconds: float = 60.0) -> None:
        """Waits until it holds; raises BedError with what is known if it doesn't."""
        try:
            wait_for(what, holds, seconds)
        except BedError as error:
            resource = self.bed.api.find("SpecDecodeDeployment", self.namespace, "glm") or {}
            said = [f"{c['type']} {c['status']} {c['reason']}: {c['message']}" for c in conditions(resource)]
            logs = [line for operator in self.operators for line in operator.log().splitlines()[-20:]]
            raise BedError("\n".join([str(error), *said, *logs])) from error

    def wait_ready(self, seconds: float = 60.0) -> None:
        self.wait("Ready", lambda: self.condition("Ready")[0] == "True", seconds)

    def holder(self) -> str:
        lease = self.bed.api.find("Lease", *LEASE)
        return str(lease["spec"]["holderIdentity"]) if lease else ""


@pytest.fixture
def world(bed: Bed, fleet: Fleet, namespace: str, start_operator: Start) -> World:
    if bed.api.find("Lease", *LEASE):
        # Of the test before, whose operator was killed; there is no need to wait for the Lease's end.
        bed.api.delete("Lease", *LEASE)
    return World(bed, fleet, namespace, start_operator)


def test_a_collapsing_canary_is_taken_away_within_seconds(world: World, recorder: Recorder) -> None:
    play(world.fleet, {"acceptance": [0.08, 0.015, 0.005]})
    world.operate()
    world.apply()
    world.wait_ready()
    world.edit()
    draft = world.fleet.wait_event("first_draft", 60, namespace=world.namespace, revision=2)
    gone = world.fleet.wait_event("weight", 20, namespace=world.namespace, revision=2, weight=0.0)
    assert gone["at"] - draft["at"] <= 10.0
    world.wait("the rollback's end", lambda: world.status().get("rejected"))
    (rejected,) = world.status()["rejected"]
    assert (rejected["revision"], rejected["reason"]) == (2, "AcceptanceCollapsed")
    assert re.search(r"accepts [0-9.]+ tokens a draft where stable accepts [0-9.]+", rejected["message"])
    world.wait("one revision", lambda: len(world.bed.api.list("StatefulSet", world.namespace)) == 2)
    world.wait("rest", lambda: world.condition("Ready") == ("False", "RolledBack"))
    assert world.condition("Available")[0] == "True"
    reasons = {event["reason"] for event in world.bed.api.list("Event", world.namespace)}
    assert {"RevisionRecorded", "CanaryStarted", "RollingBack", "RolledBack"} <= reasons
    assert recorder.breaches(OPERATOR) == []


def test_a_canary_whose_requests_fail_is_taken_away(world: World) -> None:
    play(world.fleet, {"failing": 1, "drafting": False})
    world.operate()
    world.apply()
    world.wait_ready()
    world.edit()
    world.wait("the rollback's end", lambda: world.status().get("rejected"))
    assert world.status()["rejected"][0]["reason"] == "RequestsFailing"


def test_a_harmless_change_is_promoted(world: World, recorder: Recorder) -> None:
    play(world.fleet)
    world.operate()
    world.apply()
    world.wait_ready()
    world.edit()
    world.wait("promotion", lambda: world.status().get("stable", {}).get("revision") == 2, 240)
    world.wait_ready()
    assert world.status()["baseline"]["revision"] == 2
    assert world.status().get("rejected", []) == []
    assert recorder.breaches(OPERATOR) == []


def test_when_nothing_changes_nothing_is_written(world: World) -> None:
    play(world.fleet)
    world.operate()
    world.apply()
    guard = {"spec": {"guard": {"interval": "1s"}}}
    world.bed.api.merge("SpecDecodeDeployment", world.namespace, "glm", guard)
    world.wait_ready()
    world.wait("the guard's first word", lambda: world.condition("AcceptanceHealthy") == ("True", "AcceptanceHeld"))
    time.sleep(3)
    since = time.time()
    time.sleep(15)
    writes = count_writes(world.bed.audit_log, user=OPERATOR, since=since)
    assert {name for name in writes if not name.endswith("leases")} == set()


def test_told_to_stop_it_hands_over_at_once(world: World) -> None:
    first = world.operate()
    world.wait("a leader", world.holder)
    second = world.operate()
    before = world.holder()
    time.sleep(3)
    assert world.holder() == before
    first.stop()
    assert first.child.process.returncode == 0
    world.wait("the other's turn", lambda: world.holder() not in ("", before), 5)
    world.apply()
    world.wait_ready()
    assert "stopped" in first.log()
    assert "holding the Lease" in second.log()


def test_killed_it_goes_on_where_it_was(world: World) -> None:
    play(world.fleet)
    operator = world.operate()
    world.apply(steps=[{"weight": 20, "pause": {}}, {"weight": 100}])
    world.wait_ready()
    world.edit()
    world.wait("a Pass", lambda: world.status().get("rollout", {}).get("stepPassedAt"), 240)
    before = world.status()["rollout"]
    operator.kill()
    operator.start()
    mark = time.time()
    world.wait("its return", lambda: "holding the Lease" in operator.log().rpartition("listening on")[2], 30)
    time.sleep(5)
    assert world.status()["rollout"] == before
    kinds = count_writes(world.bed.audit_log, user=OPERATOR, since=mark)
    assert {name.rpartition(" ")[2] for name in kinds} <= {"leases", "specdecodedeployments/status"}
    annotation = {"specdecode.dev/promote": "2/1"}
    world.bed.api.annotate("SpecDecodeDeployment", world.namespace, "glm", **annotation)
    world.wait("promotion", lambda: world.status().get("stable", {}).get("revision") == 2, 120)


def test_a_name_that_is_taken_is_left_alone_and_told(world: World) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "glm", "namespace": world.namespace},
        "spec": {"ports": [{"port": 1}], "selector": {"app": "theirs"}},
    }
    world.bed.api.create(theirs)
    operator = world.operate()
    world.apply()
    world.wait("the condition", lambda: world.condition("Stalled")[0] == "True")
    message = next(c["message"] for c in world.status()["conditions"] if c["type"] == "Stalled")
    assert "Service glm" in message
    assert world.bed.api.get("Service", world.namespace, "glm")["spec"]["selector"] == {"app": "theirs"}
    world.bed.api.delete("Service", world.namespace, "glm")
    world.wait_ready(90)
    operator.child.check()


def rbac(world: World, *forbidden: str) -> None:
    """A ServiceAccount `op` that may do in its namespace what an operator needs, but for some writes."""

    def rule(group: str, resources: list[str], verbs: list[str]) -> dict[str, Any]:
        return {"apiGroups": [group], "resources": resources, "verbs": verbs}

    read, write = ["get", "list", "watch"], ["create", "patch", "delete"]
    owned = {"apps": ["statefulsets", "deployments", "controllerrevisions"], "policy": ["poddisruptionbudgets"]}
    owned |= {"": ["pods", "services", "configmaps", "events"], "gateway.networking.k8s.io": ["httproutes"]}
    owned |= {"networking.k8s.io": ["networkpolicies"]}
    rules = [rule("specdecode.dev", ["specdecodedeployments"], read)]
    rules += [rule("specdecode.dev", ["specdecodedeployments/status"], ["patch"])]
    rules += [rule("coordination.k8s.io", ["leases"], ["get", "create", "update"])]
    for group, resources in owned.items():
        rules.append(rule(group, resources, read))
        allowed = [name for name in resources if name not in forbidden]
        rules += [rule(group, allowed, write)] if allowed else []
    api, ns = "rbac.authorization.k8s.io/v1", world.namespace
    account = {"kind": "ServiceAccount", "name": "op", "namespace": ns}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "op"}
    metadata = {"name": "op", "namespace": ns}
    world.bed.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    world.bed.api.apply({"apiVersion": api, "kind": "Role", "metadata": metadata, "rules": rules})
    binding = {"apiVersion": api, "kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": [account]}
    world.bed.api.apply(binding)


def test_a_missing_permission_is_told_and_tried_again(world: World) -> None:
    """With a Role in one namespace and nothing else: not even the CRD can be read."""
    rbac(world, "statefulsets")
    account = world.bed.service_account_kubeconfig(world.namespace, "op")
    operator = world.operate("--lease-namespace", world.namespace, kubeconfig=account)
    world.apply()
    world.wait("the condition", lambda: world.condition("Stalled") == ("True", "WriteRefused"))
    message = next(c["message"] for c in world.status()["conditions"] if c["type"] == "Stalled")
    assert "StatefulSet glm-1-decode" in message
    assert "cannot patch resource" in message
    rbac(world)
    world.wait_ready(90)
    operator.child.check()
    assert "Traceback" not in operator.log()


def test_a_deleted_resource_s_series_vanish(world: World) -> None:
    operator = world.operate()
    world.apply()
    world.wait_ready()
    world.wait("its series", lambda: 'specdecode_ready_pods{arm="stable",name="glm"' in operator.metrics())
    world.bed.api.delete("SpecDecodeDeployment", world.namespace, "glm")
    world.wait("their end", lambda: 'name="glm"' not in operator.metrics())
    world.wait("the objects' end", lambda: not world.bed.api.list("StatefulSet", world.namespace))


def test_without_its_crd_it_says_so_and_ends() -> None:
    with Bed() as bare:
        operator = OperatorProcess(bare, wait=False)
        operator.start()
        assert operator.child.process.wait(30) == 1
        assert "the cluster has no CRD specdecodedeployments.specdecode.dev: apply the CRD" in operator.log()


def test_a_pod_on_a_node_that_is_gone_is_replaced(world: World) -> None:
    """The StatefulSet alone would wait for the node's word for ever."""
    world.operate()
    world.apply()
    world.wait_ready()
    pod = world.bed.api.get("Pod", world.namespace, "glm-1-decode-0")
    node = pod["spec"]["nodeName"]
    world.bed.lose_node(node)
    try:
        world.bed.api.delete("Pod", world.namespace, "glm-1-decode-0", gracePeriodSeconds=1)

        def replaced() -> bool:
            found = world.bed.api.find("Pod", world.namespace, "glm-1-decode-0")
            return found is not None and found["metadata"]["uid"] != pod["metadata"]["uid"]

        time.sleep(5)
        assert not replaced()
        world.wait("another Pod", replaced, 60)
    finally:
        world.bed.restore_node(node)
