"""Who reaches which port of which Pods, as a NetworkPolicy's semantics say."""

from __future__ import annotations

from typing import Any

import pytest

from specdecode.api import SpecDecodeDeploymentStatus
from specdecode.api.names import LABEL_COMPONENT, OPERATOR_COMPONENT, labels
from specdecode.rollout.types import ArmTarget, Plan, RevisionRecord
from specdecode.workload import Access, desired, render
from tests.unit.engine.specs import resource

Peer = tuple[str, dict[str, str]]
ACCESS = Access("operators", ("monitoring", "tracing"))
OPERATOR: Peer = ("operators", {LABEL_COMPONENT: OPERATOR_COMPONENT})
SCRAPER: Peer = ("tracing", {"app": "prometheus"})
STRANGER: Peer = ("prod", {"app": "client"})


def pod(role: Any, revision: int = 2, namespace: str = "prod", name: str = "demo") -> Peer:
    return namespace, labels(name, revision, role)


def policies(changes: dict[str, Any] | None = None, access: Access | None = ACCESS) -> dict[str, dict[str, Any]]:
    made = resource(changes)
    arms = [ArmTarget(r, 1, 1, 1, (1, 1), True) for r in (1, 2)]
    rendering = render(made, router_image="r:1")
    plan = Plan(status=SpecDecodeDeploymentStatus(), arms=tuple(arms), weights=None)
    records = {r: RevisionRecord(r, made.spec, rendering) for r in (1, 2)}
    found = [o for o in desired(made, plan, records, access) if o["kind"] == "NetworkPolicy"]
    return {o["metadata"]["name"]: o for o in found}


def within(selector: dict[str, Any], words: dict[str, str]) -> bool:
    return bool(selector["matchLabels"].items() <= words.items())


def admitted(found: dict[str, dict[str, Any]], to: Peer, port: int, source: Peer) -> bool:
    """Whether a connection is let in: by some policy that means the Pod, or because none does."""
    mine = [o for o in found.values() if o["metadata"]["namespace"] == to[0]]
    mine = [o for o in mine if within(o["spec"]["podSelector"], to[1])]
    return not mine or any(_rule(rule, o, port, source) for o in mine for rule in o["spec"]["ingress"])


def _rule(rule: dict[str, Any], policy: dict[str, Any], port: int, source: Peer) -> bool:
    if "ports" in rule and port not in [p["port"] for p in rule["ports"]]:
        return False
    if "from" not in rule:
        return True
    for peer in rule["from"]:
        near = {"matchLabels": {"kubernetes.io/metadata.name": policy["metadata"]["namespace"]}}
        space = {"kubernetes.io/metadata.name": source[0]}
        if within(peer.get("namespaceSelector", near), space) and within(
            peer.get("podSelector", {"matchLabels": {}}), source[1]
        ):
            return True
    return False


@pytest.mark.parametrize(
    ("to", "port", "source", "let_in"),
    [
        # KV flows on ports of NIXL's own choosing, within a revision.
        (pod("prefill"), 5600, pod("decode"), True),
        (pod("prefill"), 40123, pod("decode"), True),
        (pod("decode"), 40123, pod("prefill"), True),
        (pod("prefill"), 40123, pod("decode", revision=1), False),
        (pod("decode"), 8000, pod("prefill", revision=1), False),
        (pod("prefill"), 40123, pod("decode", namespace="other"), False),
        (pod("prefill"), 40123, pod("decode", name="another"), False),
        (pod("decode"), 40123, pod("router"), False),
        # The engine's port.
        (pod("decode"), 8000, pod("router"), True),
        (pod("prefill"), 8000, pod("router"), True),
        (pod("decode"), 8000, pod("router", revision=1), False),
        (pod("decode"), 8000, OPERATOR, True),
        (pod("prefill"), 8000, SCRAPER, True),
        (pod("decode"), 8000, STRANGER, False),
        (pod("decode"), 8000, ("operators", {"app": "another"}), False),
        (pod("decode"), 8000, ("prod", OPERATOR[1]), False),
        (pod("decode"), 5600, SCRAPER, False),
        # The way in.
        (pod("router"), 8080, STRANGER, True),
        (pod("router"), 8080, ("elsewhere", {}), True),
        (pod("router"), 9902, OPERATOR, True),
        (pod("router"), 9902, SCRAPER, True),
        (pod("router"), 9902, STRANGER, False),
        (pod("router"), 30000, STRANGER, False),
        # Pods of others are nobody's business.
        (STRANGER, 8000, SCRAPER, True),
    ],
)
def test_who_gets_in(to: Peer, port: int, source: Peer, let_in: bool) -> None:
    assert admitted(policies(), to, port, source) is let_in


def test_without_prefill_no_engine_reaches_another() -> None:
    found = policies({"topology.prefill": None})
    assert set(found) == {"demo-1-decode", "demo-1-router", "demo-2-decode", "demo-2-router"}
    assert admitted(found, pod("decode"), 8000, pod("router"))
    assert not admitted(found, pod("decode"), 40123, pod("decode"))


def test_only_ingress_is_restricted() -> None:
    for policy in policies().values():
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        assert "egress" not in policy["spec"]


def test_none_where_none_are_asked_for() -> None:
    assert policies(access=None) == {}


def test_without_a_monitoring_namespace_only_the_operator_scrapes() -> None:
    found = policies(access=Access("operators"))
    assert admitted(found, pod("decode"), 8000, OPERATOR)
    assert not admitted(found, pod("decode"), 8000, SCRAPER)
