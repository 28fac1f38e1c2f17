"""`kubectl specdecode` beside the real operator on a real API server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bed.control_plane import Bed
from tests.bed.fleet import Fleet
from tests.bed.operator_process import OperatorProcess
from tests.bed.processes import wait_for

pytestmark = pytest.mark.needs_bed

PLAIN = Path(__file__).parents[2] / "examples" / "01-plain.yaml"
COMMAND = str(Path(sys.executable).parent / "kubectl-specdecode")


def specdecode(bed: Bed, *arguments: str) -> str:
    """What the command prints, as the admin, found by kubectl as its plugin."""
    path = f"{bed.binaries.folder}:{Path(COMMAND).parent}:/usr/bin:/bin"
    ran = subprocess.run(
        [bed.binaries.path("kubectl"), "specdecode", *arguments],
        env={"PATH": path, "KUBECONFIG": str(bed.kubeconfig), "HOME": str(bed.state)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_story_of_an_idle_canary(
    bed: Bed, namespace: str, fleet: Fleet, start_operator: Callable[..., OperatorProcess]
) -> None:
    def said() -> str:
        return specdecode(bed, "why", "mimo", "-n", namespace)

    bed.kubectl("apply", "-n", namespace, "-f", str(PLAIN))
    assert "The operator hasn't acted on this resource yet" in said()

    start_operator()
    bed.kubectl("wait", "--for=condition=Ready", "sdd/mimo", "-n", namespace, "--timeout=60s")
    assert said().startswith("Revision 1 serves and is what the spec asks for. Nothing is under way.\n")
    _, line = specdecode(bed, "status", "-n", namespace).splitlines()
    assert line.split()[:6] == ["mimo", "XiaomiMiMo/MiMo-7B-RL", "3", "2/2", "4/4", "Ready"]

    fleet.play({"traffic": {"rate": 0}})
    bed.api.merge("SpecDecodeDeployment", namespace, "mimo", {"spec": {"speculation": {"depth": 2}}})
    wait_for("why to say that nobody uses the canary", lambda: "NoTraffic" in said(), 60)
    told = json.loads(specdecode(bed, "why", "mimo", "-n", namespace, "-o", "json"))
    assert told["conditions"]["Ready"]["status"] == "False"
    lines = "\n".join(told["why"])
    assert "Revision 2 is on trial at step 1 of 3 with 10% of the traffic; revision 1 serves the rest." in lines
    assert "neither promoted nor rolled back" in lines
    assert "CanaryStarted: Revision 2 starts as a canary" in lines
