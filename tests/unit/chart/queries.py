"""Metric names in PromQL and in pages of metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.chart import CHART

_WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "offset", "bool"}


def names(expression: str) -> set[str]:
    """Names of the metrics that an expression reads."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    bare = re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]", " ", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)", " ", bare)
    bare = re.sub(r"\boffset\s+\w+", " ", bare)
    found = re.findall(r"(?<![\w.:$])([a-zA-Z_:][\w:]*)(?![\w:]|\s*\()", bare)
    return {name for name in found if name not in _WORDS}


def labels(expression: str) -> set[tuple[str, str]]:
    """Pairs of a metric and a label that a selector of it names."""
    found = set()
    for metric, matchers in re.findall(r"([a-zA-Z_:][\w:]*)\{([^{}]*)\}", expression):
        found |= {(metric, label) for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)}
    return found


def samples(page: str) -> dict[str, set[str]]:
    """Each metric of a page with all its labels, by the name that queries have."""
    found: dict[str, set[str]] = {}
    for line in page.splitlines():
        if match := re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s", line):
            found.setdefault(match[1], set()).update(re.findall(r'(\w+)="', match[2] or ""))
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text())
    return found


def panels() -> Iterator[tuple[str, list[str]]]:
    """Title and expressions of each panel that has some."""
    for panel in dashboard()["panels"]:
        if targets := panel.get("targets"):
            yield panel["title"], [target["expr"] for target in targets]


def alerts(path: Path = CHART / "files" / "alerts.yaml") -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
