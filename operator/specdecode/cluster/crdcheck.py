"""Whether the CRD in the cluster knows every field that this operator knows.

An older CRD would have the API server drop new fields in silence: a rollout policy or a status that is half there.
A newer one is fine, for resources are read leniently.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from specdecode.api import crd
from specdecode.api.names import CRD_NAME, VERSION

from .client import ApiError, Client
from .kinds import CRD, SDD, Object

log: Final = logging.getLogger(__name__)

_REMEDY: Final = "apply the CRD of this operator's version: kubectl apply --server-side -f crds/"


async def check(client: Client) -> None:
    """Return if the installed CRD will do.

    Raises:
        ValueError: it is missing or older; says what to do.
        ApiError: the API server can't be asked.
    """
    try:
        installed = await client.get(CRD, None, CRD_NAME)
    except ApiError as error:
        if error.status == 404:
            raise ValueError(f"the cluster has no CRD {CRD_NAME}: {_REMEDY}") from None
        if error.status != 403:
            raise
        await _check_served(client)
        log.warning("the CRD's schema couldn't be compared (no permission to get it): %s", error.message)
        return
    if faults := shortcomings(installed, crd.build()):
        shown = ", ".join(faults[:5]) + (f" and {len(faults) - 5} more" if len(faults) > 5 else "")
        raise ValueError(f"the cluster's CRD {CRD_NAME} is older than this operator ({shown}): {_REMEDY}")


async def _check_served(client: Client) -> None:
    try:
        found = await client.read(SDD.root)
    except ApiError as error:
        if error.status != 404:
            raise
        found = {}
    names = {item.get("name") for item in found.get("resources") or []}
    for name in (SDD.plural, f"{SDD.plural}/status"):
        if name not in names:
            raise ValueError(f"the cluster doesn't serve {name} in {SDD.api_version}: {_REMEDY}")


def shortcomings(installed: Object, wanted: Object) -> list[str]:
    """What the installed CRD lacks of the wanted one, each a few words; empty if it will do."""
    ours = _version(wanted)
    theirs = _version(installed)
    if theirs is None or not theirs.get("served"):
        return [f"{VERSION} isn't served"]
    assert ours is not None
    faults = [] if "status" in (theirs.get("subresources") or {}) else ["no status subresource"]
    lacking = _lacking(_schema(ours), _schema(theirs), "")
    return faults + [f"no field {path}" for path in lacking]


def _version(definition: Object) -> Object | None:
    versions: list[Object] = definition.get("spec", {}).get("versions") or []
    return next((version for version in versions if version.get("name") == VERSION), None)


def _schema(version: Object) -> dict[str, Any]:
    schema: dict[str, Any] = version.get("schema", {}).get("openAPIV3Schema", {})
    return schema


def _lacking(ours: dict[str, Any], theirs: dict[str, Any], path: str) -> list[str]:
    """Paths of properties that our schema has and theirs lacks."""
    found = []
    for name, schema in (ours.get("properties") or {}).items():
        below = f"{path}.{name}" if path else name
        other = (theirs.get("properties") or {}).get(name)
        if other is not None:
            found += _lacking(schema, other, below)
        elif not theirs.get("x-kubernetes-preserve-unknown-fields"):
            found.append(below)
    for nested in ("items", "additionalProperties"):
        if isinstance(ours.get(nested), dict) and isinstance(theirs.get(nested), dict):
            found += _lacking(ours[nested], theirs[nested], f"{path}[]")
    return found
