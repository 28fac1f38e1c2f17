"""Images for the node: built by buildah into archives, and loaded into containerd."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bed.binaries import cache_root
from tests.bed.processes import BedError
from tests.node import programs
from tests.node.settings import DNS_IMAGE, SANDBOX_IMAGE, STAND_IN_IMAGE
from tools.operator_image import run

NAMESPACE: Final = "k8s.io"
"""Of containerd, where the kubelet looks."""


@dataclass(frozen=True)
class Archive:
    """An image as a file.

    Attributes:
        image: its full name.
        path: an archive, in Docker's form, that holds it under this name.
    """

    image: str
    path: Path


class Ctr:
    """containerd's own client. It connects through a socket, so it works from any namespace."""

    def __init__(self, program: Path, socket: Path) -> None:
        self._words = [str(program), "--address", str(socket), "--namespace", NAMESPACE]

    def __call__(self, *arguments: str) -> str:
        """What it prints.

        Raises:
            BedError: it exits non-zero.
        """
        ran = subprocess.run([*self._words, *arguments], capture_output=True, text=True, timeout=1200)
        if ran.returncode:
            raise BedError(f"ctr {' '.join(arguments)} exited with {ran.returncode}: {ran.stderr.strip()[-1000:]}")
        return ran.stdout

    def wait(self, timeout: float = 60.0) -> None:
        """Until containerd answers.

        Raises:
            BedError: it doesn't within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                self("version")
                return
            except BedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def load(self, archive: Archive) -> None:
        """Import an archive, unless the very same one was imported before."""
        self.wait()
        mark = _mark(archive)
        listed = self("images", "ls", f"name=={archive.image}")
        if mark in listed:
            return
        self("images", "import", "--no-unpack=false", str(archive.path))
        self("images", "label", archive.image, mark)


def _mark(archive: Archive) -> str:
    about = archive.path.stat()
    return f"specdecode.dev/archive={about.st_size}-{about.st_mtime_ns}"


def folder() -> Path:
    """Where archives are kept."""
    return cache_root() / "node" / "images"


def archive(image: str, key: str, build: Callable[[], None]) -> Archive:
    """An image as a file in the cache, built and written if it isn't there.

    Args:
        image: its name.
        key: of what it is made of.
        build: puts it into buildah's storage.
    """
    name = image.rpartition("/")[2].replace(":", "-")
    path = folder() / f"{name}-{key}.tar"
    if path.exists():
        return Archive(image, path)
    folder().mkdir(parents=True, exist_ok=True)
    build()
    for older in folder().glob(f"{name}-*"):
        older.unlink()
    partial = path.with_suffix(".partial")
    # Docker's form isn't compressed: it travels no farther than to the node's containerd.
    run("buildah", "push", "--quiet", image, f"docker-archive:{partial}:{image}")
    partial.rename(path)
    return Archive(image, path)


def from_program(image: str, program: Path, name: str = "") -> Archive:
    """An image that holds one static program and nothing else.

    Args:
        image: its name.
        program: the file, in a folder that is named after what it was built from.
        name: of the program in the image, if another.
    """
    name = name or program.name
    recipe = (
        f"FROM scratch\nCOPY {program.name} /usr/local/bin/{name}\nENV PATH=/usr/local/bin\nUSER 65532:65532\n"
        f'ENTRYPOINT ["/usr/local/bin/{name}"]\n'
    )

    def build() -> None:
        with tempfile.TemporaryDirectory(prefix="specdecode-image-") as scratch:
            shutil.copy(program, scratch)
            Path(scratch, "Dockerfile").write_text(recipe)
            run("buildah", "build", "--quiet", "--tag", image, scratch)

    return archive(image, hashlib.sha256(f"{program.parent.name} {recipe}".encode()).hexdigest()[:16], build)


def base_archives() -> list[Archive]:
    """What every node has: the sandbox, which is the tests' probe too, the cluster's DNS, and the stand-in for vLLM."""
    built = programs.ensure()
    return [
        from_program(SANDBOX_IMAGE, built["probe"]),
        from_program(DNS_IMAGE, built["coredns"]),
        from_program(STAND_IN_IMAGE, built["standin"], "vllm"),
    ]
