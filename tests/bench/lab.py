"""What all measures share: one control plane, its fleet, chance from a seed, and operators."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.bed.api import Json
from tests.bed.control_plane import Bed
from tests.bed.fleet import Fleet
from tests.bed.operator_process import OperatorProcess
from tests.bed.processes import wait_for
from tests.bed.resource import KIND
from tests.bench.bars import Bar
from tests.bench.deployed import BUSY, GOOD, NAME, Deployed


@dataclass(frozen=True)
class Measured:
    """What a measure gives: bars, and the table that they come from."""

    bars: Sequence[Bar]
    table: Any


@dataclass
class Lab:
    """The place where it is measured.

    Attributes:
        bed: the control plane.
        fleet: its simulated Pods.
        rng: chooses the moments.
        tag: keeps the namespaces of two labs in one bed apart.
        restarts: how often an operator ended by itself, as it does when it can't renew its Lease, and was started
            again, as a kubelet would.
    """

    bed: Bed
    fleet: Fleet
    rng: random.Random
    tag: str = ""
    restarts: int = field(default=0, init=False)
    _made: int = field(default=0, init=False)
    _operator: OperatorProcess | None = field(default=None, init=False)

    def deployed(self, word: str) -> Deployed:
        """A resource to be, in a namespace of its own."""
        self._made += 1
        name = "-".join(part for part in (word, self.tag, str(self._made)) if part)
        return Deployed(self.bed, self.fleet, self.bed.namespace(name), self.tend)

    def remove(self, *gone: Deployed) -> None:
        """Deletes resources, then their namespaces, and waits until their Pods are gone."""
        for deployed in gone:
            self.bed.api.delete(KIND, deployed.namespace, NAME)
        for deployed in gone:
            wait_for(f"the end of {deployed.namespace}", lambda d=deployed: not self._pods(d), 90, pause=0.2)
            self.bed.api.delete("Namespace", None, deployed.namespace)

    def _pods(self, deployed: Deployed) -> list[Json]:
        return self.bed.api.list("Pod", deployed.namespace)

    def play(self, *rules: Json, traffic: Json | None = None, behaviour: Json | None = None) -> None:
        """Busy traffic and good Pods, but for what rules say."""
        self.fleet.play(
            {"traffic": BUSY | (traffic or {}), "behaviour": GOOD | (behaviour or {}), "rules": list(rules)}
        )

    @contextlib.contextmanager
    def operator(self) -> Iterator[OperatorProcess]:
        """An operator for all namespaces."""
        with OperatorProcess(self.bed) as self._operator:
            try:
                yield self._operator
            finally:
                self._operator = None

    def tend(self) -> None:
        """Starts the operator again if it has ended."""
        if self._operator is not None and self._operator.child.process.poll() is not None:
            say("the operator has ended and is started again")
            self.restarts += 1
            self._operator.start()

    def pass_time(self, seconds: float) -> None:
        """Lets time pass."""
        over = time.monotonic() + seconds
        while (left := over - time.monotonic()) > 0:
            self.tend()
            time.sleep(min(1.0, left))


def load() -> float:
    """Load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def say(text: str) -> None:
    """A line of progress, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
