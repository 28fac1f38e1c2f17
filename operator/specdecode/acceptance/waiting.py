"""What keeps an analysis from speaking: no data, Pods that drafted nothing yet, evidence still to come."""

from __future__ import annotations

import math
from collections.abc import Iterable

from specdecode.acceptance import explain
from specdecode.acceptance.arm import ArmWindow
from specdecode.acceptance.length import awaited_information
from specdecode.acceptance.types import Policy, Reason


def no_data(arms: Iterable[ArmWindow], now: float, stale: float) -> tuple[Reason, str] | None:
    """Why nothing can be said at ``now``, if so: an arm can't be scraped, or drafts nothing, for ``stale`` seconds."""
    arms = list(arms)
    for arm in arms:
        if arm.last_sample is None or now - arm.last_sample > stale:
            what = f": {arm.last_error[1]}" if arm.last_error is not None else ""
            since = "yet" if arm.last_sample is None else f"for {explain.duration(now - arm.last_sample)}"
            return Reason.SCRAPES_FAILING, f"No metrics of the {arm.arm}'s decode Pods {since}{what}."
    for arm in arms:
        if arm.last_drafts is None or now - arm.last_drafts > stale:
            since = "yet" if arm.last_drafts is None else f"for {explain.duration(now - arm.last_drafts)}"
            return Reason.NO_TRAFFIC, f"The {arm.arm} has drafted nothing {since}, so there is nothing to compare."
    return None


def unseen(arm: ArmWindow, now: float, stale: float) -> list[str]:
    """Pods of the arm that are scraped and have drafted nothing since the step began."""
    recent = (pod for pod, t in arm.known_pods.items() if now - t <= stale)
    return sorted(pod for pod in recent if pod not in arm.pods)


def more_seconds(
    policy: Policy,
    pass_error: float,
    estimate: float,
    information: float,
    seconds: float,
    requests: float | None,
    noise: float,
) -> float | None:
    """Time until the canary would pass as it shows itself, with evidence coming as so far; infinite if never.

    Args:
        policy: of the analysis.
        pass_error: of the step.
        estimate: relative change of length.
        information: one over its variance; 0 while unknown.
        seconds: for which the step has lasted.
        requests: of the canary since then; None where they aren't counted.
        noise: seconds until it is known.
    """
    if seconds <= 0.0 or noise == math.inf:
        return None
    waits = [noise] if noise > 0.0 else []
    if requests is not None:
        if requests <= 0.0:
            return None
        waits.append(seconds * (policy.min_requests / requests - 1.0))
    if information > 0.0:
        needed = awaited_information(policy.margin, pass_error, estimate, information)
        waits.append(seconds * (needed / information - 1.0))
    elif max(waits, default=0.0) <= 0.0:
        return None
    return max(policy.interval, *waits)
