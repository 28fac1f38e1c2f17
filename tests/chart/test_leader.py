"""Two replicas: the leader dies or hangs, the other acts within 20 s, and never both."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.bed.control_plane import ROOT, Bed
from tests.bed.fleet import Fleet
from tests.bed.operator_process import OperatorProcess
from tests.bed.processes import wait_for
from tests.chart.programs import FULL_NAME, NAMESPACE, Helm, chart_operator

pytestmark = pytest.mark.needs_bed

TAKEOVER = 20.0
"""Seconds."""
ACTING = ("create", "update", "patch", "delete")


@pytest.fixture
def pair(bed: Bed, fleet: Fleet, release: Helm) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """The leader and its standby."""
    with chart_operator(bed, "first", lease=None) as first:
        wait_for("a leader", lambda: "specdecode_leader 1.0" in first.metrics(), 180)
        with chart_operator(bed, "second", lease=None) as second:
            assert "specdecode_leader 0.0" in second.metrics()
            yield first, second
            first.kill()  # it may be stopped, and then would wait for its end in vain


def writers(bed: Bed, since: float) -> list[tuple[float, str, str]]:
    """Writes of the operators but for those of the Lease: when received, by whose token, of what."""
    user = f"system:serviceaccount:{NAMESPACE}:{FULL_NAME}"
    found = []
    for line in bed.audit_log.read_text().splitlines():
        entry: dict[str, Any] = json.loads(line)
        about = entry.get("objectRef", {})
        if entry["user"]["username"] != user or entry["verb"] not in ACTING or about.get("resource") == "leases":
            continue
        if not 200 <= entry.get("responseStatus", {}).get("code", 0) < 300:
            continue
        at = datetime.fromisoformat(entry["requestReceivedTimestamp"].replace("Z", "+00:00")).timestamp()
        (token,) = entry["user"]["extra"]["authentication.kubernetes.io/credential-id"]
        if at >= since:
            found.append((at, token, about["resource"]))
    return sorted(found)


def holder(bed: Bed) -> str:
    return str(bed.api.get("Lease", NAMESPACE, FULL_NAME)["spec"]["holderIdentity"])


@pytest.mark.parametrize("end", ["killed", "hangs"])
def test_the_other_takes_over(bed: Bed, pair: tuple[OperatorProcess, OperatorProcess], end: str) -> None:
    first, second = pair
    namespace = bed.namespace(f"leader-{end}")
    before = holder(bed)
    began = time.time()
    bed.kubectl("apply", "-n", namespace, "-f", str(ROOT / "examples" / "01-plain.yaml"))
    wait_for("the first to act", lambda: writers(bed, began), 180)
    token_of_first = writers(bed, began)[0][1]

    lost = time.time()
    os.kill(first.child.process.pid, signal.SIGKILL if end == "killed" else signal.SIGSTOP)
    patch = {"spec": {"topology": {"decode": {"replicas": 5}}}}
    bed.api.merge("SpecDecodeDeployment", namespace, "mimo", patch)

    def scaled() -> bool:
        found = bed.api.find("StatefulSet", namespace, "mimo-1-decode")
        return bool(found and found["spec"]["replicas"] == 5)

    wait_for("the second to act", scaled, 180)
    takeover = next(at for at, token, _ in writers(bed, lost) if token != token_of_first) - lost
    print(f"the leader {end}: the other wrote {takeover:.1f} s later")
    assert takeover < TAKEOVER
    assert holder(bed) != before
    if end == "hangs":
        os.kill(first.child.process.pid, signal.SIGCONT)
        bed.api.merge("SpecDecodeDeployment", namespace, "mimo", {"spec": {"topology": {"decode": {"replicas": 4}}}})
        wait_for("the first to end", lambda: first.child.process.poll() is not None, 180)
        assert "specdecode_leader 1.0" in second.metrics()

    # One token wrote up to some moment, the other from then on.
    tokens = [token for _, token, _ in writers(bed, began)]
    assert len(set(tokens)) == 2
    assert tokens == sorted(tokens, key=tokens.index)
    bed.kubectl("delete", "namespace", namespace, "--timeout=300s")
