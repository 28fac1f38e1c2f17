"""The CustomResourceDefinition, made from the models.

``python -m specdecode.api.crd`` prints it; ``--write`` renews the file in ``crds/``.

What pydantic emits is JSON Schema; what the API server takes is a *structural schema*: no references, no nulls, no
closed objects, unions only as int-or-string. `build` makes one from the other, and refuses what it can't translate.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, NoDefault
from pydantic_core import core_schema

from .names import CRD_NAME, GROUP, KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION
from .resource import SpecDecodeDeployment

SCHEMA_HASH: Final = f"{GROUP}/schema-hash"

_DROPPED: Final = ("title", "examples", "discriminator", "propertyNames", "additionalProperties")
# What a structural schema may hold here, in the order in which it is written.
_KEPT: Final = (
    "description",
    "type",
    "format",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "enum",
    "default",
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "maxProperties",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
    "required",
    "properties",
    "items",
    "additionalProperties",
)
_BOUNDS: Final = ("minimum", "maximum", "minLength", "maxLength", "pattern")

COLUMNS: Final = (
    ("Model", "string", ".spec.model.name", "Model that is served."),
    ("Depth", "integer", ".spec.speculation.depth", "Draft tokens a step."),
    ("Prefill", "string", ".status.summary.prefill", "Ready and wanted prefill Pods."),
    ("Decode", "string", ".status.summary.decode", "Ready and wanted decode Pods."),
    ("Rollout", "string", ".status.summary.rollout", "Where the rollout stands."),
    ("Acceptance", "string", ".status.summary.acceptance", "Acceptance length of the serving revision."),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the resource was made."),
)


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, less nulls and with the defaults that come from factories."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        factory: Any = schema.get("default_factory")
        return factory() if factory is not None else schema.get("default", NoDefault)

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, BaseModel):
            return dft.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        if isinstance(dft, list):
            return [self.encode_default(item) for item in dft]
        return super().encode_default(dft)


def _structural(node: dict[str, Any], defs: dict[str, Any], path: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """The structural schema of a JSON Schema node.

    Raises:
        ValueError: the node has no structural counterpart; ``path`` in the message says where.
    """
    if "$ref" in node:
        name = node["$ref"].removeprefix("#/$defs/")
        if name in seen:
            raise ValueError(f"{path}: the model {name} contains itself; a structural schema can't recurse")
        siblings = {k: v for k, v in node.items() if k != "$ref"}
        return _structural(defs[name] | siblings, defs, path, (*seen, name))

    out = {k: v for k, v in node.items() if k not in _DROPPED}
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    if "x-kubernetes-validations" in out:
        # A rule of the field's own names the remedy; a bound beside it would only say the same again, or hide it.
        out = {k: v for k, v in out.items() if k not in ("const", "minimum", "maximum")}
    if "const" in out:
        out["enum"] = [out.pop("const")]
    if "anyOf" in out:
        arms = out.pop("anyOf")
        if [arm.get("type") for arm in arms] != ["integer", "string"]:
            raise ValueError(f"{path}: a union must be of int and str in this order; the API server takes no other")
        out["x-kubernetes-int-or-string"] = True
        for arm in arms:
            out |= {k: arm[k] for k in _BOUNDS if k in arm}
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in out:
            out[bound] = out[exclusive]
            out[exclusive] = True
    if "properties" in out:
        out["properties"] = {k: _structural(v, defs, f"{path}.{k}", seen) for k, v in out["properties"].items()}
    if "items" in out:
        out["items"] = _structural(out["items"], defs, f"{path}[]", seen)
    values = node.get("additionalProperties")
    if isinstance(values, dict):
        out["additionalProperties"] = _structural(values, defs, f"{path}.*", seen)
    elif out.get("type") == "object" and "properties" not in out:
        out["x-kubernetes-preserve-unknown-fields"] = True
    if unknown := set(out) - set(_KEPT):
        raise ValueError(f"{path}: no structural schema for {', '.join(sorted(unknown))}")
    if "type" not in out and "x-kubernetes-int-or-string" not in out:
        raise ValueError(f"{path}: a field of any type has no structural schema; give it a type")
    if "default" in out and _says_nothing(out):
        del out["default"]
    elif out.get("default") == {} and "x-kubernetes-validations" in out:
        # The API server puts a default to the rules beside it as it stands, before defaults further down fill it.
        below = {k: field["default"] for k, field in out["properties"].items() if "default" in field}
        out["default"] = {k: default for k, default in below.items() if default != {}}
    return {k: out[k] for k in _KEPT if k in out}


def _says_nothing(schema: dict[str, Any]) -> bool:
    """Whether a default would only fill stored objects with emptiness."""
    default = schema["default"]
    below = schema.get("properties", {}).values()
    return default in (None, "", []) or (default == {} and not any("default" in field for field in below))


def _without_defaults(node: dict[str, Any]) -> dict[str, Any]:
    """A schema under which the API server adds nothing, for status: what stands there the operator wrote."""
    out = {k: v for k, v in node.items() if k != "default"}
    if "properties" in out:
        out["properties"] = {k: _without_defaults(v) for k, v in out["properties"].items()}
    if "items" in out:
        out["items"] = _without_defaults(out["items"])
    return out


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """The structural schema of a model.

    Raises:
        ValueError: a field has no structural counterpart; the message names it.
    """
    raw = model.model_json_schema(by_alias=True, schema_generator=_Generator)
    return _structural({k: v for k, v in raw.items() if k != "$defs"}, raw.get("$defs", {}), "")


@cache
def schema() -> dict[str, Any]:
    """The structural schema of the resource. It is built once: don't change it."""
    root = structural(SpecDecodeDeployment)
    # The API server knows metadata itself and takes no schema of it but this.
    root["properties"]["metadata"] = {"type": "object"}
    root["properties"]["status"] = _without_defaults(root["properties"]["status"])
    for field, description in (("apiVersion", "Version of this representation."), ("kind", "Kind of this resource.")):
        root["properties"][field] = {"description": description, "type": "string"}
    root["required"] = ["spec"]
    return root


