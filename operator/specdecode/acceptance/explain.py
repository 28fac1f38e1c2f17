"""Sentences: one plain one for each verdict, with the numbers."""

from __future__ import annotations

import math

from specdecode.acceptance.types import ArmEvidence, Evidence, Policy


def percent(part: float) -> str:
    """0.0512 as '5.1 %'."""
    return f"{100.0 * part:.1f} %"


def duration(seconds: float) -> str:
    """Seconds as '40 s', '12 min' or '2.5 h'."""
    if seconds < 100.0:
        return f"{seconds:.0f} s"
    if seconds < 5400.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"


def change(estimate: float | None) -> str:
    """The change of acceptance length in words."""
    if estimate is None:
        return "acceptance length isn't known yet"
    if estimate < 0.0:
        return f"acceptance length is {percent(-estimate)} lower than stable's"
    return f"acceptance length is {percent(estimate)} higher than stable's"


def between(interval: tuple[float, float] | None) -> str:
    """The interval in words, in parentheses with a space before; empty if unknown."""
    if interval is None:
        return ""
    low, high = interval
    return f" (between {100.0 * low:+.1f} % and {100.0 * high:+.1f} %)"


def seen(evidence: ArmEvidence) -> str:
    """How much an arm's evidence is."""
    pods = "1 Pod" if evidence.pods == 1 else f"{evidence.pods} Pods"
    return f"{evidence.drafts:.0f} drafts of {evidence.requests:.0f} requests on {pods}"


def fell(policy: Policy, estimate: float | None, interval: tuple[float, float] | None, seconds: float) -> str:
    """AcceptanceFell."""
    return (
        f"The canary's {change(estimate)}{between(interval)} over the last {duration(seconds)}; "
        f"{percent(policy.margin)} is allowed."
    )


def held(policy: Policy, estimate: float | None, interval: tuple[float, float] | None, evidence: Evidence) -> str:
    """AcceptanceHeld."""
    return (
        f"The canary's {change(estimate)}{between(interval)}, within the allowed {percent(policy.margin)}, "
        f"after {seen(evidence.canary)}."
    )


def more(policy: Policy, estimate: float | None, evidence: Evidence, seconds: float | None) -> str:
    """NotEnoughEvidence."""
    wait = (
        f"about {duration(seconds)} more at the present traffic should tell"
        if seconds is not None and math.isfinite(seconds)
        else "the traffic is still too thin to say how long it will take"
    )
    return (
        f"The canary's {change(estimate)} after {seen(evidence.canary)}; "
        f"that isn't yet known to be within {percent(policy.margin)}, nor beyond it: {wait}."
    )
