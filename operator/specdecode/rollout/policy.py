"""From the resource's analysis and guard to the plain numbers that the acceptance analysis obeys."""

from __future__ import annotations

from typing import Final

from specdecode.acceptance.types import Policy
from specdecode.api import SpecDecodeDeploymentSpec, fraction, seconds
from specdecode.api.faults import Fault

STALE_INTERVALS: Final = 6
"""Scrapes in a row without data from an arm after which the answer is NoData."""
LEAST_STALE: Final = 30.0
"""Seconds below which a silence is never called one: a restart of a Pod's server takes as long."""


def policy(spec: SpecDecodeDeploymentSpec) -> Policy:
    """The policy of ``spec.rollout.analysis`` and ``spec.guard``.

    ``latency.mode: Report`` becomes no latency margin: the measure is then told with every verdict and decides nothing.

    Raises:
        ValueError: a number that no analysis can work with, named with its remedy.
    """
    analysis = spec.rollout.analysis
    interval = seconds(analysis.interval)
    return Policy(
        margin=fraction(analysis.margin),
        confidence=fraction(analysis.confidence),
        interval=interval,
        min_requests=analysis.min_requests,
        errors_tolerance=fraction(analysis.errors.margin),
        latency_margin=fraction(analysis.latency.margin) if analysis.latency.mode == "Enforce" else None,
        floor=fraction(analysis.floor.acceptance),
        stale_after=max(LEAST_STALE, STALE_INTERVALS * interval),
        guard_interval=seconds(spec.guard.interval),
        guard_fall=fraction(spec.guard.fall),
    )


def policy_faults(spec: SpecDecodeDeploymentSpec) -> list[Fault]:
    """What makes the analysis of ``spec`` unusable; empty where `policy` works."""
    try:
        policy(spec)
    except ValueError as error:
        return [Fault("spec.rollout.analysis", "", str(error))]
    return []
