"""Rollout policy: steps, capacity, analysis, and the guard after promotion."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from . import checks
from .base import ApiModel, CountOrPercent, Duration, Percent, rules, validations

Answer = Literal["Hold", "Rollback", "Promote"]


class RoleCapacity(ApiModel):
    """How far a role may leave its number of replicas during a rollout, both revisions counted."""

    model_config = rules(checks.CAPACITY)

    max_surge: CountOrPercent = Field(
        default="25%",
        description="Pods above replicas, a count or a percentage rounded up. 100%: stable stays whole to the end, "
        "and going back is instant at every step.",
    )
    max_unavailable: CountOrPercent = Field(
        default=0, description="Ready Pods below replicas, a count or a percentage rounded down."
    )


class CapacitySpec(ApiModel):
    """Capacity of each role during a rollout."""

    prefill: RoleCapacity = Field(default_factory=RoleCapacity, description="Prefill Pods.")
    decode: RoleCapacity = Field(default_factory=RoleCapacity, description="Decode Pods.")


class PauseSpec(ApiModel):
    """A wait after a step's Pass."""

    duration: Duration | None = Field(
        default=None, description="Least time at this step; absent: until promoted by hand."
    )


class StepSpec(ApiModel):
    """One step of a canary."""

    weight: int = Field(ge=1, le=100, description="Percent of the traffic that the canary gets.")
    pause: PauseSpec | None = Field(default=None, description="Least time at this step; {}: until promoted by hand.")


class ErrorsPolicy(ApiModel):
    """Failing requests."""

    margin: Percent = Field(
        default="2%",
        description="A canary fails whose share of failed requests is above twice stable's and this.",
        json_schema_extra=validations(checks.TOLERANCE),
    )


class LatencyPolicy(ApiModel):
    """Time per output token."""

    mode: Literal["Enforce", "Report"] = Field(
        default="Enforce", description="Report shows the measure and lets it decide nothing."
    )
    margin: Percent = Field(
        default="15%",
        description="How much longer the canary's time per output token may be than stable's at like load.",
        json_schema_extra=validations(checks.TOLERANCE),
    )


class FloorPolicy(ApiModel):
    """An absolute bound."""

    acceptance: Percent = Field(
        default="10%",
        description="Least acceptance at position 1; 0% for none. It fails a canary only while stable is above it.",
        json_schema_extra=validations(checks.FLOOR),
    )


class AnalysisSpec(ApiModel):
    """What decides a step."""

    margin: Percent = Field(
        default="5%",
        description="Relative fall of acceptance length that is still harmless.",
        json_schema_extra=validations(checks.MARGIN),
    )
    confidence: Percent = Field(
        default="99%",
        description="1 - the chance that a harmless revision is ever rolled back, over the whole canary and all "
        "measures.",
        json_schema_extra=validations(checks.CONFIDENCE),
    )
    interval: Duration = Field(
        default="5s",
        description="Time between two scrapes, each followed by a look; 1s to 1h.",
        json_schema_extra=validations(checks.INTERVAL),
    )
    min_requests: int = Field(
        default=20,
        ge=1,
        le=100000,
        description="Distinct requests on the canary before anything is said of it.",
    )
    errors: ErrorsPolicy = Field(default_factory=ErrorsPolicy, description="Failing requests.")
    latency: LatencyPolicy = Field(default_factory=LatencyPolicy, description="Time per output token.")
    floor: FloorPolicy = Field(default_factory=FloorPolicy, description="Absolute bound of acceptance.")
    deadline: Duration = Field(
        default="2h", description="Longest time of one step; then onDeadline or onNoData answers."
    )
    on_deadline: Answer = Field(
        default="Hold", description="Answer to a step that is still inconclusive at its deadline."
    )
    on_no_data: Answer = Field(
        default="Hold", description="Answer to a step without data at its deadline. Rollback rejects nothing here."
    )
    connection_split: Literal["Hold", "Trust"] = Field(
        default="Hold",
        description="What a fall of acceptance length does when traffic is split by connection (no gateway), where "
        "few clients can put unlike traffic on the two revisions: Hold keeps the canary at its weight and says so, "
        "Trust rolls back. The same holds for latency. Errors, collapse and floor roll back either way.",
    )


class RolloutSpec(ApiModel):
    """How a change is rolled out."""

    model_config = rules(checks.STEPS_RISE, checks.STEPS_END)

    strategy: Literal["Canary", "Immediate"] = Field(
        default="Canary", description="Immediate replaces Pods within the capacity and judges nothing."
    )
    capacity: CapacitySpec = Field(default_factory=CapacitySpec, description="Pods above and below replicas.")
    steps: list[StepSpec] = Field(
        default_factory=lambda: [
            StepSpec(weight=10),
            StepSpec(weight=50, pause=PauseSpec(duration="5m")),
            StepSpec(weight=100),
        ],
        min_length=1,
        max_length=20,
        description="Weights of the canary, rising to 100. A step ends on Pass and after its pause.",
    )
    promotion_delay: Duration = Field(
        default="5m", description="Time at weight 100 with stable's Pods still there, before the canary becomes stable."
    )
    analysis: AnalysisSpec = Field(default_factory=AnalysisSpec, description="What decides a step.")
    progress_deadline: Duration = Field(
        default="60m",
        description="Time to wait for Pods since one last became ready. Then the rollout is Stalled: a crash-looping "
        "or unpullable canary is taken away and rejected, an unschedulable one is held.",
    )
    paused: bool = Field(default=False, description="Stops steps and promotion, never a rollback.")
    revision_history_limit: int = Field(default=10, ge=0, le=100, description="Old revisions kept for going back.")


class GuardSpec(ApiModel):
    """What watches the serving revision after promotion."""

    enabled: bool = Field(default=True, description="Whether the serving revision is watched.")
    interval: Duration = Field(
        default="30s",
        description="Time between two scrapes outside a rollout, once the noise of acceptance is known; 1s to 1h.",
        json_schema_extra=validations(checks.INTERVAL),
    )
    fall: Percent = Field(
        default="20%", description="Relative fall of acceptance length against the baseline that is reported."
    )
    on_fall: list[Literal["Alert", "ReduceDepth", "Rollback"]] = Field(
        default=["Alert"],
        max_length=3,
        json_schema_extra={"x-kubernetes-list-type": "set"},
        description="What a fall does. Only Alert acts in this version; the others are accepted and named in the "
        "condition GuardLimited.",
    )
