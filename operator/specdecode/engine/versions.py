"""What each vLLM version takes, and what a spec says of the version in its image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

import yaml

from specdecode.api import SpecDecodeDeploymentSpec

PATCHED_SUFFIX: Final = "-specdecode"
"""Ending of the tag of an image that carries the project's patches."""

BACKOFF_KEY: Final = "lookahead_backoff"
"""Key of ``kv_connector_extra_config`` that the patched NIXL connectors read."""

HOST_COPY_KEY: Final = "spec_decode_host_copy"
"""Key of ``additional_config`` that the patched engine reads."""

MULTI_MODULE_NAMES: Final = re.compile(r"step-?3[.p]?5|step-?5|inkling", re.IGNORECASE)
"""Names of model families whose drafter has one module a depth (vLLM's ``use_multi_module_mtp``). Any checkpoint
with ``num_nextn_predict_layers`` above 1 is one too, which a name doesn't tell."""


@dataclass(frozen=True, slots=True)
class VersionTable:
    """What one minor version of vLLM takes."""

    series: tuple[int, int]
    flags: frozenset[str]
    """Long names of the flags of ``vllm serve``, without dashes in front."""
    connectors: Mapping[str, str]
    """vLLM's class by the name in ``topology.kvTransfer.connector``."""

    @property
    def name(self) -> str:
        """Such as ``0.33``."""
        return f"{self.series[0]}.{self.series[1]}"

    def takes(self, flag: str) -> bool:
        """Whether ``vllm serve`` has the flag, or one that it negates (``no-x`` of x, ``disable-x`` of enable-x)."""
        bare = flag.removeprefix("no-")
        inverse = re.sub("^(enable|disable)-", lambda m: "disable-" if m[1] == "enable" else "enable-", bare)
        return bare in self.flags or inverse in self.flags


@dataclass(frozen=True, slots=True)
class EngineVersion:
    """The version of vLLM that a spec's image holds, as far as the spec says."""

    text: str
    """As it was found, such as ``0.33.0``; empty: nothing says it."""
    table: VersionTable
    known: bool
    """False: ``table`` is the newest one, for want of a better."""


@cache
def tables() -> tuple[VersionTable, ...]:
    """Every known version, the newest last."""
    flags = yaml.safe_load(files("specdecode.engine").joinpath("flags.yaml").read_text(encoding="utf-8"))
    common = frozenset(flags.pop("common").split())
    connectors = {"Nixl": "NixlConnector", "NixlPush": "NixlPushConnector"}
    found = []
    for name, more in flags.items():
        major, minor = (int(part) for part in name.split("."))
        found.append(VersionTable((major, minor), common | frozenset(more.split()), connectors))
    return tuple(sorted(found, key=lambda table: table.series))


def image_tag(image: str) -> str:
    """The tag of an image reference, empty where it has none."""
    name = image.partition("@")[0]
    return name.rpartition("/")[2].partition(":")[2]


def version_of(spec: SpecDecodeDeploymentSpec) -> EngineVersion:
    """The version from ``engine.version``, else from the image's tag (``v0.33.0-specdecode``, say)."""
    text = spec.engine.version
    if not text:
        found = re.match(r"v?(\d+\.\d+(?:\.\d+)?)(?![\d.])", image_tag(spec.engine.image))
        text = found[1] if found else ""
    if text:
        major, minor = (int(part) for part in text.split(".")[:2])
        for table in tables():
            if table.series == (major, minor):
                return EngineVersion(text, table, known=True)
    return EngineVersion(text, tables()[-1], known=False)


def patched(spec: SpecDecodeDeploymentSpec) -> bool:
    """Whether the image is taken to carry the project's patches. What its Pods say of themselves is checked apart."""
    if spec.engine.patched == "Auto":
        return image_tag(spec.engine.image).endswith(PATCHED_SUFFIX)
    return spec.engine.patched == "Patched"
