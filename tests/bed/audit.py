"""Reads the API server's audit log: who wrote what, and when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from tests.bed.api import Json

WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class Request:
    """One request that the API server has answered.

    Attributes:
        at: Unix seconds when it was received.
        done: Unix seconds when it was answered.
        user: who asked.
        verb: create, update, patch, delete, get ...
        resource: plural name, such as "statefulsets".
        subresource: "status", "scale" ... or "".
        code: HTTP status of the answer.
        sent: body of the request, where the policy keeps it.
        answer: body of the answer, where the policy keeps it: after a write, the object as it then was.
        forbidden: its user lacks the permission; a 403 for another reason, such as a namespace that ends, isn't that.
    """

    at: float
    done: float
    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    sent: Json | None
    answer: Json | None
    forbidden: bool = False

    @property
    def is_write(self) -> bool:
        """Whether it changed something, or could have: a write that the server accepted, not a dry run."""
        return self.verb in WRITES and 200 <= self.code < 300


def parse(line: str) -> Request | None:
    """One line of the log; None for requests outside the resources (health, discovery)."""
    entry = json.loads(line)
    ref = entry.get("objectRef")
    if not ref or entry.get("stage") != "ResponseComplete" or "dryRun" in entry.get("requestURI", ""):
        return None
    return Request(
        at=_seconds(entry["requestReceivedTimestamp"]),
        done=_seconds(entry["stageTimestamp"]),
        user=entry["user"]["username"],
        verb=entry["verb"],
        resource=ref.get("resource", ""),
        subresource=ref.get("subresource", ""),
        namespace=ref.get("namespace", ""),
        name=ref.get("name", ""),
        code=entry.get("responseStatus", {}).get("code", 0),
        sent=entry.get("requestObject"),
        answer=entry.get("responseObject"),
        forbidden=entry.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid",
    )


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def requests(log: Path, *, user: str | None = None, since: float = 0.0) -> Iterator[Request]:
    """Requests so far, in the order in which they were answered; those received at `since` (Unix seconds) or later."""
    with log.open() as lines:
        for line in lines:
            if not line.endswith("\n") or (user is not None and user not in line):
                continue
            found = parse(line)
            if found is not None and found.at >= since and user in (None, found.user):
                yield found


def count_writes(log: Path, *, user: str | None = None, since: float = 0.0) -> Counter[str]:
    """How many accepted writes there were, by user, verb and resource ("bed:fleet patch pods").

    A status write counts under "resource/status".
    """
    found: Counter[str] = Counter()
    for request in requests(log, user=user, since=since):
        if request.is_write:
            resource = "/".join(part for part in (request.resource, request.subresource) if part)
            found[f"{request.user} {request.verb} {resource}"] += 1
    return found
