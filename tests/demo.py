"""`make demo`: the whole job on a real control plane with simulated Pods, told in a few lines as it goes.

A resource becomes prefill, decode and router Pods; a change whose acceptance collapses while its answers stay right
becomes a canary, is caught, and its traffic goes back; a good change is promoted. Exits 1 if any step didn't happen.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bed import binaries
from tests.bed.binaries import BuildError
from tests.bed.control_plane import OPERATOR, ROOT, Bed
from tests.bed.fleet import Fleet
from tests.bed.operator_process import OperatorProcess
from tests.bed.processes import BedError
from tests.bed.recorder import Recorder

NAME, NAMESPACE = "demo", "demo"
GOOD = [0.92, 0.84, 0.74]
BAD = [0.08, 0.015, 0.005]
RESOURCE: dict[str, Any] = {
    "apiVersion": "specdecode.dev/v1alpha1",
    "kind": "SpecDecodeDeployment",
    "metadata": {"name": NAME, "namespace": NAMESPACE},
    "spec": {
        "model": {"name": "zai-org/GLM-5.2", "revision": "0123456789abcdef0123456789abcdef01234567"},
        "speculation": {"depth": 3},
        "engine": {"image": "specdecode/vllm:0.33.0-specdecode"},
        "topology": {"prefill": {"replicas": 2}, "decode": {"replicas": 4}, "router": {"replicas": 2}},
        "rollout": {
            "steps": [{"weight": 10}, {"weight": 50}, {"weight": 100}],
            "promotionDelay": "5s",
            "analysis": {"interval": "2s"},
        },
    },
}


class Story:
    """Tells what happens, with the seconds since the story began."""

    def __init__(self, bed: Bed, fleet: Fleet, operator: OperatorProcess) -> None:
        self.bed, self.fleet, self.operator, self.began = bed, fleet, operator, time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def resource(self) -> dict[str, Any]:
        return self.bed.api.get("SpecDecodeDeployment", NAMESPACE, NAME)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.resource().get("status", {})
        return found

    def is_true(self, kind: str) -> bool:
        return any(c["type"] == kind and c["status"] == "True" for c in self.status().get("conditions", []))

    def change(self, spec: dict[str, Any]) -> None:
        self.bed.api.merge("SpecDecodeDeployment", NAMESPACE, NAME, {"spec": spec})

    def until(self, what: str, holds: Callable[[], object], timeout: float) -> None:
        """Wait, telling each new word of the rollout. Raises BedError when it doesn't happen."""
        told, deadline = "", time.monotonic() + timeout
        while not holds():
            word = self.status().get("summary", {}).get("rollout", "")
            if word != told and word:
                self.say(f"  {word}")
                told = word
            if self.operator.child.process.poll() is not None:
                # A machine too busy to renew the Lease in time ends it, and a kubelet would start it again.
                self.say("  the operator has ended and is started again")
                self.operator.start()
            if time.monotonic() > deadline:
                raise BedError(f"{what} didn't happen within {timeout:g} s; status: {json.dumps(self.status())}")
            time.sleep(0.1)

    def why(self) -> str:
        """What `kubectl specdecode why` says."""
        program = Path(sys.executable).with_name("kubectl-specdecode")
        environment = os.environ | {"KUBECONFIG": str(self.bed.kubeconfig)}
        told = subprocess.run(
            [program, "why", NAME, "-n", NAMESPACE], env=environment, capture_output=True, text=True, check=True
        )
        return told.stdout.strip()


def tell(story: Story) -> tuple[float, float]:
    """The story.

    Returns:
        Seconds from the first bad draft to weight 0, and from the good change to its promotion.
    """
    bed, fleet = story.bed, story.fleet
    bed.namespace(NAMESPACE)
    traffic = {"rate": 100, "life": {"median": 3, "sigma": 0.6}}
    behaviour = {"acceptance": GOOD, "concentration": 8, "draftRate": 20}
    fleet.play(
        {
            "traffic": traffic,
            "behaviour": behaviour,
            "rules": [{"match": {"revision": 2}, "acceptance": BAD}],
        }
    )
    story.say("apply: depth 3, 2 prefill, 4 decode, 2 router Pods; steps 10, 50, 100 %")
    bed.api.apply(RESOURCE)
    story.until("the first roll-out", lambda: story.is_true("Ready"), 90)
    story.say("Ready: revision 1 serves 100 requests a second, acceptance length about 3.5")

    story.say("change the image; its drafts are wrong (acceptance length 1.1), its answers right, no request fails")
    story.change({"engine": {"image": "specdecode/vllm:0.33.0-specdecode.1"}})
    draft = fleet.wait_event("first_draft", 90, namespace=NAMESPACE, revision=2)
    story.say("the canary serves its first requests")
    zero = fleet.wait_event("weight", 60, namespace=NAMESPACE, revision=2, weight=0.0)
    caught = float(zero["at"]) - float(draft["at"])
    story.say(f"its traffic is gone, {caught:.1f} s after its first draft")
    story.until("the roll-back", lambda: story.status().get("rejected") and story.is_true("Stalled"), 60)
    (rejected,) = story.status()["rejected"]
    story.say(f"rolled back: {rejected['reason']}: {rejected['message']}")
    if not story.is_true("Available") or not story.is_true("Stalled"):
        raise BedError(f"after the roll-back Available and Stalled should be True: {story.status()['conditions']}")
    print("\n".join(f"          why | {line}" for line in story.why().splitlines()), flush=True)

    story.say("change the depth from 3 to 2, on the good image")
    changed = time.monotonic()
    story.change({"engine": {"image": "specdecode/vllm:0.33.0-specdecode"}, "speculation": {"depth": 2}})
    story.until("the promotion", lambda: story.status().get("stable", {}).get("revision") == 3, 300)
    took = time.monotonic() - changed
    story.until("Ready", lambda: story.is_true("Ready"), 60)
    story.say("promoted: revision 3 serves")
    return caught, took


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything up until Ctrl-C, and say how to use it")
    keep = parser.parse_args().keep
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        binaries.ensure()
        with Bed() as bed, Fleet(bed) as fleet:
            bed.install_crds()
            with Recorder(bed) as recorder, OperatorProcess(bed, ["--log-format", "text"]) as operator:
                story = Story(bed, fleet, operator)
                story.say("a real API server, 10 simulated nodes and the operator are up")
                caught, promoted = tell(story)
                breaches = recorder.breaches(OPERATOR)
                if breaches:
                    raise BedError(f"writes that break an invariant: {breaches}")
                print(f"demo: rolled back in {caught:.1f} s after the first bad draft, promoted in {promoted:.1f} s")
                if keep:
                    linger(bed, fleet, operator)
    except (BedError, BuildError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def linger(bed: Bed, fleet: Fleet, operator: OperatorProcess) -> None:
    """Leave all up until Ctrl-C."""
    print(
        f"\nAll of it stays up until Ctrl-C. In another shell:\n"
        f"  export KUBECONFIG={bed.kubeconfig} PATH={ROOT / '.venv' / 'bin'}:{bed.binaries.folder}:$PATH\n"
        f"  kubectl get sdd -n {NAMESPACE} -w\n"
        f"  kubectl specdecode why {NAME} -n {NAMESPACE}\n"
        f'  kubectl patch sdd {NAME} -n {NAMESPACE} --type merge -p \'{{"spec":{{"speculation":{{"depth":4}}}}}}\'\n'
        f"What the simulated Pods do is in {fleet.scenario_file}; the operator's log is {operator.child.log}.",
        flush=True,
    )
    while True:
        for child in [*bed.children().values(), fleet.child, operator.child]:
            child.check()
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
