"""``render``: all objects of a revision, as the operator would apply them."""

from __future__ import annotations

import json
import sys

import yaml

from . import files
from .validate import every_fault


def run(path: str, namespace: str | None, router_image: str) -> int:
    """Print the objects of each resource's first revision at its full size as YAML documents; 1 if one has a fault."""
    from specdecode.workload import preview

    documents = []
    failed = False
    for authored in files.read(path).resources:
        for fault in every_fault(authored):
            failed = failed or fault.severity == "error"
            print(f"{fault.severity}: {authored.name}/{fault}", file=sys.stderr)
        if failed:
            continue
        resource = authored.parse()
        if namespace is not None:
            metadata = resource.metadata.model_copy(update={"namespace": namespace})
            resource = resource.model_copy(update={"metadata": metadata})
        documents += preview(resource, router_image=router_image)
    if failed:
        return 1
    # Through JSON, so that equal parts are equal, not one: YAML would write them as anchors and aliases.
    yaml.dump_all(
        json.loads(json.dumps(documents)), sys.stdout, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=True
    )
    return 0


class _Dumper(yaml.SafeDumper):
    """Texts of several lines, such as a proxy's configuration, as they are."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
