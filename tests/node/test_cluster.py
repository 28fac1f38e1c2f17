"""The bed itself: what a cluster is expected to do, this one does."""

from __future__ import annotations

import pytest

from tests.bed.api import ApiError
from tests.bed.processes import BedError, wait_for
from tests.node.node import Node
from tests.node.workshop import PORT, Workshop, probe


def test_pods_run_and_find_each_other(node: Node, workshop: Workshop) -> None:
    """Logs and exec, cluster DNS, Service addresses, headless Services."""
    first, second = workshop.pod("one", {"app": "web"}), workshop.pod("two", {"app": "web"})
    service = workshop.service("web", "web")
    workshop.service("each", "web", clusterIP="None")
    assert workshop.run("one", "get", f"http://{second}:{PORT}/").strip() == "two"
    wait_for("the Service", lambda: workshop.reaches("one", f"{service}:80"), 30)
    wait_for("the Service to reach both Pods", lambda: _answers(workshop, service) == {"one", "two"}, 60)
    names = ("web", f"web.{workshop.name}", f"web.{workshop.name}.svc.cluster.local")
    assert [workshop.run("one", "lookup", name).strip() for name in names] == [service] * 3
    assert set(workshop.run("one", "lookup", "each").split()) == {first, second}
    assert workshop.run("one", "get", "http://web/").strip() in ("one", "two")
    assert node.kubectl("logs", "-n", workshop.name, "one") == ""
    with pytest.raises(BedError, match="no such host"):
        workshop.run("one", "lookup", "example.com")


def _answers(workshop: Workshop, service: str) -> set[str]:
    return {workshop.run("one", "get", f"http://{service}/").strip() for _ in range(8)}


def test_restricted_pod_security_is_enforced(node: Node, workshop: Workshop) -> None:
    privileged = probe("no", workshop.name)
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(ApiError, match="violates PodSecurity"):
        node.api.create(privileged)
    with_host_path = probe("no", workshop.name, volumes=[{"name": "host", "hostPath": {"path": "/"}}])
    with pytest.raises(ApiError, match="hostPath"):
        node.api.create(with_host_path)


def test_network_policies_are_enforced(node: Node, workshop: Workshop) -> None:
    """By Pod label and port, within a few seconds of a change."""
    target = f"{workshop.pod('server', {'app': 'server'})}:{PORT}"
    workshop.pod("friend", {"app": "friend"})
    workshop.pod("stranger", {"app": "stranger"})
    assert workshop.reaches("friend", target)
    assert workshop.reaches("stranger", target)
    friend = {"podSelector": {"matchLabels": {"app": "friend"}}}
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "friends", "namespace": workshop.name},
        "spec": {
            "podSelector": {"matchLabels": {"app": "server"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [friend], "ports": [{"protocol": "TCP", "port": PORT}]}],
        },
    }
    node.api.create(policy)
    wait_for("the stranger to be shut out", lambda: not workshop.reaches("stranger", target), 30, pause=0.5)
    assert workshop.reaches("friend", target)
    node.api.delete("NetworkPolicy", workshop.name, "friends")
    wait_for("the stranger to be let in again", lambda: workshop.reaches("stranger", target), 30, pause=0.5)


def test_pods_know_the_api_server_by_its_certificate(node: Node, workshop: Workshop) -> None:
    """Clients in Pods get an authority that its certificate is verified by."""
    found = node.api.get("ConfigMap", workshop.name, "kube-root-ca.crt")["data"]["ca.crt"]
    assert found.strip() == node.api.endpoint.authority.strip()
    workshop.pod("one")
    assert workshop.reaches("one", "kubernetes.default.svc:443")
