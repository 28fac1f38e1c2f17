"""What a podTemplate may not say."""

from __future__ import annotations

from typing import Any

import pytest

from specdecode.api.owned import OWNED_FLAGS
from specdecode.engine.checks import check
from specdecode.engine.templates import ROUTER_FLAGS, own_container, owned_by
from specdecode.workload import render

from .specs import resource, spec


def _faults(role: str, template: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f.path, f.message) for f in check(spec({f"topology.{role}.podTemplate": template}))]


def _container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [fields]}}


@pytest.mark.parametrize(
    ("word", "flag"),
    [
        ("--speculative-config", "speculative-config"),
        ("--speculative_config", "speculative-config"),
        ('--speculative-config={"a":1}', "speculative-config"),
        ("--speculative-config.method=mtp", "speculative-config"),
        ("--speculative-c", "speculative-config"),
        ("--no-enable-expert-parallel", "enable-expert-parallel"),
        ("--disable-expert-parallel", "enable-expert-parallel"),
        ("-tp", "tensor-parallel-size"),
        ("-tp=4", "tensor-parallel-size"),
        ("-dp", "data-parallel-size"),
        ("--po", "port"),
        ("--data-parallel-size-local", None),
        ("--seed", None),
        ("-q", None),
        ("vllm", None),
        ("-", None),
        ("--", None),
        ("-1", None),
    ],
)
def test_spellings_of_owned_flags(word: str, flag: str | None) -> None:
    assert owned_by(word, OWNED_FLAGS) == flag


@pytest.mark.parametrize(
    ("word", "flag"),
    [
        ("--prefill", "prefill"),
        ("--prefill=http://x", "prefill"),
        ("--worker-urls", "worker-urls"),
        ("--service-discovery", "service-discovery"),
        ("--max-concurrent-requests", None),
        ("-tp", None),
    ],
)
def test_spellings_of_the_routers_flags(word: str, flag: str | None) -> None:
    assert owned_by(word, ROUTER_FLAGS) == flag


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("where", ["command", "args"])
def test_owned_flags_are_refused_in_both_roles(role: str, where: str) -> None:
    found = _faults(role, _container(name="vllm", **{where: ["vllm", "--port=1"]}))
    assert len(found) == 1
    assert found[0][0] == f"spec.topology.{role}.podTemplate.spec.containers[0].{where}[1]"
    assert "--port" in found[0][1]


@pytest.mark.parametrize("word", ["-c", "--config-path", "--config-yaml=x"])
def test_the_proxys_configuration_is_the_operators(word: str) -> None:
    found = _faults("router", _container(name="proxy", args=[word]))
    assert [path for path, _ in found] == ["spec.topology.router.podTemplate.spec.containers[0].args[0]"]


def test_every_flag_that_the_operator_writes_is_owned() -> None:
    changes = {
        "model.revision": "main",
        "engine.cudagraphCaptureSizes": [4],
        "topology.decode.parallelism": {"tensor": 2, "pipeline": 2, "data": 2, "expert": True},
    }
    rendering = render(resource(changes), router_image="r:1")
    for role, flags in (("decode", OWNED_FLAGS), ("router", ROUTER_FLAGS)):
        words = rendering[role]["spec"]["containers"][-1]["args"]
        written = {w for w in words if w.startswith("--") and "-startup-" not in w and not w.startswith("--health-")}
        assert len(written) > 5
        assert [w for w in written if owned_by(w, flags) != w[2:]] == []


def test_owned_flags_are_refused_in_the_router() -> None:
    found = _faults("router", _container(name="router", args=["--policy", "random"]))
    assert [path for path, _ in found] == ["spec.topology.router.podTemplate.spec.containers[0].args[0]"]
    assert "topology.router.policy" in found[0][1]
    assert _faults("router", _container(name="router", args=["--max-concurrent-requests", "9"])) == []


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"kind": "Pod"}, "kind"),
        ({"spec": []}, "spec"),
        ({"metadata": "x"}, "metadata"),
        ({"metadata": {"labels": ["x"]}}, "metadata.labels"),
        ({"metadata": {"name": "x"}}, "metadata.name"),
        ({"metadata": {"labels": {"specdecode.dev/role": "x"}}}, "metadata.labels[specdecode.dev/role]"),
        (
            {"metadata": {"annotations": {"specdecode.dev/backends": "9/9"}}},
            "metadata.annotations[specdecode.dev/backends]",
        ),
        ({"spec": {"containers": {}}}, "spec.containers"),
        ({"spec": {"containers": ["x"]}}, "spec.containers[0]"),
        ({"spec": {"volumes": [{"emptyDir": {}}]}}, "spec.volumes[0]"),
        (_container(name="vllm", env={"A": "1"}), "spec.containers[0].env"),
        (_container(name="vllm", image="x"), "spec.containers[0].image"),
        (_container(name="vllm", env=[{"name": "VLLM_API_KEY", "value": "x"}]), "spec.containers[0].env[0].name"),
        ({"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy"),
        ({"spec": {"subdomain": "x"}}, "spec.subdomain"),
    ],
)
def test_refused(template: dict[str, Any], path: str) -> None:
    assert [found for found, _ in _faults("decode", template)] == [f"spec.topology.decode.podTemplate.{path}"]


def test_own_container_bears_nonsense() -> None:
    assert own_container({"spec": {"containers": "x"}}, "vllm") == {}
    assert own_container({"spec": {"containers": [None, {"name": "vllm", "a": 1}]}}, "vllm") == {"name": "vllm", "a": 1}
