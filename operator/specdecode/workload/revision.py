"""ControllerRevisions: the record of each revision, its spec and its rendering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from specdecode.api import SpecDecodeDeployment, SpecDecodeDeploymentSpec
from specdecode.api.names import revision_name
from specdecode.rollout.types import RevisionRecord

from .meta import manifest
from .render import FORMAT


def controller_revision(resource: SpecDecodeDeployment, record: RevisionRecord) -> dict[str, Any]:
    """The object that keeps a record. Its data never changes: it is created, not applied."""
    name = revision_name(resource.metadata.name, record.number)
    body = manifest(resource, "apps/v1", "ControllerRevision", name, revision=record.number)
    spec = dict(record.spec_raw) or record.spec.model_dump(by_alias=True, exclude_none=True, mode="json")
    body["revision"] = record.number
    body["data"] = {"spec": spec, "rendering": dict(record.rendering)}
    return body


def record(stored: Mapping[str, Any]) -> RevisionRecord:
    """The record that a ControllerRevision keeps, its spec read by today's model.

    Raises:
        ValueError: the object holds no record, a later operator wrote it in another format, or today's model can't
            read its spec.
    """
    data = stored.get("data") or {}
    name = stored["metadata"]["name"]
    if not isinstance(data.get("spec"), dict) or not isinstance(data.get("rendering"), dict):
        raise ValueError(f"ControllerRevision {name} holds no spec and rendering")
    if (wrote := data["rendering"].get("format", FORMAT)) != FORMAT:
        raise ValueError(f"ControllerRevision {name} has format {wrote}, written by a later operator: upgrade this one")
    try:
        spec = SpecDecodeDeploymentSpec.model_validate(data["spec"])
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"ControllerRevision {name}: spec.{where}: {first['msg']}") from error
    return RevisionRecord(int(stored["revision"]), spec, data["rendering"], data["spec"])
