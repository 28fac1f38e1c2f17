"""Versions from images and tables of flags."""

from __future__ import annotations

import pytest

from specdecode.engine.versions import image_tag, patched, tables, version_of

from .specs import spec


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("vllm", ""),
        ("vllm:0.33.0", "0.33.0"),
        ("registry.example:5000/org/vllm", ""),
        ("registry.example:5000/org/vllm:v0.33.0-specdecode", "v0.33.0-specdecode"),
        ("registry.example/vllm:0.33.0@sha256:" + "0" * 64, "0.33.0"),
        ("registry.example/vllm@sha256:" + "0" * 64, ""),
    ],
)
def test_image_tag(image: str, tag: str) -> None:
    assert image_tag(image) == tag


@pytest.mark.parametrize(
    ("image", "version", "text", "series", "known"),
    [
        ("v:0.33.0", "", "0.33.0", "0.33", True),
        ("v:v0.32.1-specdecode", "", "0.32.1", "0.32", True),
        ("v:0.32", "", "0.32", "0.32", True),
        ("v:0.33.0", "0.32.0", "0.32.0", "0.32", True),
        ("v:latest", "", "", "0.33", False),
        ("v:nightly-0.33.0", "", "", "0.33", False),
        ("v:0.99.0", "", "0.99.0", "0.33", False),
        ("v@sha256:" + "0" * 64, "", "", "0.33", False),
        ("v@sha256:" + "0" * 64, "0.32.0", "0.32.0", "0.32", True),
        ("v:0.33.0.1", "", "", "0.33", False),
    ],
)
def test_version_of(image: str, version: str, text: str, series: str, known: bool) -> None:
    found = version_of(spec({"engine.image": image, "engine.version": version}))
    assert (found.text, found.table.name, found.known) == (text, series, known)


@pytest.mark.parametrize(
    ("image", "said", "expected"),
    [
        ("v:0.33.0-specdecode", "Auto", True),
        ("v:0.33.0", "Auto", False),
        ("v@sha256:" + "0" * 64, "Auto", False),
        ("v@sha256:" + "0" * 64, "Patched", True),
        ("v:0.33.0-specdecode", "Unpatched", False),
    ],
)
def test_patched(image: str, said: str, expected: bool) -> None:
    assert patched(spec({"engine.image": image, "engine.patched": said})) is expected


def test_tables_are_ordered_and_differ() -> None:
    assert [table.name for table in tables()] == ["0.32", "0.33"]
    old, new = tables()
    assert old.flags < new.flags
    assert new.flags - old.flags == {"monokernel", "reasoning-effort-map", "sleep-mode-backend", "watchdog-config"}


@pytest.mark.parametrize(
    ("flag", "old", "new"),
    [
        ("max-model-len", "value", "value"),
        ("no-max-model-len", None, None),
        ("enable-prefix-caching", "none", "none"),
        ("no-enable-prefix-caching", "none", "none"),
        ("disable-prefix-caching", None, "none"),
        ("disable-log-stats", "none", "none"),
        ("no-disable-log-stats", None, None),
        ("monokernel", None, "none"),
        ("watchdog-config", None, "value"),
        ("max-model-length", None, None),
    ],
)
def test_arity(flag: str, old: str | None, new: str | None) -> None:
    assert [table.arity(flag) for table in tables()] == [old, new]


def test_every_flag_that_is_owned_exists() -> None:
    from specdecode.api.owned import OWNED_FLAGS

    assert set(OWNED_FLAGS) <= tables()[-1].flags
