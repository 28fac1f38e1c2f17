"""When a status is worth a write. Pure.

A transition is written at once. Numbers are for metrics: in status they may be some minutes old. The statistics from
which a restarted operator goes on cost a write an analysis interval while a canary is judged, and one every ten
minutes otherwise. An equal status is never written.
"""

from __future__ import annotations

from typing import Any, Final

NUMBERS: Final = 300.0
"""Seconds between two writes of numbers alone."""
GUARD_STATE: Final = 600.0
"""Seconds between two writes of the statistics outside a canary."""

# Fields that follow the traffic rather than the state of the rollout.
_NUMERIC: Final = ("acceptance", "baseline", "evidence")
_SENTENCES: Final = {"message", "at"}


def status_due(
    old: dict[str, Any], new: dict[str, Any], *, last_write: float, now: float, interval: float | None
) -> float | None:
    """Seconds until ``new`` should replace ``old``: 0 for now, None if there is nothing to write.

    Args:
        old: the status that is stored.
        new: the status that is wanted.
        last_write: when the last write was, on the clock of ``now``.
        now: seconds.
        interval: seconds between two looks at a running canary; None outside one.
    """
    if old == new:
        return None
    if essence(old) != essence(new):
        return 0.0
    if interval is not None and old.get("evidence") != new.get("evidence"):
        wait = interval
    elif _without_evidence(old) != _without_evidence(new):
        wait = NUMBERS
    else:
        wait = GUARD_STATE
    return max(0.0, last_write + wait - now)


def essence(status: dict[str, Any]) -> dict[str, Any]:
    """A status without what follows the traffic: numbers, and sentences that may hold some."""
    kept = {name: value for name, value in status.items() if name not in _NUMERIC}
    if "conditions" in kept:
        kept["conditions"] = [_without(condition, _SENTENCES) for condition in kept["conditions"] or []]
    if isinstance(kept.get("verdict"), dict):
        kept["verdict"] = _without(kept["verdict"], _SENTENCES)
    if isinstance(kept.get("summary"), dict):
        kept["summary"] = _without(kept["summary"], {"acceptance"})
    return kept


def _without_evidence(status: dict[str, Any]) -> dict[str, Any]:
    return _without(status, {"evidence"})


def _without(fields: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
