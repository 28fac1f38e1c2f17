"""With a list of namespaces: Roles there and nothing cluster-wide but two reads."""

from __future__ import annotations

import time

import pytest

from tests.bed.audit import requests
from tests.bed.control_plane import Bed, is_true
from tests.bed.fleet import Fleet
from tests.bed.processes import wait_for
from tests.chart.conftest import clean
from tests.chart.programs import NAMESPACE, RELEASE, Helm, chart_operator
from tests.chart.test_permissions import USER, resource
from tools.chart import CHART

pytestmark = pytest.mark.needs_bed


def test_with_roles_in_some_namespaces_it_serves_those(bed: Bed, fleet: Fleet, helm3: Helm) -> None:
    namespace = bed.namespace("only-this")
    given = ("--set", f"watchNamespaces={{{namespace}}}", "--set", "rbac.clusterReads=true")
    helm3("install", RELEASE, CHART, "--namespace", NAMESPACE, "--create-namespace", *given, "--wait")
    try:
        since = time.time()
        with chart_operator(bed, "only-this"):
            body = resource("here")
            body["metadata"]["namespace"] = namespace
            bed.api.apply(body)
            wait_for(
                "it to serve", lambda: is_true(bed.api.get("SpecDecodeDeployment", namespace, "here"), "Ready"), 90
            )
        found = list(requests(bed.audit_log, user=USER, since=since))
        assert found
        assert [r for r in found if r.code == 403] == []
        assert {r.namespace for r in found} <= {namespace, NAMESPACE, ""}
    finally:
        clean(bed, helm3)
        bed.kubectl("delete", "namespace", namespace, "--timeout=300s")
