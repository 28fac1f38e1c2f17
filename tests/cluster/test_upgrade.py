"""An upgrade of the operator rolls nobody's Pods, whatever it renders differently."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import pytest

from tests.bed.api import Json
from tests.bed.audit import requests
from tests.bed.control_plane import OPERATOR, Bed
from tests.bed.fleet import Fleet
from tests.bed.operator_process import OperatorProcess
from tests.bench.deployed import Deployed
from tests.cluster.upgraded_operator import MARK

pytestmark = pytest.mark.needs_bed

FROZEN: Final = ("StatefulSet", "Deployment", "ConfigMap", "ControllerRevision")


def frozen(deployed: Deployed) -> dict[str, Json]:
    """What an upgrade may not change: Pods by UID, and everything that Pods are made from."""
    found: dict[str, Json] = {
        pod["metadata"]["name"]: {"uid": pod["metadata"]["uid"]}
        for pod in deployed.bed.api.list("Pod", deployed.namespace)
    }
    for kind in FROZEN:
        for obj in deployed.bed.api.list(kind, deployed.namespace):
            body = obj.get("data") or obj["spec"]["template"]
            found[f"{kind} {obj['metadata']['name']}"] = body
    return found


def image_of(template: Json) -> str:
    """Image of a Pod template's first container."""
    image: str = template["spec"]["containers"][0]["image"]
    return image


def marked(deployed: Deployed) -> set[str]:
    """Workloads whose Pod template is of the later version's making."""
    workloads = [obj for kind in FROZEN[:2] for obj in deployed.bed.api.list(kind, deployed.namespace)]
    return {
        obj["metadata"]["name"]
        for obj in workloads
        if MARK in (obj["spec"]["template"]["metadata"].get("annotations") or {})
    }


def test_an_upgrade_rolls_nothing(
    bed: Bed, fleet: Fleet, namespace: str, start_operator: Callable[..., OperatorProcess]
) -> None:
    deployed = Deployed(bed, fleet, namespace)
    own = ["--namespace", namespace, "--lease-duration", "9", "--lease-retry", "1"]
    before = start_operator(*own)
    deployed.apply(prefill=1, decode=2, weights=(20, 100))
    deployed.wait_ready()
    old = frozen(deployed)
    before.stop()

    upgraded = [*own, "--router-image", "specdecode-router:later"]
    program = [sys.executable, "-m", "tests.cluster.upgraded_operator"]
    since = time.time()
    after = start_operator(*upgraded, program=program)
    deployed.wait("its turn", lambda: "holding the Lease" in after.log(), 30)
    # What is rendered live goes on: one more decode Pod, of the revision's own making.
    deployed.change({"topology": {"decode": {"replicas": 3}}})
    deployed.wait("three decode Pods", lambda: deployed.status()["stable"]["decode"] == 3)
    deployed.wait_ready()
    new = frozen(deployed)
    # A router's list of Pods is longer now, so its template is, and its Pods are, others.
    kept = {name: body for name, body in new.items() if name in old and "router" not in name}
    assert kept == {name: body for name, body in old.items() if "router" not in name}
    (router,) = bed.api.list("Deployment", namespace)
    assert image_of(router["spec"]["template"]) == image_of(old["Deployment llm-1-router"])
    assert marked(deployed) == set()
    assert deployed.status()["currentRevision"] == 1
    writes = [r for r in requests(bed.audit_log, user=OPERATOR, since=since) if r.is_write and r.namespace == namespace]
    assert {r.resource for r in writes} <= {"leases", "specdecodedeployments", "statefulsets", "deployments", "events"}

    # The next change of the spec is rendered by the later version, and going back brings the old rendering again.
    deployed.change()
    deployed.wait("the canary's Pods", lambda: "llm-2-decode" in marked(deployed))
    assert marked(deployed) <= {"llm-2-prefill", "llm-2-decode", "llm-2-router"}
    deployed.change({"engine": {"image": "vllm:0.33.0"}})
    deployed.wait_ready()
    deployed.wait("one revision", deployed.at_rest)
    assert deployed.stable() == 1
    assert marked(deployed) == set()
