"""The CRD on a real API server: every rule with objects that it takes and objects that it refuses, and that what is
said of a file offline is what the server says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from specdecode.api import strict
from specdecode.api.base import Rule
from specdecode.api.crd import schema
from tests.bed.api import ApiError, path_of
from tests.bed.control_plane import Bed
from tests.unit.api import rule_cases
from tests.unit.api.rule_cases import ABSENT, Case, changed

pytestmark = pytest.mark.needs_bed

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
NAMESPACE: Final = "crd"


@pytest.fixture(scope="module")
def server(bed: Bed) -> Iterator[Bed]:
    """The bed, with a namespace for this module."""
    bed.namespace(NAMESPACE)
    yield bed
    bed.api.delete("Namespace", None, NAMESPACE)


def _try(server: Bed, resource: dict[str, Any]) -> dict[str, Any]:
    """The resource as the server would store it.

    Raises:
        ApiError: the server refuses it.
    """
    path = path_of("SpecDecodeDeployment", NAMESPACE)
    found: dict[str, Any] = server.api.request("POST", f"{path}?dryRun=All&fieldValidation=Strict", resource)
    return found


@pytest.mark.parametrize(("rule", "resource"), rule_cases.accepted())
def test_accepted_and_defaulted_as_offline(server: Bed, rule: Rule, resource: dict[str, Any]) -> None:
    assert _try(server, resource)["spec"] == strict.defaulted(schema(), resource)["spec"]


@pytest.mark.parametrize(("case", "resource"), rule_cases.refused())
def test_refused_by_its_own_rule_alone(server: Bed, case: Case, resource: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refusal:
        _try(server, resource)
    assert refusal.value.code == 422
    said = str(refusal.value)
    assert case.rule.message in said
    assert said.count("Invalid value") == 1
    if not case.path.startswith("metadata"):
        assert f"{case.path}: " in said


# Values for every field: right and wrong of each type, at bounds and beyond.
_VALUES: Final[tuple[Any, ...]] = (
    *(True, False, 0, 1, 3, 64, 65, 100, 101, 70000, 2.5, -1),
    *("", "x", "1", "5%", "100%", "0%", "50%", "5m", "0s", "Auto", "mtp", "Hold", "a" * 300),
    *([], [1], [4, 4], ["Alert"], ["Alert", "Alert"], ["x"]),
    *([{"weight": 100}], [{"weight": 1}, {"weight": 100, "pause": {}}], [{"upTo": 1, "depth": 1}]),
    *([{"name": "A"}], [{"name": "A"}, {"name": "A"}], [{"name": "A", "x": 1}]),
    *({}, {"x": "y"}, {"x": 1}, {"name": "a"}, {"name": "a", "key": "b"}, {"replicas": 1}, {"duration": "5m"}),
)
_FULL: Final = strict.defaulted(
    schema(),
    changed(
        {
            "spec.traffic.gateway": {"parentRefs": [{"name": "g"}], "hostnames": ["example.com"]},
            "spec.model.source.huggingFace.tokenSecretRef": {"name": "s", "key": "k"},
            "spec.engine.apiKeySecretRef": {"name": "s", "key": "k"},
        }
    ),
)


def _paths(node: dict[str, Any], path: str) -> Iterator[str]:
    yield path
    for name, field in node.get("properties", {}).items():
        yield from _paths(field, f"{path}.{name}")


@pytest.mark.parametrize("path", list(_paths(schema()["properties"]["spec"], "spec")))
def test_the_server_and_the_file_check_agree(server: Bed, path: str) -> None:
    wrong = []
    for value in (*_VALUES, ABSENT):
        try:
            resource = changed({path: value}, _FULL)
        except KeyError:
            continue  # a field that isn't there can't go
        try:
            stored = _try(server, resource)
        except ApiError as refusal:
            if not strict.faults(resource):
                wrong.append((value, str(refusal)))
        else:
            faults = [str(fault) for fault in strict.faults(resource)]
            if faults or stored["spec"] != strict.defaulted(schema(), resource)["spec"]:
                wrong.append((value, f"taken; offline: {faults}"))
    assert wrong == []


def test_explain_shows_the_descriptions(server: Bed) -> None:
    fresh = f"--cache-dir={server.state / 'discovery'}"  # explain believes what another server on this port said
    said = " ".join(server.kubectl("explain", "sdd.spec.rollout.analysis.margin", fresh).split())
    assert "Relative fall of acceptance length that is still harmless." in said
    whole = server.kubectl("explain", "sdd.spec", "--recursive", fresh)
    assert all(name in whole for name in ("depthByBatch", "onNoData", "progressDeadline", "kvTransfer"))


def test_get_shows_the_story_at_a_glance(server: Bed) -> None:
    server.api.create(changed({"metadata.name": "glance", "metadata.namespace": NAMESPACE}))
    summary = {"prefill": "2/2", "decode": "4/4", "rollout": "Canary 10% 1/3", "acceptance": "3.41"}
    server.api.merge("SpecDecodeDeployment", NAMESPACE, "glance", {"status": {"summary": summary}}, "status")
    head, line = server.kubectl("get", "sdd", "glance", "-n", NAMESPACE).splitlines()
    assert head.split() == ["NAME", "MODEL", "DEPTH", "PREFILL", "DECODE", "ROLLOUT", "ACCEPTANCE", "AGE"]
    assert line.split()[:8] == ["glance", "deepseek-ai/DeepSeek-V3.2", "3", "2/2", "4/4", "Canary", "10%", "1/3"]


def test_an_autoscaler_can_scale_decode(server: Bed) -> None:
    autoscaled = {"replicas": 2, "maxReplicas": 8}
    server.api.create(
        changed({"metadata.name": "scaled", "metadata.namespace": NAMESPACE, "spec.topology.decode": autoscaled})
    )
    server.kubectl("scale", "sdd/scaled", "--replicas=8", "-n", NAMESPACE)
    stored = server.api.get("SpecDecodeDeployment", NAMESPACE, "scaled")
    assert stored["spec"]["topology"]["decode"]["replicas"] == 8
    with pytest.raises(ApiError, match="replicas is above maxReplicas"):
        server.api.merge("SpecDecodeDeployment", NAMESPACE, "scaled", {"spec": {"replicas": 9}}, "scale")


def test_every_status_that_the_models_write_is_stored_whole(server: Bed) -> None:
    server.api.create(changed({"metadata.name": "whole", "metadata.namespace": NAMESPACE}))
    status = _sample(schema()["properties"]["status"])
    stored = server.api.merge("SpecDecodeDeployment", NAMESPACE, "whole", {"status": status}, "status")
    assert stored["status"] == status


def _sample(node: dict[str, Any], numbers: Iterator[int] | None = None) -> Any:
    """A value that fills every field of a schema."""
    numbers = numbers or itertools.count(1)
    match node.get("type"):
        case "object" if "properties" in node:
            return {name: _sample(field, numbers) for name, field in node["properties"].items()}
        case "object":
            return {"any": {"thing": next(numbers)}}
        case "array":
            return [_sample(node["items"], numbers)]
        case "integer":
            return next(numbers)
        case "boolean":
            return True
        case _:
            if node.get("format") == "date-time":
                return f"2026-01-01T00:00:{next(numbers) % 60:02}Z"
            return node["enum"][0] if "enum" in node else f"text {next(numbers)}"


def test_a_status_with_an_unreadable_time_is_refused(server: Bed) -> None:
    server.api.create(changed({"metadata.name": "timeless", "metadata.namespace": NAMESPACE}))
    status = {"rollout": {"startedAt": "yesterday"}}
    with pytest.raises(ApiError, match=r"status\.rollout\.startedAt.*date-time"):
        server.api.merge("SpecDecodeDeployment", NAMESPACE, "timeless", {"status": status}, "status")


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_taken(server: Bed, example: Path) -> None:
    assert "created (server dry run)" in server.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-n", NAMESPACE, "-f", str(example)
    )
