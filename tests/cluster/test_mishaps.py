"""What people and clusters do to a rollout: Pods that can't run, edits in mid-canary, requests, two operators."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.bed.api import Json
from tests.bed.audit import requests
from tests.bed.control_plane import OPERATOR, OPERATOR_NAMESPACE, Bed
from tests.bed.fleet import Fleet
from tests.bed.operator_process import OperatorProcess
from tests.bed.recorder import Recorder
from tests.bed.resource import KIND
from tests.bed.rough_api import RoughApi
from tests.bench.deployed import BUSY, COLLAPSED, GOOD, IMAGE, NAME, Deployed

pytestmark = pytest.mark.needs_bed

Start = Callable[..., OperatorProcess]


def play(fleet: Fleet, *rules: Json) -> None:
    fleet.play({"traffic": BUSY, "behaviour": GOOD, "rules": list(rules)})


def image(name: str) -> Json:
    return {"engine": {"image": f"vllm:0.33.0{name}"}}


@pytest.fixture
def operate(namespace: str, start_operator: Start) -> Start:
    """Starts an operator for the test's namespace."""

    def start(*arguments: str, **options: Any) -> OperatorProcess:
        own = ["--namespace", namespace, "--lease-duration", "9", "--lease-retry", "1"]
        return start_operator(*own, *arguments, **options)

    return start


@pytest.fixture
def deployed(bed: Bed, fleet: Fleet, namespace: str, recorder: Recorder) -> Deployed:
    """A resource to be; healthy Pods and busy traffic."""
    play(fleet)
    return Deployed(bed, fleet, namespace)


def small(deployed: Deployed, **rollout: Any) -> None:
    """Applies 1 prefill, 2 decode, 2 routers, and waits until it is Ready."""
    deployed.apply(prefill=1, decode=2, weights=(20, 100), **rollout)
    deployed.wait_ready()


def numbers(deployed: Deployed) -> set[str]:
    """Revisions that have workloads."""
    return {name.split("-")[1] for name in deployed.workloads()}


@pytest.mark.parametrize(
    ("mark", "reason", "said"),
    [
        ("-bed-crash", "CrashLooping", "CrashLoopBackOff"),
        ("-bed-missing", "ImagePullFailing", "failed to pull image"),
    ],
)
def test_pods_that_can_t_run_are_rejected_at_the_progress_deadline(
    deployed: Deployed, operate: Start, recorder: Recorder, mark: str, reason: str, said: str
) -> None:
    operate()
    small(deployed, progressDeadline="8s")
    deployed.change(image(mark))
    deployed.wait("its end", lambda: deployed.rejected().get(2) == reason, 40)
    deployed.wait("rest", deployed.at_rest)
    status, why, message = deployed.condition("Stalled")
    assert (status, why) == ("True", "RolledBack")
    assert said in message
    assert deployed.condition("Available")[0] == "True"
    assert numbers(deployed) == {"1"}
    assert deployed.fleet.events("weight", namespace=deployed.namespace, revision=2) == []
    assert recorder.breaches(OPERATOR) == []


def test_pods_without_room_are_held_and_the_scarce_resource_is_named(
    deployed: Deployed, operate: Start, bed: Bed
) -> None:
    operate()
    small(deployed, progressDeadline="8s")
    bed.set_gpus(0)
    try:
        deployed.change()
        deployed.wait("Stalled", lambda: deployed.condition("Stalled")[1] == "Unschedulable", 40)
        assert "Insufficient nvidia.com/gpu" in deployed.condition("Stalled")[2]
        assert "Insufficient nvidia.com/gpu" in deployed.why()
        time.sleep(10)
        assert (deployed.stable(), deployed.canary(), deployed.rejected()) == (1, 2, {})
    finally:
        bed.set_gpus(256)
    deployed.wait("promotion", lambda: deployed.stable() == 2, 400)
    deployed.wait_ready()


def test_deleted_in_mid_canary_all_of_it_goes(deployed: Deployed, operate: Start) -> None:
    operator = operate()
    small(deployed)
    deployed.change()
    deployed.wait_event("first_draft", 60)
    deployed.bed.api.delete(KIND, deployed.namespace, NAME)
    kinds = ("StatefulSet", "Deployment", "ControllerRevision", "PodDisruptionBudget", "Pod", "Service", "ConfigMap")

    def left() -> list[str]:
        found = [(kind, obj["metadata"]) for kind in kinds for obj in deployed.bed.api.list(kind, deployed.namespace)]
        return [f"{kind} {meta['name']}" for kind, meta in found if meta["name"] != "kube-root-ca.crt"]

    deployed.wait("the end of all objects", lambda: not left(), 60)
    time.sleep(2)
    assert left() == []
    assert "Traceback" not in operator.log()


