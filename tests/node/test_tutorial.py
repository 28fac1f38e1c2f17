"""docs/tutorial.md, each command of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed import helm
from tests.bed.control_plane import ROOT
from tests.node import product, release
from tests.node.node import Node, Outside

TUTORIAL = ROOT / "docs" / "tutorial.md"


def commands() -> str:
    """Its bash blocks in their order, as one script."""
    return "\n".join(re.findall(r"^```bash\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL))


def test_the_tutorial(node: Node, outside: Outside, capsys: pytest.CaptureFixture[str]) -> None:
    with outside:
        product.ensure(product.OPERATOR, product.ROUTER)  # a person builds images outside
    release.remove(node)  # of other tests
    folders = [Path(sys.executable).parent, node.kubectl_path.parent, helm.ensure("3").parent]
    path = ":".join([*map(str, folders), os.environ["PATH"]])
    ran = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", commands()],
        cwd=ROOT,
        env=os.environ | {"KUBECONFIG": str(node.kubeconfig), "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,
        check=False,
    )
    with capsys.disabled():
        print(f"\n{ran.stdout}")
    assert ran.returncode == 0
