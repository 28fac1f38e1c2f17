"""The node from outside: up, down, and what tests do with it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.bed.api import Api, Endpoint
from tests.bed.binaries import locked, print_progress
from tests.bed.control_plane import ROOT
from tests.bed.processes import BedError
from tests.node import images, needs, settings

_CLONE_NEWNET: Final = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_START: Final = 600.0
"""Seconds."""
_SHARES: Final = {settings.CGROUP: 2048, settings.SYSTEM_CGROUP: 4096}
"""Of processor time for all Pods together, and for all of the node's own programs, where others' sessions have 1024
each. Engines that start take all the processors there are, and leases must be renewed all the same; a priority (nice)
counts within one group alone."""


@dataclass(frozen=True)
class Outside:
    """The way back, for as long as the body of `with` lasts: there are no package indexes in the node's network.

    Attributes:
        own, other: descriptors of the network namespaces outside and inside.
    """

    own: int
    other: int

    def __enter__(self) -> None:
        _enter(self.own)

    def __exit__(self, *_: object) -> None:
        _enter(self.other)


@dataclass(frozen=True)
class Node:
    """A node that is up.

    Attributes:
        pid: of its first process, as this process sees it.
        kubeconfig: path of the admin's kubeconfig; its API server is reachable from the node's network alone.
        kubectl: path of the program.
        ctr: containerd's client.
    """

    pid: int
    kubeconfig: Path
    kubectl_path: Path
    ctr: images.Ctr

    @classmethod
    def running(cls) -> Self | None:
        """The one that is up, if there is one."""
        try:
            state = json.loads(settings.state_file().read_text())
            pid = int(_pid_file().read_text())
        except (OSError, ValueError):
            return None
        if not _alive(pid):
            return None
        ctr = images.Ctr(Path(state["ctr"]), Path(state["socket"]))
        return cls(pid, Path(state["kubeconfig"]), Path(state["kubectl"]), ctr)

    @property
    def api(self) -> Api:
        """A client with the admin's rights; it works within `network`."""
        return Api(Endpoint.from_kubeconfig(self.kubeconfig))

    @contextlib.contextmanager
    def network(self) -> Iterator[Outside]:
        """Have this thread, and the threads and processes that it starts, in the node's network."""
        with Path("/proc/thread-self/ns/net").open() as own, Path(f"/proc/{self.pid}/ns/net").open() as other:
            _enter(other.fileno())
            try:
                yield Outside(own.fileno(), other.fileno())
            finally:
                _enter(own.fileno())

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 400.0) -> str:
        """What kubectl prints, run as the admin, within `network`.

        Raises:
            BedError: it exits non-zero; the message holds what it said.
        """
        ran = subprocess.run(
            [self.kubectl_path, *arguments],
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if ran.returncode:
            raise BedError(f"kubectl {' '.join(arguments)} exited with {ran.returncode}: {ran.stderr.strip()}")
        return ran.stdout

    def process(self, name: str) -> int:
        """The id of the node's own process of that program, as this process sees it.

        Raises:
            BedError: there is none.
        """
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                program = (path / "cmdline").read_bytes().split(b"\0")[0].decode()
                if Path(program).name == name and os.readlink(path / "ns/pid") == own:
                    return int(path.name)
        raise BedError(f"no {name} runs on the node")

    def how_to_enter(self) -> str:
        """A shell command with which a person looks around."""
        return (
            f"nsenter --target {self.pid} --net "
            f"env KUBECONFIG={self.kubeconfig} PATH={self.kubectl_path.parent}:$PATH bash"
        )


def up() -> Node:
    """The node, started if none is up; what isn't in the cache yet is built first.

    Raises:
        NeedsError: root or a Debian package is missing.
        BuildError: a program can't be built.
        BedError: it did not come up.
    """
    needs.check()
    images.base_archives()
    root = settings.run_folder().parent
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / "up.lock", print_progress):
        found = Node.running()
        if found is not None:
            return found
        down()  # what a killed one left behind
        return _start()


def _start() -> Node:
    run = settings.run_folder()
    run.mkdir(parents=True)
    for folder in settings.COVERED:
        Path(folder).mkdir(parents=True, exist_ok=True)
    for group in _cgroups():
        group.mkdir(exist_ok=True)
        for name, value in (("cpu.shares", _SHARES[group.name]), ("cpu.weight", _SHARES[group.name] // 10)):
            if (group / name).exists():
                (group / name).write_text(str(value))
    own = [group / "cgroup.procs" for group in _cgroups() if group.name == settings.SYSTEM_CGROUP]

    def join() -> None:
        for procs in own:
            procs.write_text(str(os.getpid()))

    log = run / "supervisor.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *("unshare", "--net", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *("tini", "--", sys.executable, "-m", "tests.node.supervisor"),
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=join,
        )
    deadline = time.monotonic() + _START
    while not settings.state_file().exists():
        if process.poll() is not None or time.monotonic() > deadline:
            said = log.read_text(errors="replace")[-3000:]
            raise BedError(f"the node did not come up; its logs are in {run}, and {log.name} says:\n{said}")
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            if children:
                _pid_file().write_text(children[0])
        time.sleep(0.1)
    found = Node.running()
    assert found is not None
    return found


def down() -> None:
    """Ends the node, if one is up, and removes what it left: processes, mounts, links, cgroups, files. The images that
    it was given stay in the cache.

    Raises:
        BedError: something of it stays.
    """
    with contextlib.suppress(OSError, ValueError):
        pid = int(_pid_file().read_text())
        _end(pid)
    for group in _cgroups():
        _remove_cgroup(group)
    # Its mounts went with their namespace.
    shutil.rmtree(settings.run_folder(), ignore_errors=True)
    for folder in settings.COVERED:
        with contextlib.suppress(OSError):
            Path(folder).rmdir()  # where it was made for the node, it is empty
    if settings.run_folder().exists():
        raise BedError(f"{settings.run_folder()} can't be removed: see what uses it")


def _end(pid: int) -> None:
    for number, patience in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 60.0)):
        if not _alive(pid):
            return
        os.kill(pid, number)
        deadline = time.monotonic() + patience
        while _alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
    if _alive(pid):
        raise BedError(f"the node's process {pid} does not end")


def _pid_file() -> Path:
    return settings.run_folder() / "pid"


def _alive(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"tests.node.supervisor" in command


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise BedError(f"can't enter a network namespace: {os.strerror(number)}")


def _cgroups() -> list[Path]:
    """The parent of all Pods' cgroups, in each hierarchy of the machine's, and the group of the node's own programs in
    those that share out processor time."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root / settings.CGROUP, root / settings.SYSTEM_CGROUP]
    # Comounted controllers are links to one folder.
    hierarchies = sorted({path.resolve() for path in root.iterdir() if (path / "cgroup.procs").exists()})
    sharing = [path for path in hierarchies if (path / "cpu.shares").exists()]
    return [path / settings.CGROUP for path in hierarchies] + [path / settings.SYSTEM_CGROUP for path in sharing]


def _remove_cgroup(group: Path) -> None:
    if not group.is_dir():
        return
    deadline = time.monotonic() + 20
    while True:
        try:
            for path, _, _ in os.walk(group, topdown=False):
                Path(path).rmdir()
            return
        except OSError:  # the last processes are still on their way out
            if time.monotonic() > deadline:
                raise BedError(f"the cgroup {group} can't be removed: see {group}/cgroup.procs") from None
            time.sleep(0.1)
