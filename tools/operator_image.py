"""Builds the operator's image with buildah: `python -m tools.operator_image [--base IMAGE]`.

Without --base the base is a small Debian with Python, made by debootstrap: no registry of images is needed.
Needs root, or a user namespace that buildah may use. Prints what the image adds to its base.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from specdecode import __version__

ROOT: Final = Path(__file__).parents[1]
IMAGE: Final = f"localhost/specdecode-operator:{__version__}"
BASE: Final = "localhost/specdecode-base:debian-python"
SUITE: Final = "bookworm"
PACKAGES: Final = "python3-minimal,python3-venv,ca-certificates"
CERTIFICATES: Final = Path("/etc/ssl/certs")


class ImageError(Exception):
    """The image can't be built; the message says what is missing, or what the tool said."""


def environment() -> dict[str, str]:
    """What buildah runs with. Works in a container and without one: no overlay mounts, no runtime."""
    chosen = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs", "BUILDAH_FORMAT": "oci"}
    return os.environ | {name: os.environ.get(name, value) for name, value in chosen.items()}


def run(*command: str | Path, timeout: float = 1800.0) -> str:
    """What a program prints.

    Args:
        command: the program and its arguments.
        timeout: seconds.

    Raises:
        ImageError: it isn't there, or exits non-zero.
    """
    words = [str(word) for word in command]
    if shutil.which(words[0]) is None:
        raise ImageError(f"{words[0]} isn't on PATH: install it (Debian: apt-get install buildah debootstrap)")
    ran = subprocess.run(words, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    if ran.returncode:
        raise ImageError(f"{' '.join(words[:3])} exited with {ran.returncode}:\n{(ran.stdout + ran.stderr)[-3000:]}")
    return ran.stdout


def exists(image: str) -> bool:
    """Whether buildah's storage has an image."""
    return bool(json.loads(run("buildah", "images", "--json", "--filter", f"reference={image}") or "null"))


def make_base(rootfs: Path | None = None) -> str:
    """The base by debootstrap, made once; its name.

    Args:
        rootfs: a root file system that is there already.
    """
    if exists(BASE):
        return BASE
    with tempfile.TemporaryDirectory(prefix="specdecode-base-") as scratch:
        if rootfs is None:
            rootfs = Path(scratch, "rootfs")
            run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, rootfs)
        container = run("buildah", "from", "scratch").strip()
        try:
            run("buildah", "add", "--quiet", container, rootfs, "/")
            run("buildah", "commit", "--quiet", container, BASE)
        finally:
            run("buildah", "rm", container)
    return BASE


def build(base: str, revision: str = "unknown", image: str = IMAGE) -> str:
    """Builds the image on a base and tags it; its name."""
    with tempfile.TemporaryDirectory(prefix="specdecode-image-") as scratch:
        settings = Path(scratch, "pip.conf")
        settings.write_text(pip_settings())
        more = [f"--volume={CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.is_dir() else []
        run(
            *("buildah", "build", "--layers", "--ignorefile", "Dockerfile.dockerignore"),
            *(f"--build-arg=BASE={base}", f"--build-arg=VERSION={__version__}", f"--build-arg=REVISION={revision}"),
            *(f"--secret=id=pip,src={settings}", *more),
            *("--tag", image, "--file", "Dockerfile", "."),
        )
    return image


def pip_settings() -> str:
    """A pip.conf with pip's settings of this machine: an index of one's own, say, and the certificates it trusts."""
    return _pip_conf(subprocess.run(["pip", "config", "list"], capture_output=True, text=True, check=False).stdout)


def _pip_conf(listed: str) -> str:
    """pip.conf from what `pip config list` prints: later lines, which win, last; nothing that names a local folder."""
    found = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        option = name.split(".", 1)[-1]
        if option in ("index-url", "extra-index-url", "trusted-host", "cert", "timeout", "default-timeout"):
            found[option] = value.strip("'\"")
    return "[global]\n" + "".join(f"{option} = {value}\n" for option, value in found.items())


def size(image: str) -> int:
    """Bytes of an image's file system."""
    container = run("buildah", "from", "--pull-never", image).strip()
    try:
        mounted = run("buildah", "mount", container).strip()
        told = run("du", "--summarize", "--bytes", "--one-file-system", mounted)
        return int(told.split()[0])
    finally:
        run("buildah", "rm", container)


def main() -> None:
    """Build, and say how large it is."""
    parser = argparse.ArgumentParser(prog="python -m tools.operator_image", description=__doc__)
    parser.add_argument("--base", help="base image (default: one made by debootstrap)")
    parser.add_argument("--rootfs", type=Path, help="root file system for the base, instead of running debootstrap")
    asked = parser.parse_args()
    base = asked.base or make_base(asked.rootfs)
    image = build(base, run("git", "rev-parse", "--short", "HEAD").strip())
    added = size(image) - size(base)
    print(f"{image}: {added / 1e6:.0f} MB over {base}")


if __name__ == "__main__":
    main()