def test_edits_in_mid_canary(deployed: Deployed, operate: Start, recorder: Recorder) -> None:
    """A to B and back rejects nothing; A to B to C drops B, and C begins at the first step."""
    operate()
    small(deployed)
    deployed.change(image("-b"))
    deployed.wait_event("first_draft", 60)
    deployed.change(image(""))
    deployed.wait("B's end", lambda: numbers(deployed) == {"1"})
    deployed.wait_ready()
    assert (deployed.stable(), deployed.rejected()) == (1, {})

    deployed.change(image("-b"))
    deployed.wait("B again, under its old number", lambda: deployed.canary() == 2)
    deployed.change(image("-c"))
    deployed.wait("C", lambda: deployed.canary() == 3)
    assert deployed.status()["rollout"]["step"] == 1
    deployed.wait("C's promotion", lambda: deployed.stable() == 3, 400)
    deployed.wait("rest", deployed.at_rest)
    assert deployed.rejected() == {}
    assert numbers(deployed) == {"3"}
    assert recorder.breaches(OPERATOR) == []


def test_paused_it_holds_and_a_fall_still_acts(deployed: Deployed, operate: Start) -> None:
    operate()
    small(deployed)
    deployed.change()
    deployed.wait_event("first_draft", 60)
    deployed.change({"rollout": {"paused": True}})
    deployed.wait("a Pass", lambda: deployed.status()["rollout"].get("stepPassedAt"), 240)
    time.sleep(5)
    rollout = deployed.status()["rollout"]
    assert (rollout["phase"], rollout["step"]) == ("Analysing", 1)
    play(deployed.fleet, {"match": {"namespace": deployed.namespace, "revision": 2}} | COLLAPSED)
    deployed.wait("the rollback", lambda: 2 in deployed.rejected(), 90)
    assert deployed.traffic_gone() is not None


def test_what_a_person_asks_for(deployed: Deployed, operate: Start) -> None:
    """Abort rejects, retry tries again, promote passes the step that it names without evidence, and no other."""
    operate()
    small(deployed, analysis={"interval": "2s", "minRequests": 100000})
    play(deployed.fleet, {"match": {"namespace": deployed.namespace, "revision": 2}, "idle": True})
    deployed.change()
    deployed.wait("step 1", lambda: deployed.status()["rollout"]["phase"] == "Analysing")
    deployed.ask(abort="2")
    deployed.wait("the abort", lambda: deployed.rejected() == {2: "Aborted"})
    deployed.wait("rest", deployed.at_rest)
    deployed.ask(abort=None, retry="2/1")
    deployed.wait("another try", lambda: deployed.status()["rollout"]["phase"] == "Analysing")
    deployed.ask(promote="2/2")
    time.sleep(3)
    assert deployed.status()["rollout"]["step"] == 1
    deployed.ask(promote="2/1")
    deployed.wait("step 2", lambda: deployed.status()["rollout"]["phase"] == "Promoting", 120)
    deployed.ask(promote="2/2")
    deployed.wait("promotion", lambda: deployed.stable() == 2, 60)
    deployed.wait_ready()
    assert deployed.rejected() == {}


def test_a_frozen_leader_that_wakes_up_writes_nothing(
    deployed: Deployed, operate: Start, bed: Bed, namespace: str
) -> None:
    """Two operators, told apart by their users; the leader stands still for longer than its Lease lasts."""
    api = "rbac.authorization.k8s.io/v1"
    bed.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "one", "namespace": namespace}})
    bed.api.apply(
        {
            "apiVersion": api,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "one", "namespace": namespace}],
        }
    )

    def holder() -> str:
        lease = bed.api.find("Lease", OPERATOR_NAMESPACE, "specdecode-operator") or {}
        return str(lease.get("spec", {}).get("holderIdentity") or "")

    # Long enough that a busy machine alone costs neither its Lease.
    long = ("--lease-duration", "20")
    first = operate(*long, kubeconfig=bed.service_account_kubeconfig(namespace, "one"), user="one")
    deployed.wait("the first's turn", lambda: "holding the Lease" in first.log(), 30)
    frozen = holder()
    small(deployed)
    operate(*long)
    deployed.change()
    deployed.wait_event("first_draft", 60)
    os.kill(first.child.process.pid, signal.SIGSTOP)
    try:
        deployed.wait("the second's turn", lambda: holder() not in ("", frozen), 60)
        taken, mark = holder(), time.time()
    finally:
        os.kill(first.child.process.pid, signal.SIGCONT)
    deployed.wait("promotion", lambda: deployed.stable() == 2, 400)
    deployed.wait_ready()
    assert holder() == taken
    user = f"system:serviceaccount:{namespace}:one"
    late = [r for r in requests(bed.audit_log, user=user, since=mark) if r.is_write]
    assert [f"{r.verb} {r.resource} {r.name}" for r in late] == []
    assert [r for r in requests(bed.audit_log, user=user) if r.is_write and r.namespace == namespace]
    bed.api.delete("ClusterRoleBinding", None, namespace)


