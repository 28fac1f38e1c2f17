"""Which recorded revision a spec is.

A spec is a new revision when it differs from the recorded one, both defaulted by today's models, in a field that
reaches a Pod template or a configuration. Fields that act live (`api.liveness`) don't count, and neither
does anything that the operator renders: so an upgrade of the operator, or of the CRD's defaults, rolls nobody's Pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specdecode.api import SpecDecodeDeploymentSpec
from specdecode.api.liveness import frozen

from .types import RevisionRecord


def identity(spec: SpecDecodeDeploymentSpec) -> dict[str, Any]:
    """The part of a spec that makes it the revision that it is."""
    return frozen(spec.model_dump(by_alias=True, exclude_none=True, mode="json"))


def recognise(
    spec: SpecDecodeDeploymentSpec, records: Iterable[RevisionRecord], preferred: Iterable[int | None]
) -> RevisionRecord | None:
    """The record that a spec is, if it is one: of several equal ones a preferred, else the newest."""
    wanted = identity(spec)
    equal = {r.number: r for r in records if identity(r.spec) == wanted}
    for number in preferred:
        if number is not None and number in equal:
            return equal[number]
    return equal[max(equal)] if equal else None
