"""Files made from the chart: `python -m tools.chart values` and `python -m tools.chart release --helm HELM`.

- docs/values.md, from the comments in values.yaml and the types in values.schema.json;
- deploy/specdecode-operator.yaml, the chart rendered for `kubectl apply` (needs helm).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "charts" / "specdecode-operator"
VALUES_PAGE: Final = ROOT / "docs" / "values.md"
RELEASE: Final = ROOT / "deploy" / "specdecode-operator.yaml"
NAMESPACE: Final = "specdecode-system"
NAME: Final = "specdecode-operator"

_HEAD: Final = """\
# Values of the chart

Made from `charts/specdecode-operator/values.yaml` by `make chart-files`. `values.schema.json` refuses what isn't
listed here, and values of another form.

| value | type | default | meaning |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Value:
    """One value: its path with dots, the comment over it, and what it is by default."""

    path: str
    comment: str
    default: Any


def values(text: str) -> Iterator[Value]:
    """The documented values of a values.yaml, in its order: leaves, and mappings whose own comment says what they are.

    Raises:
        ValueError: a leaf has no comment.
    """
    tree = yaml.safe_load(text)
    above: list[str] = []
    stack: list[tuple[int, str]] = []
    done: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            above = []
            continue
        if line.lstrip().startswith("#"):
            above.append(line.strip().lstrip("# "))
            continue
        found = re.match(r"( *)([A-Za-z_][\w-]*):", line)
        if found is None:
            continue
        indent = len(found[1])
        stack = [*(entry for entry in stack if entry[0] < indent), (indent, found[2])]
        path = ".".join(name for _, name in stack)
        if any(path.startswith(f"{whole}.") for whole in done):
            continue
        default = _at(tree, path)
        comment, above = " ".join(above), []
        if comment:
            done.append(path)
            yield Value(path, comment, default)
        elif not isinstance(default, dict) or not default:
            raise ValueError(f"values.yaml: {path} has no comment over it: say what it does")


def _at(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = tree[name]
    return tree


def schema_of(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """The part of a schema that stands for a value, references followed.

    Raises:
        KeyError: the schema has no such value.
    """
    found: dict[str, Any] = schema
    for name in path.split("."):
        found = _resolve(schema, found["properties"][name])
    return found


def _resolve(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in part:
        target: dict[str, Any] = schema["definitions"][part["$ref"].rsplit("/", 1)[1]]
        return target
    return part


def _type(schema: dict[str, Any], part: dict[str, Any]) -> str:
    part = _resolve(schema, part)
    if "enum" in part:
        return "one of " + ", ".join(f"`{value}`" if value else "empty" for value in part["enum"])
    if "anyOf" in part:
        return " or ".join(_type(schema, each) for each in part["anyOf"])
    kind = str(part["type"])
    if kind == "array":
        return f"list of {_type(schema, part['items'])}"
    bounds = [f"{word} {part[key]}" for key, word in (("minimum", "≥"), ("maximum", "≤")) if key in part]
    return " ".join([kind, *bounds])


def values_page() -> str:
    """docs/values.md."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    lines = []
    for value in values((CHART / "values.yaml").read_text()):
        default = json.dumps(value.default)
        kind = _type(schema, schema_of(schema, value.path))
        cells = [f"`{value.path}`", kind, f"`{default}`", value.comment]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return _HEAD + "".join(lines)


def release(helm: str) -> str:
    """The chart with its default values, for `kubectl apply -f crds/ -f ...`; without the CRD and Helm's test.

    Raises:
        subprocess.CalledProcessError: helm failed.
    """
    command = [
        helm,
        "template",
        NAME,
        str(CHART),
        "--namespace",
        NAMESPACE,
        "--set",
        "crds.enabled=false,dashboard.enabled=false",
    ]
    made = subprocess.run([*command, "--no-hooks"], check=True, capture_output=True, text=True).stdout
    objects = [obj for obj in yaml.safe_load_all(made) if obj]
    for obj in objects:
        for meta in (obj["metadata"], obj.get("spec", {}).get("template", {}).get("metadata", {})):
            labels = meta.get("labels", {})
            labels.pop("helm.sh/chart", None)
            if "app.kubernetes.io/managed-by" in labels:
                labels["app.kubernetes.io/managed-by"] = "kubectl"
    restricted = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": restricted}}
    head = "# Made from charts/specdecode-operator by `make release`: kubectl apply --server-side -f crds/ -f FILE\n"
    return head + yaml.dump_all([namespace, *objects], Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines, such as the dashboard, as they are."""

    def ignore_aliases(self, data: Any) -> bool:
        del data  # whatever it is
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def main() -> None:
    """Write one of the files."""
    parser = argparse.ArgumentParser(prog="python -m tools.chart", description=main.__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("values", help=f"write {VALUES_PAGE.relative_to(ROOT)}")
    rendered = verbs.add_parser("release", help=f"write {RELEASE.relative_to(ROOT)}")
    rendered.add_argument("--helm", default="helm", help="the helm to render with (default: the one on PATH)")
    asked = parser.parse_args()
    if asked.verb == "values":
        VALUES_PAGE.write_text(values_page(), encoding="utf-8")
    else:
        RELEASE.parent.mkdir(exist_ok=True)
        RELEASE.write_text(release(asked.helm), encoding="utf-8")


if __name__ == "__main__":
    main()
