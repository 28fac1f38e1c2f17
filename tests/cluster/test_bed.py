"""The bed keeps its promises: simulated Pods live and fail as told, metrics answer, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from specdecode.api.names import ENGINE_PORT, PROXY_METRICS_PORT
from tests.bed import stages
from tests.bed.api import ApiError, Json
from tests.bed.audit import count_writes
from tests.bed.control_plane import ROOT, Bed, is_true
from tests.bed.fleet import Fleet
from tests.bed.processes import wait_for
from tests.bed.recorder import Recorder
from tests.cluster.workloads import engines, entry, routers

pytestmark = pytest.mark.needs_bed

WRITER = "bed:recorder"
"""Writes what the operator might; it may do anything."""


def eventually(what: str, holds: Callable[[], object], timeout: float = 15.0) -> None:
    wait_for(what, holds, timeout)


def page(address: str, port: int) -> str:
    with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def sample(text: str, series: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(series))


def ready(bed: Bed, namespace: str, count: int) -> bool:
    return sum(is_true(pod, "Ready") for pod in bed.api.list("Pod", namespace)) == count


def status(bed: Bed, namespace: str, pod: str) -> Json:
    found: Json = (bed.api.find("Pod", namespace, pod) or {}).get("status", {})
    return found


def waiting_reason(status: Json) -> str:
    found = status.get("containerStatuses") or [{}]
    return str(found[0].get("state", {}).get("waiting", {}).get("reason", ""))


def test_pods_become_ready_and_their_metrics_follow_the_scenario(bed: Bed, namespace: str, fleet: Fleet) -> None:
    fleet.play({"traffic": {"rate": 40, "life": {"median": 1}}, "behaviour": {"acceptance": [0.9, 0.5]}})
    for obj in (
        engines(namespace, "llm", 1, "prefill", 1, depth=2),
        engines(namespace, "llm", 1, "decode", 2, depth=2),
        routers(namespace, "llm", 1, 1),
        entry(namespace, "llm"),
    ):
        bed.api.apply(obj)
    eventually("4 ready Pods", lambda: ready(bed, namespace, 4))
    fleet.wait_event("first_draft", 10, namespace=namespace, revision=1)
    time.sleep(4)
    pods = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in bed.api.list("Pod", namespace)}
    decode = page(pods["llm-1-decode-0"], ENGINE_PORT)
    drafts = sample(decode, "vllm:spec_decode_num_drafts_total{")
    first = sample(
        decode, "vllm:spec_decode_num_accepted_tokens_per_pos_total{" + 'engine="0",model_name="model",position="0"'
    )
    assert drafts > 200
    assert 0.7 < first / drafts < 0.98
    assert sample(page(pods["llm-1-prefill-0"], ENGINE_PORT), "vllm:spec_decode_num_drafts_total{") == 0
    router = next(address for name, address in pods.items() if "router" in name)
    served = sample(page(router, PROXY_METRICS_PORT), 'envoy_http_downstream_rq_xx{envoy_response_code_class="2"')
    assert served > 20


def test_weights_follow_the_ready_routers_and_end_with_the_last(bed: Bed, namespace: str, fleet: Fleet) -> None:
    for revision, replicas in ((1, 3), (2, 1)):
        bed.api.apply(engines(namespace, "llm", revision, "decode", 1))
        bed.api.apply(routers(namespace, "llm", revision, replicas))
    bed.api.apply(entry(namespace, "llm"))
    fleet.wait_event("weight", 15, namespace=namespace, revision=2, weight=25.0, routers=1)
    asked = time.time()
    bed.api.merge("Deployment", namespace, "llm-2-router", {"spec": {"replicas": 0}})
    ended = fleet.wait_event("weight", 5, namespace=namespace, revision=2, routers=0)
    assert ended["weight"] == 0.0
    assert 0 <= ended["at"] - asked < 2


@pytest.mark.parametrize(
    ("fault", "reason"), [("missing", "ImagePullBackOff"), ("crash", "CrashLoopBackOff"), ("unready", "")]
)
def test_faults_and_their_end(bed: Bed, namespace: str, fault: str, reason: str) -> None:
    faulty = engines(namespace, "llm", 1, "decode", 1)
    faulty["spec"]["template"]["spec"]["containers"][0]["image"] = f"registry.example/bed-{fault}:1"
    bed.api.apply(faulty)
    if reason:
        eventually(reason, lambda: waiting_reason(status(bed, namespace, "llm-1-decode-0")) == reason)
    else:
        eventually("a running Pod", lambda: status(bed, namespace, "llm-1-decode-0").get("phase") == "Running")
        time.sleep(1)
    assert not ready(bed, namespace, 1)
    bed.api.annotate("Pod", namespace, "llm-1-decode-0", **{stages.ANNOTATION_FAULT: "none"})
    eventually("a healed Pod", lambda: ready(bed, namespace, 1))


def test_delays_by_annotation(bed: Bed, namespace: str) -> None:
    slow = engines(namespace, "llm", 1, "decode", 1)
    slow["spec"]["template"]["metadata"]["annotations"] = {
        stages.ANNOTATION_START_DELAY: "2s",
        stages.ANNOTATION_STOP_DELAY: "2s",
    }
    asked = time.monotonic()
    bed.api.apply(slow)
    eventually("a ready Pod", lambda: ready(bed, namespace, 1))
    assert 1.9 < time.monotonic() - asked < 6
    asked = time.monotonic()
    bed.api.merge("StatefulSet", namespace, "llm-1-decode", {"spec": {"replicas": 0}})
    eventually("no Pod", lambda: not bed.api.list("Pod", namespace))
    assert 1.9 < time.monotonic() - asked < 6


def test_a_lack_of_gpus_leaves_a_pod_unschedulable(bed: Bed, namespace: str) -> None:
    greedy = engines(namespace, "llm", 1, "decode", 1)
    greedy["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "100000"
    bed.api.apply(greedy)

    def said() -> str:
        pods = bed.api.list("Pod", namespace)
        conditions = pods[0]["status"].get("conditions", []) if pods else []
        return " ".join(found.get("message", "") for found in conditions if found.get("reason") == "Unschedulable")

    eventually("the scarce resource named", lambda: "nvidia.com/gpu" in said())


def test_pods_of_a_lost_node_stay_until_they_are_deleted_by_force(bed: Bed, namespace: str) -> None:
    bed.api.apply(engines(namespace, "llm", 1, "decode", 1))
    eventually("a ready Pod", lambda: ready(bed, namespace, 1))
    first = bed.api.get("Pod", namespace, "llm-1-decode-0")
    node = first["spec"]["nodeName"]
    bed.lose_node(node)
    try:
        eventually("an unready Pod", lambda: ready(bed, namespace, 0))
        bed.api.delete("Pod", namespace, "llm-1-decode-0")
        time.sleep(1.5)
        assert bed.api.get("Pod", namespace, "llm-1-decode-0")["metadata"]["uid"] == first["metadata"]["uid"]
        bed.api.delete("Pod", namespace, "llm-1-decode-0", gracePeriodSeconds=0)
        eventually("its successor", lambda: ready(bed, namespace, 1))
        assert bed.api.get("Pod", namespace, "llm-1-decode-0")["spec"]["nodeName"] != node
    finally:
        bed.restore_node(node)
    eventually("the Node back", lambda: is_true(bed.api.get("Node", None, node), "Ready"))


def test_http_routes_are_accepted(bed: Bed, namespace: str, fleet: Fleet) -> None:
    route: Json = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "llm", "namespace": namespace},
        "spec": {"parentRefs": [{"name": "gate"}], "rules": [{"backendRefs": [{"name": "llm-1", "port": 80}]}]},
    }
    bed.api.apply(route)

    def conditions() -> set[str]:
        parents = bed.api.get("HTTPRoute", namespace, "llm").get("status", {}).get("parents", [])
        return {c["type"] for parent in parents for c in parent["conditions"] if c["status"] == "True"}

    eventually("Accepted and ResolvedRefs", lambda: conditions() == {"Accepted", "ResolvedRefs"})


def test_a_service_account_has_the_rights_that_it_was_given(bed: Bed, namespace: str) -> None:
    account = bed.service_account_kubeconfig(namespace, "default")
    ran = subprocess.run(
        [bed.binaries.path("kubectl"), f"--kubeconfig={account}", "auth", "whoami", "-o", "name"],
        capture_output=True,
        text=True,
    )
    refused = subprocess.run(
        [bed.binaries.path("kubectl"), f"--kubeconfig={account}", "get", "pods", "-A"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "forbidden" in refused.stderr.lower()


def test_writes_are_counted_and_judged(bed: Bed, namespace: str, recorder: Recorder) -> None:
    since = time.time()
    as_writer = bed.client_of(WRITER)
    joined = engines(namespace, "llm", 2, "decode", 1)
    joined["spec"]["template"]["spec"]["containers"][0]["args"].append(
        "--prefill=http://llm-1-prefill-0.llm-1-prefill:8000"
    )
    as_writer.apply(joined)
    as_writer.apply(entry(namespace, "llm"))
    as_writer.delete("Service", namespace, "llm")
    with pytest.raises(ApiError):
        as_writer.get("Service", namespace, "llm")
    counted = count_writes(bed.audit_log, user=WRITER, since=since)
    assert counted[f"{WRITER} patch statefulsets"] == 1
    assert counted[f"{WRITER} patch services"] == 1
    assert counted[f"{WRITER} delete services"] == 1
    breaches = recorder.breaches(WRITER, since=since)
    assert [(found.invariant, found.what) for found in breaches] == [(2, "it names Pods of revision 1")]


@pytest.mark.parametrize("way", ["patch", "scale", "delete"])
def test_a_write_that_takes_capacity_away_is_a_breach(bed: Bed, namespace: str, recorder: Recorder, way: str) -> None:
    plain = yaml.safe_load((ROOT / "examples" / "01-plain.yaml").read_text())
    name = plain["metadata"]["name"]
    plain["metadata"]["namespace"] = namespace
    bed.api.apply(plain)
    bed.api.merge("SpecDecodeDeployment", namespace, name, {"status": {"stable": {"revision": 1}}}, "status")
    for obj in (
        engines(namespace, name, 1, "prefill", 2),
        engines(namespace, name, 1, "decode", 4),
        routers(namespace, name, 1, 2),
    ):
        bed.api.apply(obj)
    eventually("8 ready Pods", lambda: ready(bed, namespace, 8))
    time.sleep(1.2)  # Pods may be seen late, so one that has only just become ready takes nothing away
    since = time.time()
    as_writer, decode = bed.client_of(WRITER), f"{name}-1-decode"
    if way == "delete":
        as_writer.delete("StatefulSet", namespace, decode, propagationPolicy="Background")
    else:
        as_writer.merge("StatefulSet", namespace, decode, {"spec": {"replicas": 3}}, "scale" if way == "scale" else "")
    left = 0 if way == "delete" else 3
    whats = [found.what for found in recorder.breaches(WRITER, since=since)]
    assert f"ready decode Pods fall from 4 to {left}, below 4" in whats


def left_of(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_two_beds_side_by_side_leave_nothing_behind(bed: Bed) -> None:
    other = Bed()
    with other, Fleet(other) as fleet:
        assert other.network.pods != bed.network.pods
        other.namespace("mine")
        other.api.apply(engines("mine", "llm", 1, "decode", 1))
        eventually("a ready Pod", lambda: ready(other, "mine", 1))
        address = other.api.get("Pod", "mine", "llm-1-decode-0")["status"]["podIP"]
        assert address.startswith(other.network.pods.removesuffix("0.0/16"))
        fleet.wait_event("pod_ready", 5, namespace="mine")
        assert "vllm:num_requests_running" in page(address, ENGINE_PORT)
        assert bed.api.find("Namespace", None, "mine") is None
        pids = [child.process.pid for child in [*other.children().values(), fleet.child]]
        assert left_of(pids) == pids
    assert left_of(pids) == []
    assert not other.state.exists()


def test_a_killed_bed_takes_its_processes_along(tmp_path: Path) -> None:
    code = (
        "import time\nfrom tests.bed.control_plane import Bed\nwith Bed() as bed:\n"
        "    print(*[c.process.pid for c in bed.children().values()], bed.state, flush=True)\n    time.sleep(60)\n"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "operator")])
    environment = os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    *numbers, _ = parent.stdout.readline().split()
    pids = [int(number) for number in numbers]
    assert len(left_of(pids)) == 5
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    eventually("no process left", lambda: not left_of(pids), 5)