def test_a_fault_that_only_the_operator_sees_leaves_all_running(deployed: Deployed, operate: Start) -> None:
    operate()
    small(deployed)
    before = deployed.workloads()
    deployed.change({"engine": {"args": {"max-num-seqz": "64"}}})
    deployed.wait("the condition", lambda: deployed.condition("Stalled")[0] == "True", 20)
    message = deployed.condition("Stalled")[2]
    assert "spec.engine.args.max-num-seqz" in message
    assert "did you mean max-num-seqs?" in message
    time.sleep(3)
    assert deployed.workloads() == before
    assert deployed.condition("Available")[0] == "True"
    deployed.change({"engine": {"args": None}})
    deployed.wait_ready(20)
    assert deployed.workloads() == before
    assert deployed.canary() is None


def test_an_api_server_on_a_bad_day_costs_time_and_nothing_else(
    deployed: Deployed, operate: Start, bed: Bed, recorder: Recorder
) -> None:
    """A tenth of all requests is refused (429, 500) or loses its answer, and no watch lives longer than 8 s."""
    with RoughApi(bed, 0.1) as rough:
        operator = operate(kubeconfig=rough.kubeconfig_of(OPERATOR))
        small(deployed)
        play(deployed.fleet, {"match": {"namespace": deployed.namespace, "revision": 2}} | COLLAPSED)
        deployed.change()
        deployed.wait("its rejection", lambda: 2 in deployed.rejected(), 120)
        deployed.wait("rest", deployed.at_rest)
        assert deployed.rejected()[2] == "AcceptanceCollapsed"
        deployed.change({"engine": {"image": IMAGE, "env": [{"name": "GOOD", "value": "1"}]}})
        deployed.wait("promotion", lambda: deployed.stable() == 3, 400)
        deployed.wait_ready()
        seen = dict(rough.done)
        operator.stop()
    assert min(seen.get(kind, 0) for kind in ("429", "500", "answer lost", "watch cut")) > 0, seen
    assert recorder.breaches(OPERATOR) == []
    assert "Traceback" not in operator.log()


def in_mid_canary(deployed: Deployed) -> None:
    """A small one whose canary has drafted."""
    small(deployed)
    deployed.change()
    deployed.wait_event("first_draft", 60)


def all_goes(deployed: Deployed) -> None:
    """Pods and their StatefulSets go, and nobody makes them again."""
    api, namespace = deployed.bed.api, deployed.namespace
    deployed.wait("its end", lambda: not api.list("Pod", namespace) and not api.list("StatefulSet", namespace))
    time.sleep(3)
    assert api.list("StatefulSet", namespace) == []


def test_a_namespace_that_ends_in_mid_canary_takes_all_with_it(
    deployed: Deployed, operate: Start, bed: Bed, namespace: str
) -> None:
    operator = operate()
    in_mid_canary(deployed)
    bed.api.delete("Namespace", None, namespace)
    all_goes(deployed)
    assert "Traceback" not in operator.log()


def test_deleted_in_the_foreground_its_objects_go_and_are_not_made_again(
    deployed: Deployed, operate: Start, bed: Bed, namespace: str
) -> None:
    operator = operate()
    in_mid_canary(deployed)
    mark = time.time()
    bed.kubectl("delete", KIND.lower(), NAME, "-n", namespace, "--cascade=foreground", "--timeout=90s")
    made = [r for r in requests(bed.audit_log, user=OPERATOR, since=mark + 1.0) if r.is_write and r.verb == "create"]
    assert [
        f"{r.verb} {r.resource} {r.name}" for r in made if r.namespace == namespace and r.resource != "events"
    ] == []
    all_goes(deployed)
    assert "Traceback" not in operator.log()


def test_a_deleted_record_of_the_serving_revision_is_written_again(
    deployed: Deployed, operate: Start, bed: Bed
) -> None:
    operate()
    small(deployed)

    def records() -> dict[str, str]:
        found = bed.api.list("ControllerRevision", deployed.namespace)
        return {f["metadata"]["name"]: f["metadata"]["uid"] for f in found if f["metadata"]["name"].startswith(NAME)}

    before = records()
    name = next(iter(before))
    bed.api.delete("ControllerRevision", deployed.namespace, name)
    deployed.wait("it again", lambda: records().get(name) not in (None, before[name]), 30)
    deployed.change()
    deployed.wait("promotion", lambda: deployed.stable() == 2, 400)
    deployed.wait_ready()
