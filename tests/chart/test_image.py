"""The operator's image: built here, small, and what it runs as the chart runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from specdecode import __version__
from tools import operator_image
from tools.operator_image import build, make_base, run, size

LIMIT = 200e6
"""Bytes that the image may add to its base."""


@pytest.fixture(scope="module")
def base() -> str:
    return make_base()


@pytest.fixture(scope="module")
def image(base: str) -> str:
    return build(base, "test")


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[str]:
    made = run("buildah", "from", "--pull-never", image).strip()
    yield made
    run("buildah", "rm", made)


def inside(container: str, *command: str) -> str:
    """What a command prints in the container, as the image's own user."""
    return run("buildah", "run", container, "--", *command)


def test_it_is_small(base: str, image: str) -> None:
    assert 10e6 < size(image) - size(base) < LIMIT


def test_its_configuration(image: str) -> None:
    config = json.loads(run("buildah", "inspect", "--type", "image", image))["OCIv1"]["config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["/opt/specdecode/bin/specdecode-operator"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.revision"] == "test"


def test_the_operator_and_the_command_line_run(container: str) -> None:
    assert __version__ in inside(container, "/opt/specdecode/bin/specdecode-operator", "--version")
    assert "validate" in inside(container, "kubectl-specdecode", "--help")
    assert "65532" in inside(container, "python", "-c", "import os; print(os.getuid())")


def test_it_validates_and_renders_the_sample(container: str) -> None:
    sample = (operator_image.ROOT / "examples" / "01-plain.yaml").read_text()
    script = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[2:], input=sys.argv[1], text=True).returncode)"
    made = inside(container, "python", "-c", script, sample, "kubectl-specdecode", "render", "-f", "-")
    assert "kind: StatefulSet" in made


def test_without_a_cluster_it_says_what_it_needs(container: str) -> None:
    script = (
        "import subprocess; r = subprocess.run(['specdecode-operator'], capture_output=True, text=True); "
        "print(r.returncode, r.stderr)"
    )
    told = inside(container, "python", "-c", script)
    assert told.startswith("2 ")
    assert "no access to a cluster" in told


def test_no_bytecode_is_missing_where_the_root_is_read_only(container: str) -> None:
    script = (
        "import sys, specdecode.main; "
        "print([m for m, v in sys.modules.items() if m.startswith('specdecode') and not v.__spec__.has_location] or "
        "[m for m, v in sys.modules.items() if m.split('.')[0] in ('specdecode', 'kopf', 'pydantic') and "
        "v.__spec__ and v.__spec__.cached and not __import__('os').path.exists(v.__spec__.cached)])"
    )
    assert inside(container, "python", "-c", script).strip() == "[]"
