"""One SpecDecodeDeployment in a namespace of its own, and what can be seen of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.bed.api import Json
from tests.bed.control_plane import Bed
from tests.bed.fleet import Fleet
from tests.bed.processes import BedError, wait_for
from tests.bed.resource import KIND, Resource

NAME: Final = "llm"
IMAGE: Final = "vllm:0.33.0"

BUSY: Final[Json] = {"rate": 100, "life": {"median": 3, "sigma": 0.6}}
"""Traffic of a resource: requests a second, and how long one drafts."""
GOOD: Final[Json] = {"acceptance": [0.92, 0.84, 0.74], "concentration": 8, "draftRate": 20}
"""Acceptance length 3.5 at depth 3."""
COLLAPSED: Final[Json] = {"acceptance": [0.08, 0.015, 0.005]}
"""Acceptance length 1.1."""
FAILING: Final[Json] = {"failing": 1, "drafting": False}
"""Every request fails, and nothing is drafted."""
IDLE: Final[Json] = {"idle": True}
"""No request comes, whatever the weight."""


class Deployed(Resource):
    """A resource; make it, change it, wait for what becomes of it.

    Attributes:
        bed: where it is.
        fleet: what its Pods are played by.
    """

    def __init__(self, bed: Bed, fleet: Fleet, namespace: str, tend: Callable[[], None] = lambda: None) -> None:
        """`tend` is called now and then while something is waited for."""
        super().__init__(bed.api, namespace, NAME)
        self.bed, self.fleet = bed, fleet
        self._tend = tend

    def apply(
        self,
        *,
        prefill: int = 2,
        decode: int = 4,
        routers: int = 2,
        weights: tuple[int, ...] = (10, 50, 100),
        **rollout: Any,
    ) -> None:
        """Applies it: by default the worked example of 2 prefill, 4 decode and 2 router Pods, scraped every 2 s."""
        policy: Json = {
            "steps": [{"weight": weight} for weight in weights],
            "promotionDelay": "1s",
            "analysis": {"interval": "2s"},
        }
        spec: Json = {
            "model": {"name": "org/model"},
            "speculation": {"depth": 3},
            "engine": {"image": IMAGE},
            "topology": {
                "prefill": {"replicas": prefill},
                "decode": {"replicas": decode},
                "router": {"replicas": routers},
            },
            "rollout": policy | rollout,
        }
        meta = {"name": NAME, "namespace": self.namespace}
        self.api.apply({"apiVersion": "specdecode.dev/v1alpha1", "kind": KIND, "metadata": meta, "spec": spec})

    def change(self, spec: Json | None = None) -> None:
        """Changes the spec; by default to another image, so that a canary begins."""
        patch = {"engine": {"image": f"{IMAGE}-next"}} if spec is None else spec
        self.api.merge(KIND, self.namespace, NAME, {"spec": patch})

    def ask(self, **annotations: str | None) -> None:
        """Sets annotations of the project's domain: `ask(promote="2/1")`."""
        named = {f"specdecode.dev/{name}": value for name, value in annotations.items()}
        self.api.annotate(KIND, self.namespace, NAME, **named)

    def at_rest(self) -> bool:
        """Whether one revision alone is left, and nothing is under way."""
        return self.canary() is None and len(self.workloads()) == 3 and self.condition("Reconciling")[0] == "False"

    def workloads(self) -> dict[str, int]:
        """Replicas of each StatefulSet and Deployment, by kind and name."""
        kinds = ("StatefulSet", "Deployment")
        return {
            f"{kind} {found['metadata']['name']}": found["spec"]["replicas"]
            for kind in kinds
            for found in self.api.list(kind, self.namespace)
        }

    def end(self) -> Json:
        """What it has come to, but for times and numbers that the traffic gave."""
        return {"stable": self.stable(), "rejected": sorted(self.rejected()), "workloads": self.workloads()}

    def why(self) -> str:
        """What `kubectl specdecode why` says."""
        program = Path(sys.executable).with_name("kubectl-specdecode")
        environment = os.environ | {"KUBECONFIG": str(self.bed.kubeconfig)}
        command = [str(program), "why", NAME, "-n", self.namespace]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return told.stdout

    def wait(self, what: str, holds: Callable[[], object], seconds: float = 60.0, pause: float = 0.5) -> None:
        """Looks every `pause` seconds: seldom, since each look at the API server takes time from what is measured.

        Raises:
            BedError: it doesn't come; with what the resource says of itself.
        """

        def looked() -> object:
            self._tend()
            return holds()

        try:
            wait_for(f"{self.namespace}: {what}", looked, seconds, pause=pause)
        except BedError as error:
            said = [f"{c['type']} {c['status']} {c['reason']}: {c['message']}" for c in self.conditions()]
            raise BedError("\n  ".join([str(error), f"{self.workloads()}", *said])) from None

    def wait_ready(self, seconds: float = 90.0) -> None:
        self.wait("Ready", lambda: self.condition("Ready")[0] == "True", seconds)

    def wait_event(self, event: str, seconds: float, revision: int = 2, **fields: Any) -> float:
        """When the fleet noted it for a revision, Unix seconds."""
        named = {"namespace": self.namespace, "revision": revision} | fields
        self.wait(f"event {event} {named}", lambda: self.fleet.events(event, **named), seconds, 0.2)
        return float(self.fleet.events(event, **named)[0]["at"])

    def traffic_gone(self, revision: int = 2) -> float | None:
        """When the last ready router Pod of a revision had left the entry, Unix seconds; None while one is there."""
        seen = self.fleet.events("weight", namespace=self.namespace, revision=revision)
        gone: float | None = None
        for event in seen:
            gone = (float(event["at"]) if gone is None else gone) if event["routers"] == 0 else None
        return gone
