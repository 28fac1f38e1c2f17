"""Status: what is known about a deployment, rounded, and what a restarted operator goes on from.

Live numbers are metrics. Status is rewritten on a transition, or every few minutes at most.
Times are RFC 3339 in UTC, with seconds.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from .base import ApiModel, Timestamp, listed_by

LONGEST_MESSAGE: Final = 32768
"""Characters of a condition's message."""
MOST_REJECTED: Final = 100
LONGEST_REQUEST: Final = 64
"""Characters of an annotation with which a person asks for something."""


class Condition(ApiModel):
    """A condition, as in Kubernetes."""

    type: str = Field(max_length=316, description="Type of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(max_length=1024, description="Constant that says why, in CamelCase.")
    message: str = Field(default="", max_length=LONGEST_MESSAGE, description="One sentence for a person.")
    last_transition_time: Timestamp = Field(description="When status last changed.")
    observed_generation: int = Field(default=0, description="metadata.generation that this is about.")


class RevisionStatus(ApiModel):
    """A revision and its Pods."""

    revision: int = Field(description="Number of the revision.")
    prefill: int = Field(default=0, description="Ready prefill Pods.")
    decode: int = Field(default=0, description="Ready decode Pods.")
    router: int = Field(default=0, description="Ready router Pods.")
    depth: int = Field(default=0, description="Depth that it was born with.")
    image: str = Field(default="", description="Image that it was born with.")
    served: bool = Field(default=False, description="Whether it was ever ready to serve.")


class RejectedRevision(ApiModel):
    """A revision that was rolled back."""

    revision: int = Field(description="Number of the revision.")
    reason: str = Field(description="Constant that says why.")
    message: str = Field(default="", description="One sentence with the numbers.")
    at: Timestamp = Field(description="When it was rolled back.")
    attempts: int = Field(default=1, description="How often it was rejected.")


class FailureStatus(ApiModel):
    """Why the canary is being taken away."""

    reason: str = Field(description="Constant that says why.")
    message: str = Field(default="", description="One sentence with the numbers.")
    by_errors: bool = Field(default=False, description="Whether all its traffic is taken at once.")
    reject: bool = Field(default=True, description="Whether the revision is rejected for it.")
    at: Timestamp = Field(description="When it was decided.")


class RolloutStatus(ApiModel):
    """Where the rollout stands. It is the planner's whole memory."""

    phase: Literal["Idle", "ComingUp", "Moving", "Analysing", "Promoting", "RollingBack", "Dropping"] = Field(
        default="Idle", description="What the rollout is doing."
    )
    step: int = Field(default=0, description="Step, counted from 1; 0 outside a canary.")
    steps: int = Field(default=0, description="Number of steps.")
    started_at: Timestamp | None = Field(default=None, description="When the canary began.")
    step_started_at: Timestamp | None = Field(default=None, description="When this step's weight was reached.")
    step_passed_at: Timestamp | None = Field(default=None, description="When this step's analysis passed.")
    progress_at: Timestamp | None = Field(
        default=None, description="When a Pod last became ready, or the canary began."
    )
    best_ready: int = Field(default=0, description="Most ready Pods that the canary had since then.")
    passes: int = Field(default=0, description="Steps whose analysis passed on evidence.")
    failure: FailureStatus | None = Field(default=None, description="Set while the canary is being taken away.")
    held_until: Timestamp | None = Field(
        default=None, description="After a rollback that rejected nothing: not tried again before this time."
    )


class AnsweredRequests(ApiModel):
    """Annotations of a person that ask for nothing more as long as their values stay as they are."""

    retry: str = Field(default="", max_length=LONGEST_REQUEST, description="Value of the retry annotation.")
    promote: str = Field(default="", max_length=LONGEST_REQUEST, description="Value of the promote annotation.")
    abort: str = Field(default="", max_length=LONGEST_REQUEST, description="Value of the abort annotation.")


class WeightStatus(ApiModel):
    """The canary's share of the traffic, in percent."""

    asked: int = Field(default=0, description="Weight of the step.")
    reached: int = Field(default=0, description="Weight that its ready routers, or the HTTPRoute, give it.")


class ArmAcceptance(ApiModel):
    """Acceptance of one revision, rounded."""

    revision: int = Field(description="Number of the revision.")
    length: str = Field(default="", description="Mean acceptance length: tokens a step.")
    interval: list[str] = Field(default_factory=list, max_length=2, description="Its confidence interval.")
    positions: list[str] = Field(default_factory=list, max_length=16, description="Acceptance by position.")
    drafts: int = Field(default=0, description="Drafts counted.")
    requests: int = Field(default=0, description="Requests counted.")

    @property
    def readable(self) -> bool:
        """Whether its texts are numbers: a status may hold whatever somebody wrote into it."""
        try:
            numbers = [float(text) for text in (self.length or "0", *self.interval, *self.positions)]
        except ValueError:
            return False
        return all(map(math.isfinite, numbers)) and len(self.interval) in (0, 2)


def _readable(found: list[ArmAcceptance]) -> list[ArmAcceptance]:
    return [arm for arm in found if arm.readable]


def _readable_one(found: ArmAcceptance | None) -> ArmAcceptance | None:
    return found if found is not None and found.readable else None


class VerdictStatus(ApiModel):
    """The last verdict on the canary, or on the last one."""

    revision: int = Field(description="Revision that was judged.")
    verdict: Literal["Pass", "Fail", "Inconclusive", "NoData"] = Field(description="What the evidence says.")
    reason: str = Field(description="Constant that says why.")
    message: str = Field(default="", description="One sentence with the numbers.")
    at: Timestamp = Field(description="When it was reached.")


class TuningStatus(ApiModel):
    """What a role's Pods really run, by their own info metric."""

    role: Literal["prefill", "decode"] = Field(description="Role.")
    revision: int = Field(description="Revision.")
    depth: str = Field(default="Unknown", description="Depth in effect.")
    lookahead_backoff: str = Field(default="Unknown", description="Lookahead backoff in effect.")
    host_copy: str = Field(default="Unknown", description="Host-copy mode in effect.")
    top_k_sharing: str = Field(default="Unknown", description="Top-k sharing in effect.")


class SummaryStatus(ApiModel):
    """Short texts for `kubectl get`."""

    prefill: str = Field(default="", description="Ready and wanted prefill Pods.")
    decode: str = Field(default="", description="Ready and wanted decode Pods.")
    rollout: str = Field(default="", description="Such as `Canary 10% 1/3`.")
    acceptance: str = Field(default="", description="Acceptance length of the serving revision.")


class SpecDecodeDeploymentStatus(ApiModel):
    """Status of a SpecDecodeDeployment."""

    observed_generation: int = Field(default=0, description="metadata.generation that was last acted on.")
    conditions: list[Condition] = Field(
        default_factory=list, max_length=32, description="Conditions.", json_schema_extra=listed_by("type")
    )
    current_revision: int = Field(default=0, description="Revision of today's spec.")
    stable: RevisionStatus | None = Field(default=None, description="The revision that serves.")
    canary: RevisionStatus | None = Field(default=None, description="The revision on trial.")
    rejected: list[RejectedRevision] = Field(default_factory=list, max_length=MOST_REJECTED, description="Rolled back.")
    rollout: RolloutStatus = Field(default_factory=RolloutStatus, description="Where the rollout stands.")
    answered: AnsweredRequests = Field(
        default_factory=AnsweredRequests,
        description="Requests by annotation whose step or try is over: each asks for nothing more until its value "
        "changes.",
    )
    weight: WeightStatus = Field(default_factory=WeightStatus, description="The canary's weight.")
    split: str = Field(default="", description="Whether traffic is split by request or by connection.")
    acceptance: Annotated[list[ArmAcceptance], AfterValidator(_readable)] = Field(
        default_factory=list, max_length=4, description="Acceptance by revision."
    )
    verdict: VerdictStatus | None = Field(default=None, description="The last verdict.")
    tunings: list[TuningStatus] = Field(default_factory=list, max_length=4, description="Tunings in effect.")
    baseline: Annotated[ArmAcceptance | None, AfterValidator(_readable_one)] = Field(
        default=None, description="Acceptance recorded at promotion."
    )
    decode_replicas: int = Field(default=0, description="Decode replicas, for the scale subresource.")
    selector: str = Field(default="", description="Label selector of the decode Pods, for the scale subresource.")
    summary: SummaryStatus = Field(default_factory=SummaryStatus, description="For `kubectl get`.")
    evidence: dict[str, Any] = Field(
        default_factory=dict,
        description="Sufficient statistics of the running analysis, for a restarted operator.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
