"""Child processes that never outlive the bed, and addresses that two beds never share."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)

FIRST_NETWORK: Final = 64
LAST_NETWORK: Final = 127


class BedError(Exception):
    """The bed didn't come up or didn't do as asked; the message says what was seen and where to look."""


def die_with_parent(parent: int) -> None:
    """In a child, before exec: have the kernel kill it when the thread that forked it ends, however it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


@dataclass(frozen=True)
class Child:
    """A running child process.

    Attributes:
        name: of the program, for messages.
        process: the process itself, leader of a process group of its own.
        log: where its stdout and stderr go.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(
        cls, name: str, command: Sequence[str], log: Path, *, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> Child:
        parent = os.getpid()
        with log.open("ab") as out:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                preexec_fn=lambda: die_with_parent(parent),
                process_group=0,
            )
        return cls(name, process, log)

    def check(self) -> None:
        """Raises BedError with the end of its log if the process has ended."""
        if self.process.poll() is not None:
            end = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise BedError(f"{self.name} ended with status {self.process.returncode}; its log {self.log} ends:\n{end}")

    def stop(self, grace: float = 5.0) -> None:
        """Asks the process to end, and kills it and what it started after `grace` seconds."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
        self.kill()

    def kill(self) -> None:
        """Ends the process and all of its group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def resident_bytes(self) -> int:
        """VmRSS of the process now, in bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0

    def cpu_seconds(self) -> float:
        """User and system time that the process has used, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class LoopbackNetwork:
    """A /16 of loopback addresses that this process alone uses while it lives.

    The claim is a socket of the abstract Unix namespace, which the kernel gives up with the process; it is scoped to
    the network namespace, as loopback addresses are.
    """

    number: int
    claim: socket.socket

    @classmethod
    def take(cls) -> LoopbackNetwork:
        for number in range(FIRST_NETWORK, LAST_NETWORK + 1):
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0specdecode-bed/127.{number}")
            except OSError:
                claim.close()
                continue
            return cls(number, claim)
        raise BedError(
            f"all loopback networks from 127.{FIRST_NETWORK} to 127.{LAST_NETWORK} are taken by other beds: stop some"
        )

    @property
    def pods(self) -> str:
        return f"127.{self.number}.0.0/16"

    @property
    def host(self) -> str:
        """Address of the control plane: Pods are given theirs from the low end and never come so far."""
        return f"127.{self.number}.255.1"

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            return int(probe.getsockname()[1])

    def release(self) -> None:
        self.claim.close()


def wait_for(what: str, ready: object, timeout: float, children: Sequence[Child] = (), pause: float = 0.05) -> None:
    """Calls `ready` until it returns something true.

    Raises:
        BedError: not within `timeout` seconds, or one of `children` ended meanwhile.
    """
    assert callable(ready)
    deadline = time.monotonic() + timeout
    while not ready():
        for child in children:
            child.check()
        if time.monotonic() > deadline:
            logs = ", ".join(str(child.log) for child in children)
            raise BedError(f"{what}: not within {timeout:g} s" + (f" (logs: {logs})" if logs else ""))
        time.sleep(pause)
