"""What each vLLM version takes, and what a spec says of the version in its image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, Literal

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
    switches: frozenset[str]
    """Flags that are on as ``x`` and off as ``no-x``."""
    bare: frozenset[str]
    """Flags that are on as ``x`` and have no other form."""
    values: frozenset[str]
    """Flags that take a value."""
    inverses: bool
    """Whether a switch ``enable-x`` is also off as ``disable-x``, and ``disable-x`` as ``enable-x``."""
    connectors: Mapping[str, str]
    """vLLM's class by the name in ``topology.kvTransfer.connector``."""

    @property
    def name(self) -> str:
        """Such as ``0.33``."""
        return f"{self.series[0]}.{self.series[1]}"

    @property
    def flags(self) -> frozenset[str]:
        """Long names of all flags of ``vllm serve``, without dashes in front."""
        return self.switches | self.bare | self.values

    def arity(self, flag: str) -> Literal["none", "value"] | None:
        """Whether a flag, in any of its forms, stands alone or takes a value; None: there is no such flag."""
        if flag in self.values:
            return "value"
        positive = flag.removeprefix("no-")
        forms = {positive, other_form(positive)} if self.inverses else {positive}
        return "none" if flag in self.bare or forms & self.switches else None


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
    stored = yaml.safe_load(files("specdecode.engine").joinpath("flags.yaml").read_text(encoding="utf-8"))
    common = stored.pop("common")
    found = []
    for name, own in stored.items():
        major, minor = (int(part) for part in name.split("."))
        switches, bare, values = (
            frozenset(common[kind].split()) | frozenset(own.get(kind, "").split())
            for kind in ("switches", "bare", "values")
        )
        connectors = {"Nixl": "NixlConnector", "NixlPush": "NixlPushConnector"}
        found.append(VersionTable((major, minor), switches, bare, values, own["inverses"], connectors))
    return tuple(sorted(found, key=lambda table: table.series))


def other_form(flag: str) -> str:
    """``disable-x`` for ``enable-x`` and the other way round; another flag as it is."""
    return re.sub("^(enable|disable)-", lambda found: "disable-" if found[1] == "enable" else "enable-", flag)


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
