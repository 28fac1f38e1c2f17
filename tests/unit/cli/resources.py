"""Resources as the operator leaves them, for what is said about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdecode.api import SpecDecodeDeployment, timestamp
from tests.unit.api.rule_cases import changed

NOW: Final = 1_800_000_000.0


def at(seconds_ago: float) -> str:
    """A time before now, as status holds it."""
    return timestamp(NOW - seconds_ago)


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(60),
        "observedGeneration": 2,
    }


def arm(revision: int, prefill: int, decode: int, router: int, *, served: bool = False) -> dict[str, Any]:
    return {
        "revision": revision,
        "prefill": prefill,
        "decode": decode,
        "router": router,
        "depth": 3,
        "image": "vllm:0.33.0",
        "served": served,
    }


SERVING: Final[dict[str, Any]] = {
    "observedGeneration": 2,
    "currentRevision": 1,
    "stable": arm(1, 2, 4, 2, served=True),
    "conditions": [
        condition("Available", "True", "Serving", "Revision 1 serves"),
        condition("Ready", "True", "UpToDate", "Revision 1 is what the spec asks for, and all of it serves"),
        condition("Reconciling", "False", "UpToDate"),
        condition("Stalled", "False", "NothingInTheWay"),
    ],
}


def canary(phase: str, *, step: int = 1, asked: int = 10, reached: int = 10, **more: Any) -> dict[str, Any]:
    """Status in mid-canary: revision 2 on trial beside revision 1. ``more`` is laid over it, ``rollout`` merged."""
    rollout = {
        "phase": phase,
        "step": step,
        "steps": 3,
        "startedAt": at(600),
        "stepStartedAt": at(180) if phase in ("Analysing", "Promoting") else None,
        **more.pop("rollout", {}),
    }
    status = {
        "observedGeneration": 2,
        "currentRevision": 2,
        "stable": arm(1, 2, 4, 9, served=True),
        "canary": arm(2, 1, 1, 1),
        "rollout": rollout,
        "weight": {"asked": asked, "reached": reached},
        "split": "Connection",
        "conditions": conditions("Analysing", ""),
    }
    return status | more


def conditions(reason: str, message: str, *, stalled: tuple[str, str] | None = None) -> list[dict[str, Any]]:
    """Conditions while something goes on, or is in the way."""
    held = condition("Stalled", "True", *stalled) if stalled else condition("Stalled", "False", "NothingInTheWay")
    return [
        condition("Available", "True", "Serving", "Revision 1 serves"),
        condition("Ready", "False", stalled[0] if stalled else reason, stalled[1] if stalled else message),
        condition("Reconciling", "True", reason, message),
        held,
    ]


def stored(status: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A resource as the API server holds it."""
    metadata = {
        "name": "plain",
        "namespace": "models",
        "uid": "u-1",
        "generation": 2,
        "resourceVersion": "7",
        "creationTimestamp": at(7200),
    }
    return changed({"metadata": metadata, "status": dict(status), **changes})


def resource(status: Mapping[str, Any], **changes: Any) -> SpecDecodeDeployment:
    return SpecDecodeDeployment.parse(stored(status, **changes))
