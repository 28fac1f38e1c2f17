"""The real operator as a process of its own beside a bed."""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.bed.control_plane import OPERATOR, OPERATOR_NAMESPACE, ROOT, Bed
from tests.bed.processes import Child, wait_for
from tests.bed.running import Running

PROGRAM = Path(sys.executable).with_name("specdecode-operator")


class OperatorProcess(Running):
    """A running operator; `with` it, or `start()`, and `kill()` or `stop()`.

    Attributes:
        user: name that its requests have in the audit log.
        child: its process, for measuring it.
        url: where its /metrics, /healthz and /readyz are.
    """

    def __init__(
        self,
        bed: Bed,
        arguments: Sequence[str] = (),
        *,
        kubeconfig: Path | None = None,
        user: str = OPERATOR,
        program: Sequence[str] = (str(PROGRAM),),
        name: str = "operator",
        wait: bool = True,
    ) -> None:
        """
        Args:
            bed: where it runs.
            arguments: its command line, after `--kubeconfig FILE --metrics-bind HOST:PORT` and the Lease's namespace.
            kubeconfig: who it is; by default the user `OPERATOR`, who may do what the chart allows.
            user: that user's name.
            program: what to run.
            name: of its log file, where several run beside one bed.
            wait: whether `start` returns only when it says that it is ready.
        """
        self._bed = bed
        address = f"{bed.network.host}:{bed.network.free_port()}"
        own = ["--kubeconfig", str(kubeconfig or bed.kubeconfig_of(user)), "--metrics-bind", address]
        own += ["--lease-namespace", OPERATOR_NAMESPACE]
        self._command = [*program, *own, *arguments]
        self._name = name
        # The file goes on from test to test, where operators have the same name.
        self._log = bed.state / f"{name}.log"
        self._log_begins = self._log.stat().st_size if self._log.exists() else 0
        self._wait = wait
        self.user = user
        self.url = f"http://{address}"

    def start(self) -> None:
        """Starts it, also again after `kill`. Raises BedError if it ends before it is ready."""
        path = os.pathsep.join([str(ROOT / "operator"), str(ROOT)])
        environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        self.child = Child.start(self._name, self._command, self._log, cwd=ROOT, env=environment)
        if self._wait:
            wait_for("the operator", self._is_ready, 180, [self.child])

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def metrics(self) -> str:
        """The page of its own metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    def kill(self) -> None:
        """Ends it at once, wherever it is: SIGKILL."""
        self.child.kill()

    def stop(self) -> None:
        """Asks it to end, as a Pod's end does."""
        self.child.stop(grace=10)

    def log(self) -> str:
        """What this operator has printed so far, also before it was started again."""
        return self._log.read_bytes()[self._log_begins :].decode(errors="replace")