def _spec() -> dict[str, Any]:
    return {
        "group": GROUP,
        "names": {
            "kind": KIND,
            "listKind": f"{KIND}List",
            "plural": PLURAL,
            "singular": SINGULAR,
            "shortNames": [SHORT_NAME],
            "categories": ["all", "specdecode"],
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.topology.decode.replicas",
                        "statusReplicasPath": ".status.decodeReplicas",
                        "labelSelectorPath": ".status.selector",
                    },
                },
                "additionalPrinterColumns": [
                    {"name": name, "type": kind, "jsonPath": path, "description": description}
                    for name, kind, path, description in COLUMNS
                ],
                "schema": {"openAPIV3Schema": schema()},
            }
        ],
    }


def _hash(spec: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def schema_hash() -> str:
    """16 hex digits that change whenever anything of the CRD's spec does."""
    return _hash(_spec())


def build() -> dict[str, Any]:
    """The CustomResourceDefinition that this version of the operator needs.

    Its annotation ``specdecode.dev/schema-hash`` holds `schema_hash`, by which a starting operator sees whether the
    installed one is the same.
    """
    spec = _spec()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME, "annotations": {SCHEMA_HASH: _hash(spec)}},
        "spec": spec,
    }


def text() -> str:
    """The file in ``crds/``."""
    head = "# Made by `python -m specdecode.api.crd --write` from the models in operator/specdecode/api.\n"
    # Through JSON, so that equal parts are equal, not one: YAML would write them as anchors and aliases.
    return head + yaml.safe_dump(json.loads(json.dumps(build())), sort_keys=False, width=120, allow_unicode=True)


_ROOT: Final = Path(__file__).parents[3]
FILE: Final = _ROOT / "crds" / f"{GROUP}_{PLURAL}.yaml"
"""The committed file, in a checkout of the project."""
CHART_FILE: Final = _ROOT / "charts" / "specdecode-operator" / "files" / "crd.yaml"
"""The chart's copy: a chart can't hold a file from outside its folder."""


def main() -> int:
    """Print the CRD, or renew the committed files."""
    parser = argparse.ArgumentParser(prog="python -m specdecode.api.crd", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the files in crds/ and charts/ instead")
    if not parser.parse_args().write:
        print(text(), end="")
        return 0
    if not FILE.parent.is_dir():
        parser.error(f"there is no folder {FILE.parent}; run this from a checkout, or print to a file of your choice")
    for file in (FILE, CHART_FILE):
        file.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
