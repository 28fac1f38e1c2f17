"""The simulated fleet: metrics of every Pod, traffic by the weights that the routers really have, and an event log.

`Fleet` runs it as a process of its own beside a bed; `main` is that process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.bed.control_plane import ROOT, Bed
from tests.bed.fleet import scenario
from tests.bed.processes import BedError, Child, wait_for
from tests.bed.running import Running


class Fleet(Running):
    """A running fleet process.

    Attributes:
        scenario_file: what it plays; read again whenever it changes.
        event_log: JSON lines, see `main`.
        child: the process, for measuring it.
    """

    def __init__(self, bed: Bed, *, seed: int = 0) -> None:
        self._bed = bed
        self._seed = seed

    def start(self) -> None:
        """Starts it with an empty scenario: healthy Pods and some traffic. Raises BedError if it doesn't come up."""
        folder = self._bed.state / "fleet"
        folder.mkdir(exist_ok=True)
        self.scenario_file = folder / "scenario.yaml"
        self.event_log = folder / "events.jsonl"
        self.event_log.write_text("")
        self.scenario_file.write_text("{}\n")
        command = [sys.executable, "-m", "tests.bed.fleet.main"]
        command += ["--kubeconfig", str(self._bed.kubeconfig_of("bed:fleet"))]
        command += ["--scenario", str(self.scenario_file), "--events", str(self.event_log), "--seed", str(self._seed)]
        path = os.pathsep.join([str(ROOT / "operator"), str(ROOT)])
        one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        environment = os.environ | {"PYTHONPATH": path} | one_thread
        self.child = Child.start("fleet", command, folder / "fleet.log", cwd=ROOT, env=environment)
        wait_for("the fleet", lambda: self.events("scenario"), 120, [self.child])

    def stop(self) -> None:
        self.child.stop(grace=2)

    def play(self, chosen: Path | dict[str, Any] | str, timeout: float = 5.0) -> float:
        """Plays another scenario from now on: a file, or the scenario as a dict or as YAML.

        Returns:
            When it took effect, in Unix seconds by the fleet's clock.

        Raises:
            ScenarioError: it can't be read.
            BedError: the fleet did not take it up.
        """
        if isinstance(chosen, Path):
            scenario.load(chosen)
            text = chosen.read_text()
        else:
            text = chosen if isinstance(chosen, str) else yaml.safe_dump(chosen)
            scenario.parse(text)
        seen = len(self.events("scenario"))
        written = self.scenario_file.with_suffix(".new")
        written.write_text(text)
        written.rename(self.scenario_file)
        wait_for(
            "the fleet to take up the scenario", lambda: len(self.events("scenario")) > seen, timeout, [self.child]
        )
        return float(self.events("scenario")[-1]["at"])

    def events(self, event: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        """The event log so far: events of this name whose fields have these values."""
        found = [json.loads(line) for line in self.event_log.read_text().splitlines() if line.endswith("}")]
        return [
            entry
            for entry in found
            if (event is None or entry["event"] == event) and all(entry.get(k) == v for k, v in fields.items())
        ]

    def wait_event(self, event: str, timeout: float, **fields: Any) -> dict[str, Any]:
        """The first event of this name with these fields, waiting for it; raises BedError when it doesn't come."""
        deadline = time.monotonic() + timeout
        while not (found := self.events(event, **fields)):
            self.child.check()
            if time.monotonic() > deadline:
                raise BedError(f"no event {event} with {fields} within {timeout:g} s")
            time.sleep(0.05)
        return found[0]
