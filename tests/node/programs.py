"""Builds the node's programs from their Go modules, each once, into the cache of the bed's."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bed import binaries
from tests.bed.binaries import cache_root

SOURCES: Final = Path(__file__).parent / "programs"
_CONTAINERD: Final = "github.com/containerd/containerd/v2/cmd"
_STRIPPED: Final = ("-trimpath", "-buildvcs=false", "-ldflags", "-s -w")


@dataclass(frozen=True)
class Program:
    """One executable of a Go module in programs/.

    Attributes:
        name: of the executable.
        module: folder of the module.
        package: what is built.
        names: by which it is called besides its own name.
    """

    name: str
    module: str
    package: str = "."
    names: tuple[str, ...] = ()


PROGRAMS: Final = (
    Program("containerd", "containerd", f"{_CONTAINERD}/containerd"),
    Program("containerd-shim-runc-v2", "containerd", f"{_CONTAINERD}/containerd-shim-runc-v2"),
    Program("ctr", "containerd", f"{_CONTAINERD}/ctr"),
    Program("kubelet", "kubelet", names=("kube-proxy",)),
    Program("coredns", "coredns"),
    Program("kube-router", "kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"),
    Program("probe", "probe"),
    Program("standin", "standin"),
)


def _flags(program: Program) -> list[str] | None:
    # None: as the bed builds Kubernetes, for the kubelet tells the API server the version that is stamped into it.
    return None if program.module == "kubelet" else list(_STRIPPED)


def _key(program: Program) -> str:
    digest = hashlib.sha256()
    for path in sorted((SOURCES / program.module).iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(" ".join([program.package, *(_flags(program) or [binaries.KUBERNETES])]).encode())
    return digest.hexdigest()[:16]


def ensure(say: Callable[[str], None] | None = None) -> dict[str, Path]:
    """The path of every program by name, those of the bed among them; built now if the cache doesn't hold them.

    Args:
        say: takes a line of progress; by default it is printed to stderr.

    Raises:
        BuildError: no Go, no disk, or a build failed.
    """
    say = say or binaries.print_progress
    bed = binaries.ensure(say)
    found = {name: Path(bed.path(name)) for name in (*binaries.COMPONENTS, "kube")}
    root = cache_root() / "node" / "programs"
    root.mkdir(parents=True, exist_ok=True)
    with binaries.locked(root / "build.lock", say):
        for program in PROGRAMS:
            folder = root / f"{program.name}-{_key(program)}"
            if not folder.is_dir():
                _build(program, folder, say)
            found |= {name: folder / name for name in (program.name, *program.names)}
    return found


def _build(program: Program, folder: Path, say: Callable[[str], None]) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    try:
        binaries.compile_module(
            binaries.find_go(say),
            SOURCES / program.module,
            program.package,
            scratch / program.name,
            program.name,
            say,
            flags=_flags(program),
        )
        for name in program.names:
            (scratch / name).symlink_to(program.name)
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> int:
    """Build all of them and say where they are."""
    try:
        for name, path in ensure().items():
            print(f"{name}\t{path}")
    except binaries.BuildError as error:
        print(f"node: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
