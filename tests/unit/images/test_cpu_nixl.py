"""NIXL's progress thread is let sleep in the CPU image, or the build says that NIXL has changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "images/vllm/cpu_nixl.py"
POLLING = "        agent_config.useListenThread = False\n        agent_config.pthrDelay = 0\n        more = 1\n"
SLEEPING = POLLING.replace("pthrDelay = 0", "pthrDelay = 1000")


def let_sleep(site: Path) -> subprocess.CompletedProcess[str]:
    """Run it as the Dockerfile does."""
    return subprocess.run([sys.executable, SCRIPT, site], check=False, capture_output=True, text=True)


def test_every_installed_package_sleeps_and_a_second_time_changes_nothing(tmp_path: Path) -> None:
    files = [tmp_path / f"nixl_cu{version}/_api.py" for version in (12, 13)]
    for file in files:
        file.parent.mkdir()
        file.write_text(POLLING)
    for _ in range(2):
        done = let_sleep(tmp_path)
        assert done.returncode == 0, done.stderr
        assert [file.read_text() for file in files] == [SLEEPING] * 2


@pytest.mark.parametrize("text", [None, "agent_config.pthrDelay = 5\n"])
def test_another_nixl_fails_the_build(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "nixl_cu13").mkdir()
        (tmp_path / "nixl_cu13/_api.py").write_text(text)
    done = let_sleep(tmp_path)
    assert done.returncode == 1
    assert "NIXL has changed" in done.stderr
