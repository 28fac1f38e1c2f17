"""The audit log is read as the API server writes it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bed.audit import count_writes, parse, requests


def line(
    verb: str, resource: str, code: int = 200, *, user: str = "op", sub: str = "", second: int = 0, **more: object
) -> str:
    ref = {"resource": resource, "namespace": "team", "name": "llm", "subresource": sub}
    entry = {
        "stage": "ResponseComplete",
        "requestURI": "/apis",
        "verb": verb,
        "user": {"username": user},
        "objectRef": ref,
        "responseStatus": {"code": code},
        "requestReceivedTimestamp": f"2026-01-02T03:04:{second:02}.250000Z",
        "stageTimestamp": f"2026-01-02T03:04:{second:02}.500000Z",
        "responseObject": {"kind": "StatefulSet"},
    }
    return json.dumps(entry | more) + "\n"


def test_a_request_is_read_with_its_times_and_bodies() -> None:
    found = parse(line("patch", "statefulsets", second=5))
    assert found is not None
    assert (found.user, found.verb, found.resource, found.namespace, found.name) == (
        "op", "patch", "statefulsets", "team", "llm",
    )  # fmt: skip
    assert found.at == 1767323045.25
    assert found.done - found.at == 0.25
    assert found.answer == {"kind": "StatefulSet"}
    assert found.is_write


def test_reads_refusals_and_dry_runs_are_no_writes(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(
        line("get", "pods")
        + line("patch", "pods", 409)
        + line("patch", "pods", requestURI="/api?dryRun=All")
        + line("patch", "pods", stage="ResponseStarted")
    )
    assert count_writes(log) == {}


def test_a_lack_of_permission_is_told_from_other_refusals() -> None:
    decision = "authorization.k8s.io/decision"
    lacking = parse(line("patch", "pods", 403, annotations={decision: "forbid"}))
    ending = parse(line("patch", "pods", 403, annotations={decision: "allow"}))
    assert lacking is not None
    assert ending is not None
    assert (lacking.forbidden, ending.forbidden) == (True, False)


def test_writes_are_counted_by_user_verb_and_resource(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(
        line("patch", "statefulsets", second=1)
        + line("patch", "statefulsets", 201, second=2)
        + line("patch", "leases", second=3)
        + line("patch", "statefulsets", user="someone", second=4)
        + line("patch", "specdecodedeployments", sub="status", second=5)
        + line("create", "pods", second=6)[:-20]  # still being written
    )
    assert count_writes(log, user="op") == {
        "op patch statefulsets": 2,
        "op patch leases": 1,
        "op patch specdecodedeployments/status": 1,
    }
    assert sum(count_writes(log).values()) == 5
    later = next(requests(log, user="op")).at + 1.5
    assert sum(count_writes(log, user="op", since=later).values()) == 2
