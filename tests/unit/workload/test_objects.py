"""What a plan becomes: numbers, lists of Pods, surges, the entry."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.acceptance.arm import TRIES
from specdecode.api import SpecDecodeDeploymentStatus
from specdecode.api.topology import GatewaySpec
from specdecode.rollout.types import ArmTarget, Plan, RevisionRecord
from specdecode.workload import controller_revision, desired, observe, preview, record, render
from specdecode.workload.router import proxy_config
from tests.unit.engine.specs import resource, spec

GATEWAY = {"traffic.gateway": {"parentRefs": [{"name": "public"}]}}


def _target(revision: int = 2, **changes: Any) -> ArmTarget:
    values: dict[str, Any] = {
        "prefill": 1,
        "decode": 2,
        "router": 1,
        "backends": (1, 2),
        "router_surge": True,
    } | changes
    return ArmTarget(revision=revision, **values)


def _desired(
    changes: dict[str, Any] | None,
    *targets: ArmTarget,
    weights: dict[int, int] | None = None,
    gateway: GatewaySpec | None = None,
    split: str = "",
) -> dict[tuple[str, str], dict[str, Any]]:
    made = resource(changes)
    rendering = render(made, router_image="r:1")
    records = {t.revision: RevisionRecord(t.revision, made.spec, rendering) for t in targets}
    plan = Plan(
        status=SpecDecodeDeploymentStatus(split=split),
        arms=targets,
        weights=weights,
        gateway=gateway or made.spec.traffic.gateway,
    )
    objects = desired(made, plan, records)
    found = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    assert len(found) == len(objects)
    return found


def test_names_and_owners() -> None:
    found = _desired({}, _target())
    assert set(found) == {
        ("Service", "demo"),
        ("Service", "demo-2"),
        ("Service", "demo-2-prefill"),
        ("Service", "demo-2-decode"),
        ("StatefulSet", "demo-2-prefill"),
        ("StatefulSet", "demo-2-decode"),
        ("Deployment", "demo-2-router"),
        ("ConfigMap", "demo-2-router"),
        ("PodDisruptionBudget", "demo-2-prefill"),
        ("PodDisruptionBudget", "demo-2-decode"),
        ("PodDisruptionBudget", "demo-2-router"),
    }
    for item in found.values():
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("SpecDecodeDeployment", "demo", "7d5c")
        assert item["metadata"]["namespace"] == "prod"
        assert item["metadata"]["labels"]["specdecode.dev/deployment"] == "demo"


def test_names_fit_for_the_longest_name() -> None:
    made = resource()
    longest = made.model_copy(update={"metadata": made.metadata.model_copy(update={"name": "a" * 40})})
    for item in preview(longest, router_image="r:1"):
        # A StatefulSet's Pods carry <name>-<hash of 10> as a label, whose bound is 63.
        assert len(item["metadata"]["name"]) <= 52


def test_two_arms_share_nothing_but_the_entry() -> None:
    found = _desired({}, _target(1), _target(2))
    for (kind, name), item in found.items():
        revision = item["metadata"]["labels"].get("specdecode.dev/revision")
        assert (revision is None) == ((kind, name) == ("Service", "demo"))
        if revision is not None:
            assert name == f"demo-{revision}" or name.startswith(f"demo-{revision}-")
    args = found["Deployment", "demo-1-router"]["spec"]["template"]["spec"]["containers"][1]["args"]
    assert all("demo-2" not in word for word in args)


def test_replicas_of_an_autoscaler_are_left_alone() -> None:
    found = _desired({"topology.decode": {"maxReplicas": 6}}, _target(decode=None, backends=(1, 6)))
    assert "replicas" not in found["StatefulSet", "demo-2-decode"]["spec"]
    assert found["StatefulSet", "demo-2-prefill"]["spec"]["replicas"] == 1
    args = found["Deployment", "demo-2-router"]["spec"]["template"]["spec"]["containers"][1]["args"]
    assert sum(word == "--decode" for word in args) == 6


@pytest.mark.parametrize(
    ("surge", "strategy"), [(True, {"maxSurge": 1, "maxUnavailable": 0}), (False, {"maxSurge": 0, "maxUnavailable": 1})]
)
def test_router_surge(surge: bool, strategy: dict[str, int]) -> None:
    found = _desired({}, _target(router_surge=surge, router=3))
    router = found["Deployment", "demo-2-router"]
    assert router["spec"]["replicas"] == 3
    assert router["spec"]["strategy"] == {"type": "RollingUpdate", "rollingUpdate": strategy}


def test_the_list_of_pods() -> None:
    router = _desired({}, _target())["Deployment", "demo-2-router"]
    template = router["spec"]["template"]
    assert template["metadata"]["annotations"]["specdecode.dev/backends"] == "1/2"
    assert template["spec"]["containers"][1]["args"][-6:] == [
        *("--prefill", "http://demo-2-prefill-0.demo-2-prefill.prod.svc:8000"),
        *("--decode", "http://demo-2-decode-0.demo-2-decode.prod.svc:8000"),
        *("--decode", "http://demo-2-decode-1.demo-2-decode.prod.svc:8000"),
    ]
    volumes = {v["name"]: v for v in template["spec"]["volumes"]}
    assert volumes["envoy-config"] == {"name": "envoy-config", "configMap": {"name": "demo-2-router"}}


def test_aggregated_serving() -> None:
    found = _desired({"topology.prefill": None}, _target(prefill=None, backends=(0, 2)))
    assert ("StatefulSet", "demo-2-prefill") not in found
    args = found["Deployment", "demo-2-router"]["spec"]["template"]["spec"]["containers"][1]["args"]
    assert args[-3:] == [
        "--worker-urls",
        "http://demo-2-decode-0.demo-2-decode.prod.svc:8000",
        "http://demo-2-decode-1.demo-2-decode.prod.svc:8000",
    ]
    assert "--vllm-pd-disaggregation" not in args


_SIZE = st.integers(0, 64)


@settings(max_examples=30)
@given(prefill=_SIZE, decode=_SIZE, router=st.integers(0, 20), listed=st.tuples(_SIZE, _SIZE))
def test_what_is_asked_for_is_what_is_observed(prefill: int, decode: int, router: int, listed: tuple[int, int]) -> None:
    found = _desired({}, _target(3, prefill=prefill, decode=decode, router=router, backends=listed))
    arm = observe(resource(), found.values()).arms[3]
    assert (arm.prefill.replicas, arm.decode.replicas, arm.router.replicas) == (prefill, decode, router)
    assert arm.router.backends == listed
    args = found["Deployment", "demo-3-router"]["spec"]["template"]["spec"]["containers"][1]["args"]
    urls = [word for word in args if word.startswith("http://")]
    assert len(set(urls)) == len(urls) == sum(listed)
    assert all("//demo-3-" in url for url in urls)


def test_a_frozen_rendering_is_used_as_it_stands() -> None:
    old = resource({"speculation.depth": 2})
    frozen = render(old, router_image="r:1")
    today = resource({"speculation.depth": 5, "engine.image": "v:0.33.9"})
    plan = Plan(status=SpecDecodeDeploymentStatus(), arms=(_target(1),))
    (decode,) = (
        o
        for o in desired(today, plan, {1: RevisionRecord(1, old.spec, frozen)})
        if o["kind"] == "StatefulSet" and o["metadata"]["name"] == "demo-1-decode"
    )
    container = decode["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == frozen["decode"]["spec"]["containers"][0]["args"]
    assert "specdecode.dev/revision" not in frozen["decode"]["metadata"]["labels"]


def test_labels_of_a_pod_template_never_win() -> None:
    theirs = {"metadata": {"labels": {"specdecode.dev/role": "router", "team": "x"}}}
    found = _desired({"topology.decode.podTemplate": theirs}, _target())
    workload = found["StatefulSet", "demo-2-decode"]["spec"]
    labels = workload["template"]["metadata"]["labels"]
    assert labels["team"] == "x"
    assert workload["selector"]["matchLabels"].items() <= labels.items()


def test_the_entry_service_reaches_routers_of_every_revision() -> None:
    entry = _desired({}, _target())["Service", "demo"]
    assert entry["spec"]["selector"] == {"specdecode.dev/deployment": "demo", "specdecode.dev/role": "router"}


def test_the_route_has_one_backend_a_revision() -> None:
    found = _desired(GATEWAY, _target(1), _target(2), weights={2: 10, 1: 90})
    assert ("Service", "demo") not in found
    (rule,) = found["HTTPRoute", "demo"]["spec"]["rules"]
    assert rule["backendRefs"] == [
        {"name": "demo-1", "port": 80, "weight": 90},
        {"name": "demo-2", "port": 80, "weight": 10},
    ]
    assert all(("Service", ref["name"]) in found for ref in rule["backendRefs"])
    assert ("HTTPRoute", "demo") not in _desired(GATEWAY, _target(1), weights=None)


def test_a_record_comes_back_as_it_was() -> None:
    made = resource({"speculation.depthByBatch": [{"upTo": 8, "depth": 2}]})
    kept = RevisionRecord(3, made.spec, render(made, router_image="r:1"))
    stored = controller_revision(made, kept)
    assert stored["metadata"]["name"] == "demo-3"
    again = record(stored)
    assert (again.number, again.spec, again.rendering) == (3, kept.spec, kept.rendering)
    assert again.spec_raw["speculation"]["depth"] == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "holds no spec"),
        ({"spec": {}, "rendering": None}, "holds no spec"),
        ({"spec": {}, "rendering": {}}, "spec.model: Field required"),
        ({"spec": {}, "rendering": {"format": 2}}, "format 2, written by a later operator"),
    ],
)
def test_a_record_that_cannot_be_read(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record({"metadata": {"name": "demo-1"}, "revision": 1, "data": data})


def test_grace_is_longer_than_pre_stop_and_drain() -> None:
    made = spec({"topology.decode.drain": "5m"})
    pod = render(resource({"topology.decode.drain": "5m"}), router_image="r:1")["decode"]["spec"]
    sleep = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert made.topology.decode.drain == "5m"
    assert pod["terminationGracePeriodSeconds"] > sleep + 300


def test_the_router_outlives_its_longest_stream() -> None:
    rendering = render(resource({"topology.router.requestTimeout": "2h"}), router_image="r:1")
    assert rendering["router"]["spec"]["terminationGracePeriodSeconds"] > 7200
    assert "stream_idle_timeout: 7215s" in rendering["config"]["envoy.yaml"]
    assert "--request-timeout-secs 7200" in " ".join(rendering["router"]["spec"]["containers"][1]["args"])


def test_a_switch_of_the_entry_in_mid_canary_keeps_the_old_one_up() -> None:
    """Taken off the spec, the gateway still splits until the canary has ended; put on, the routers do."""
    old = GatewaySpec.model_validate({"parentRefs": [{"name": "old"}], "hostnames": ["a.example"]})
    arms = (_target(1), _target(2))
    found = _desired({}, *arms, weights={1: 90, 2: 10}, gateway=old, split="Request")
    assert ("Service", "demo") in found
    route = found["HTTPRoute", "demo"]["spec"]
    assert (route["parentRefs"], route["hostnames"]) == ([{"name": "old"}], ["a.example"])
    found = _desired(GATEWAY, *arms, split="Connection")
    assert ("Service", "demo") in found
    assert ("HTTPRoute", "demo") not in found


def test_the_analysis_knows_how_often_the_proxy_tries() -> None:
    retries = re.findall(r"num_retries: (\d+)", proxy_config(60))
    assert [1 + int(n) for n in retries] == [TRIES]
