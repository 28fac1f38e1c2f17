"""The operator's image: built here, small, and what it runs as the chart runs it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdecode import __version__
from tests.bed.control_plane import OPERATOR, ROOT, Bed
from tests.bed.operator_process import OperatorProcess
from tests.bed.processes import wait_for
from tests.chart.programs import Helm
from tools.operator_image import IMAGE, build, make_base, run, size

LIMIT = 200e6
"""Bytes that the image may add to its base."""
AS_IN_A_POD = """
mount --bind "$0" "$0" && mount -t proc proc "$0/proc" && mount --bind "$1" "$0/tmp" &&
mount -o remount,bind,ro "$0" && shift &&
exec chroot --userspec=65532:65532 "$0" "$@"
"""
"""Runs a program of a root file system, which is read-only but for /tmp; to be run in a mount namespace of its own."""


@pytest.fixture(scope="module")
def base() -> str:
    return make_base()


@pytest.fixture(scope="module")
def image(base: str) -> str:
    # A name of its own: another test's build of the image would take this one's tag away.
    return build(base, "test", f"{IMAGE}-test")


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[str]:
    made = run("buildah", "from", "--pull-never", image).strip()
    yield made
    run("buildah", "rm", made)


def inside(container: str, *command: str) -> str:
    """What a command prints in the container, as the image's own user."""
    return run("buildah", "run", container, "--", *command)


def test_it_is_small(base: str, image: str) -> None:
    added = size(image) - size(base)
    print(f"the operator's image adds {added / 1e6:.0f} MB to its base")
    assert 10e6 < added < LIMIT


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
    sample = (ROOT / "examples" / "01-plain.yaml").read_text()
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


@pytest.fixture
def pod(container: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], Path]]:
    """How to run a program of the image with a read-only root and no shell in it, and the folder that is its /tmp."""
    root = Path(run("buildah", "mount", container).strip())
    shells = [path for path in (root / "usr" / "bin").glob("*sh") if path.name in ("sh", "dash", "bash", "rbash")]
    assert shells
    for shell in shells:
        shell.unlink()
    folder = tmp_path_factory.mktemp("pod")
    folder.chmod(0o777)
    yield ["unshare", "--mount", "--propagation", "private", "sh", "-c", AS_IN_A_POD, str(root), str(folder)], folder
    run("buildah", "umount", container)


@pytest.mark.needs_bed
def test_it_operates_with_a_read_only_root_and_without_a_shell(
    bed: Bed, release: Helm, pod: tuple[list[str], Path]
) -> None:
    enter, folder = pod
    script = "import os; print(os.getuid(), bool(os.statvfs('/').f_flag & os.ST_RDONLY), os.path.exists('/bin/sh'))"
    assert run(*enter, "/opt/specdecode/bin/python", "-c", script) == "65532 True False\n"

    kubeconfig = folder / "kubeconfig"
    shutil.copy(bed.kubeconfig_of(OPERATOR), kubeconfig)
    kubeconfig.chmod(0o644)
    namespace = bed.namespace("by-image")
    program = [*enter, "/opt/specdecode/bin/specdecode-operator"]
    with OperatorProcess(bed, kubeconfig=Path("/tmp/kubeconfig"), program=program, name="by-image") as operator:
        bed.kubectl("apply", "-n", namespace, "-f", str(ROOT / "examples" / "01-plain.yaml"))
        wait_for("its StatefulSets", lambda: len(bed.api.list("StatefulSet", namespace)) == 2, 120)
        assert f'version="{__version__}"' in operator.metrics()
    bed.kubectl("delete", "namespace", namespace, "--timeout=300s")
