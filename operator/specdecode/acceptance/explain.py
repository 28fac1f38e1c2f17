"""Sentences: one plain one for each verdict, with the numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from specdecode.acceptance.kernel import Finding
from specdecode.acceptance.latency import Slowness
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


def more(policy: Policy, estimate: float | None, evidence: Evidence, seconds: float | None, noise: float = 0.0) -> str:
    """NotEnoughEvidence; ``seconds`` until it should tell, ``noise`` until the noise is known."""
    if noise > 0.0:
        wait = f", for about {duration(noise)} more" if math.isfinite(noise) else ""
        return (
            f"The canary's acceptance length can't be judged yet, after {seen(evidence.canary)}: how much it varies "
            f"by itself is still being measured{wait}."
        )
    if seconds is None:
        wait = "the traffic is still too thin to say how long it will take"
    elif math.isfinite(seconds):
        wait = f"about {duration(seconds)} more at the present traffic should tell"
    else:
        wait = "it is so near to the limit that no time can be told"
    return (
        f"The canary's {change(estimate)} after {seen(evidence.canary)}; "
        f"that isn't yet known to be within {percent(policy.margin)}, nor beyond it: {wait}."
    )


def failure(
    finding: Finding,
    policy: Policy,
    rates: Mapping[str, float],
    slowness: Slowness | None,
    estimate: float | None,
    interval: tuple[float, float] | None,
    evidence: Evidence,
    seconds: float,
) -> str:
    """Why a look fails; ``rates`` are ``Kernel.rates()``, ``seconds`` the length of the window that told."""
    if finding is Finding.ERRORS:
        return (
            f"{rates['canary_failed']:.0f} of {rates['canary_ended']:.0f} canary requests failed "
            f"({percent(rates['canary_failing'])}), against {percent(rates['stable_failing'])} of stable's."
        )
    if finding is Finding.COLLAPSE:
        return (
            f"The canary accepts {rates['canary_accepted']:.2f} tokens a draft where stable accepts "
            f"{rates['stable_accepted']:.2f}, after {seen(evidence.canary)}."
        )
    if finding is Finding.FLOOR:
        return (
            f"The canary accepts {percent(rates['canary_first'])} of the drafts at position 1, under the floor of "
            f"{percent(policy.floor)}, where stable accepts {percent(rates['stable_first'])}."
        )
    if finding is Finding.LATENCY:
        slower = 0.0 if slowness is None else math.expm1(slowness.change)
        return (
            f"The canary takes {percent(slower)} longer per output token than stable under the same load; "
            f"{percent(policy.latency_margin or 0.0)} is allowed."
        )
    return fell(policy, estimate, interval, seconds)


def pace(slowness: Slowness) -> str:
    """Time per output token where it is shown and decides nothing, with its standard error."""
    change = math.expm1(slowness.change)
    return (
        f"It takes {percent(abs(change))} {'longer' if change > 0.0 else 'less'} per output token than stable under "
        f"the same load (give or take {percent(slowness.error)}), which is only reported."
    )
