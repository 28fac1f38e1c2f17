"""The chart's values: each is documented, typed, and refused where it is unknown or wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from specdecode import __version__
from specdecode.api import crd
from specdecode.api.names import CRD_NAME, LABEL_COMPONENT, OPERATOR_COMPONENT
from tests.unit.chart import queries
from tools import chart

VALUES = yaml.safe_load((chart.CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((chart.CHART / "values.schema.json").read_text())
_ANYTHING = ("global",)


def _paths(tree: dict[str, Any], schema: dict[str, Any], at: str = "") -> Iterator[str]:
    """Paths of both that have no paths under them in the schema."""
    names = tree.keys() | schema.get("properties", {}).keys()
    for name in sorted(names):
        path = f"{at}.{name}" if at else name
        part = chart.schema_of(SCHEMA, path)
        below = tree.get(name)
        if part.get("properties") and isinstance(below, dict) and below:
            yield from _paths(below, part, path)
        else:
            yield path


def test_values_and_schema_name_the_same() -> None:
    known = set(_paths(VALUES, SCHEMA)) - set(_ANYTHING)
    for path in known:
        tree = VALUES
        for name in path.split("."):
            if path.startswith("resources."):
                break  # what stands there is up to the cluster
            assert name in tree, f"{path} is in the schema and not in values.yaml"
            tree = tree[name]


def _objects(schema: dict[str, Any], at: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield at, schema
    for name, part in schema.get("properties", {}).items():
        yield from _objects(part, f"{at}.{name}")


def test_no_object_of_ours_takes_unknown_names() -> None:
    for path, part in _objects(SCHEMA, "values"):
        if part.get("properties") and not path.startswith("values.extraEnv"):
            assert part["additionalProperties"] is False, path


def test_the_page_of_values_is_today_s() -> None:
    assert chart.VALUES_PAGE.read_text() == chart.values_page(), "run make chart-files"


def test_a_value_without_a_comment_is_refused() -> None:
    with pytest.raises(ValueError, match=r"b\.d has no comment"):
        list(chart.values("# A.\na: 1\nb:\n  # C.\n  c: {}\n  d: 2\n"))


def test_nested_values_keep_their_paths() -> None:
    found = list(chart.values("a:\n  # B.\n  b: 1\n  # Two\n  # lines.\n  c:\n    d: 2\n# E.\ne: []\n"))
    assert [(v.path, v.comment, v.default) for v in found] == [
        ("a.b", "B.", 1),
        ("a.c", "Two lines.", {"d": 2}),
        ("e", "E.", []),
    ]


def test_the_alerts_that_can_be_left_out_are_those_that_there_are() -> None:
    named = chart.schema_of(SCHEMA, "prometheusRule.disabled")["items"]["enum"]
    assert named == [rule["alert"] for rule in queries.alerts()]


def test_the_chart_carries_today_s_crd() -> None:
    assert crd.CHART_FILE.read_text() == crd.text(), "run make crds"


def test_the_chart_is_of_this_version() -> None:
    about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == __version__
    assert f"VERSION={__version__}" in (chart.ROOT / "Dockerfile").read_text()


RELEASE = list(yaml.safe_load_all(chart.RELEASE.read_text()))


def _rules() -> Iterator[tuple[str, dict[str, Any]]]:
    for obj in RELEASE:
        if obj["kind"] in ("ClusterRole", "Role") and not obj["metadata"]["name"].endswith(("-view", "-edit")):
            for rule in obj["rules"]:
                yield obj["kind"], rule


def test_no_permission_is_a_wildcard_or_reads_secrets() -> None:
    assert len(list(_rules())) > 10
    for _, rule in _rules():
        for field in ("apiGroups", "resources", "verbs"):
            assert "*" not in "".join(rule[field])
        assert "secrets" not in rule["resources"]
        assert not {"bind", "escalate", "impersonate", "deletecollection"} & set(rule["verbs"])
        assert not {"roles", "rolebindings", "clusterroles", "clusterrolebindings"} & set(rule["resources"])


def test_nothing_that_belongs_to_the_cluster_is_written() -> None:
    of_the_cluster = {"nodes", "customresourcedefinitions", "namespaces", "persistentvolumes"}
    for kind, rule in _rules():
        if of_the_cluster & set(rule["resources"]):
            assert (kind, rule["verbs"]) == ("ClusterRole", ["get"])
        if "customresourcedefinitions" in rule["resources"]:
            assert rule["resourceNames"] == [CRD_NAME]


def test_the_operator_is_let_into_its_own_policies() -> None:
    (deployment,) = (obj for obj in RELEASE if obj["kind"] == "Deployment")
    assert deployment["spec"]["template"]["metadata"]["labels"][LABEL_COMPONENT] == OPERATOR_COMPONENT
    assert "--network-policies" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]


def test_the_operator_s_pod_is_restricted() -> None:
    (deployment,) = (obj for obj in RELEASE if obj["kind"] == "Deployment")
    pod = copy.deepcopy(deployment["spec"]["template"]["spec"])
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
