"""Logs as text for people or JSON for collectors, each line with the resource that it is about."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

FIELDS: Final = ("namespace", "name", "revision", "reason")
"""Fields that a line may carry through ``extra``."""


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: getattr(record, f"sdd_{name}") for name in FIELDS if hasattr(record, f"sdd_{name}")}


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        } | _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, message, then the fields as ``key=value``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname:<7} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class ResourceLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines carry one resource; ``extra`` adds the other `FIELDS`."""

    def __init__(self, logger: logging.Logger, namespace: str, name: str) -> None:
        super().__init__(logger, {"namespace": namespace, "name": name})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Join the resource's fields with the call's."""
        fields = dict(self.extra or {}) | dict(kwargs.get("extra") or {})
        kwargs["extra"] = {f"sdd_{name}": value for name, value in fields.items()}
        return msg, kwargs


def configure(form: Literal["text", "json"], level: str) -> None:
    """Send all logs to standard error in one form. Libraries speak from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(level.upper())
    for library in ("kopf", "aiohttp", "asyncio", "kubernetes"):
        logging.getLogger(library).setLevel(max(logging.WARNING, logging.root.level))
