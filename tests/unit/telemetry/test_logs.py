from __future__ import annotations

import io
import json
import logging
import sys
from typing import Literal

import pytest

from specdecode.telemetry import ResourceLogger, logs


def written(form: Literal["text", "json"], monkeypatch: pytest.MonkeyPatch) -> str:
    """What is logged about one resource, an error included."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    before = logging.root.handlers[:], logging.root.level
    try:
        logs.configure(form, "info")
        logger = ResourceLogger(logging.getLogger("specdecode.test"), "a", "glm")
        logger.debug("unheard")
        logger.info("moving to %d", 10, extra={"revision": 2})
        try:
            raise ValueError("odd")
        except ValueError:
            logger.exception("failed")
        logging.getLogger("kopf.some").info("unheard too")
    finally:
        logging.root.handlers[:], level = before[0], before[1]
        logging.root.setLevel(level)
    return stream.getvalue()


def test_json_is_one_object_a_line_with_the_resource_s_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (json.loads(line) for line in written("json", monkeypatch).splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "logger": "specdecode.test",
        "message": "moving to 10",
        "namespace": "a",
        "name": "glm",
        "revision": 2,
    }
    assert "ValueError: odd" in second["exception"]


def test_text_ends_with_the_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = written("text", monkeypatch).splitlines()
    assert lines[0].endswith("INFO    moving to 10 namespace=a name=glm revision=2")
    assert lines[1].endswith("ERROR   failed namespace=a name=glm")
    assert lines[-1] == "ValueError: odd"
