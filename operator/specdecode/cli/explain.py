"""What a resource's status means, in plain sentences. Pure: the time is an argument, in Unix seconds.

`why` answers from status alone, so that it still answers where the operator doesn't run, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from specdecode.acceptance import Reason
from specdecode.api import SpecDecodeDeployment, seconds, unix
from specdecode.api.names import ANNOTATION_PROMOTE, ANNOTATION_RETRY, LABEL_DEPLOYMENT, LABEL_REVISION
from specdecode.api.status import ArmAcceptance, Condition, RejectedRevision, RevisionStatus
from specdecode.rollout import reasons
from specdecode.rollout.requests import fresh

EVENTS_SHOWN: Final = 5

# What a person can do, by the reason that is given. Reasons that pass by themselves have none.
_ADVICE: Final[dict[str, str]] = {
    reasons.UNSCHEDULABLE: "Free or add what the scheduler lacks, or let rollout.capacity take fewer Pods at a time; "
    "the revision is held and never rejected for this.",
    reasons.CRASH_LOOPING: "Look at why it ends: kubectl logs --previous -n {namespace} -l {selector} -c vllm. "
    "Mend the spec, and a new revision takes its place.",
    reasons.IMAGE_PULL_FAILING: "Check engine.image, topology.router.image and engine.imagePullSecrets.",
    reasons.CONTAINER_CONFIG: "Make the Secret, ConfigMap or claim that the Pod refers to, or mend the reference.",
    reasons.TUNINGS_WRONG: "Use the project's image for this vLLM version, or set the tuning to Auto.",
    reasons.TUNINGS_UNSEEN: "If it lasts, check that the operator reaches port 8000 of the Pods.",
    reasons.IMAGES_DIFFER: "Name the image by digest, so that every Pod runs the same.",
    reasons.NAME_TAKEN: "Delete or rename the other object, or choose another name for this resource.",
    reasons.WRITE_REFUSED: "Give the operator's role the permission that is missing, or change what an admission "
    "policy refuses; it tries again by itself.",
    reasons.ROUTE_NOT_ACCEPTED: "Check traffic.gateway.parentRefs and what the Gateway's listeners allow.",
    reasons.SURGE_TOO_SMALL: "Set rollout.capacity to what is named, or choose other steps.",
    reasons.PAUSED: "Set rollout.paused to false to go on; a canary that fails is rolled back all the same.",
    reasons.NO_DATA_AT_DEADLINE: "Send traffic, or let it pass without evidence: kubectl annotate --overwrite sdd "
    "{name} -n {namespace} {promote}",
    reasons.INCONCLUSIVE_AT_DEADLINE: "Give it more traffic or a wider analysis.margin, or let it pass without: "
    "kubectl annotate --overwrite sdd {name} -n {namespace} {promote}",
    Reason.SPLIT_BY_CONNECTION: "Split by request with traffic.gateway; or, if many clients share the traffic evenly, "
    "set analysis.connectionSplit to Trust.",
    Reason.NO_TRAFFIC: "No request reaches the canary: send traffic to Service {name}. Without data it is held, "
    "neither promoted nor rolled back.",
    Reason.SCRAPES_FAILING: "Check that the operator reaches port 8000 of the decode Pods (a NetworkPolicy, say).",
    Reason.PODS_UNSEEN: "Not every canary decode Pod has drafted yet; it takes traffic on each.",
    Reason.NO_COMMON_POSITIONS: "The two depths have no position in common that both propose.",
}
_WORTH_SAYING: Final = (
    ("TuningsEffective", "False"),
    ("AcceptanceHealthy", "False"),
    ("InputsMutable", "True"),
    ("GuardLimited", "True"),
    ("Warnings", "True"),
)


@dataclass(frozen=True, slots=True)
class EventLine:
    """An Event about the resource."""

    at: float
    """When it was last seen, in Unix seconds."""
    type: str
    reason: str
    message: str


def why(resource: SpecDecodeDeployment, events: Sequence[EventLine], now: float) -> list[str]:
    """What the operator is doing or waits for and why: one sentence or more a line, the most telling first."""
    lines = list(_sentences(resource, now))
    recent = sorted(events, key=lambda event: event.at)[-EVENTS_SHOWN:]
    if recent:
        lines.append("Recent events:")
        lines += [f"  {ago(now - e.at)} ago  {e.type}  {e.reason}: {e.message}" for e in recent]
    return lines


def ago(span: float) -> str:
    """A span of seconds as kubectl writes an age: two units at most."""
    whole = max(int(span), 0)
    if whole < 120:
        return f"{whole}s"
    if whole < 600:
        return _two(whole, 60, "m", 1, "s")
    if whole < 3 * 3600:
        return f"{whole // 60}m"
    if whole < 8 * 3600:
        return _two(whole, 3600, "h", 60, "m")
    if whole < 48 * 3600:
        return f"{whole // 3600}h"
    return f"{whole // 86400}d"


def _two(whole: int, large: int, mark: str, small: int, rest: str) -> str:
    below = whole % large // small
    return f"{whole // large}{mark}{below}{rest}" if below else f"{whole // large}{mark}"


def _sentences(resource: SpecDecodeDeployment, now: float) -> Iterator[str]:
    status, meta = resource.status, resource.metadata
    if not status.conditions:
        yield (
            "The operator hasn't acted on this resource yet. Check that it runs, that it watches namespace "
            f"{meta.namespace}, and its log."
        )
        return
    if meta.deletion_timestamp:
        yield f"It has been on its way out for {ago(now - unix(meta.deletion_timestamp))}; its objects go with it."
    if status.observed_generation < meta.generation:
        yield (
            f"The spec changed (generation {meta.generation}), and the operator hasn't acted on that yet: what follows "
            f"is about generation {status.observed_generation}. If this lasts, check that the operator runs."
        )
    yield _headline(resource)
    yield from _waiting(resource)
    yield from _step(resource, now)
    if status.verdict is not None and status.canary is not None and status.verdict.revision == status.canary.revision:
        verdict = status.verdict
        yield (
            f"For {ago(now - unix(verdict.at))} the evidence has said {verdict.verdict} ({verdict.reason}). "
            f"{_sentence(verdict.message)}".rstrip()
        )
        if verdict.verdict in ("Inconclusive", "NoData"):
            yield from _advice(resource, verdict.reason)
    for arm in status.acceptance:
        if arm.length:
            yield acceptance(arm, _which(resource, arm.revision))
    yield from _rejections(resource, now)
    for kind, bad in _WORTH_SAYING:
        condition = _condition(resource, kind)
        if condition is not None and condition.status == bad:
            yield f"{kind} is {bad} ({condition.reason}): {_sentence(condition.message)}"


def _headline(resource: SpecDecodeDeployment) -> str:
    status = resource.status
    stable, canary, rollout = status.stable, status.canary, status.rollout
    serves = f"revision {stable.revision} serves" if stable is not None and stable.served else "nothing serves yet"
    if canary is None:
        ready = _condition(resource, "Ready")
        if stable is None:
            return "Nothing serves yet, and no revision has been made."
        if ready is not None and ready.status == "True":
            return f"Revision {stable.revision} serves and is what the spec asks for. Nothing is under way."
        if not stable.served:
            return f"Revision {stable.revision} is coming up; {serves}. {_pods(stable)}"
        return f"Revision {stable.revision} serves all the traffic. {_pods(stable)}"
    head = f"Revision {canary.revision}"
    step = f"step {rollout.step} of {rollout.steps}"
    reached, asked = status.weight.reached, status.weight.asked
    match rollout.phase:
        case "ComingUp":
            said = f"{head} is coming up as a canary and has no traffic yet; {serves}."
        case "Moving":
            said = (
                f"{head} is moving to {asked}% of the traffic ({step}) and carries {reached}% now; {serves} the rest."
            )
        case "Analysing":
            said = f"{head} is on trial at {step} with {reached}% of the traffic; {serves} the rest."
        case "Promoting":
            said = f"{head} carries {reached}% of the traffic and is about to take over ({step})."
        case "RollingBack":
            failure = rollout.failure
            reason = f" ({failure.reason})" if failure is not None else ""
            left = f"it still carries {reached}%" if reached else "it has no traffic any more"
            said = f"{head} is being rolled back{reason}; {left}, and {serves}."
            if failure is not None and failure.message:
                said += f" {_sentence(failure.message)}"
        case "Dropping":
            said = f"{head} is being taken away, because the spec has moved on; {serves}."
        case _:
            said = f"{head} is next; {serves}."
    pods = f"Revision {canary.revision}: {_pods(canary)}"
    return f"{said} {pods}" if stable is None else f"{said} {pods} Revision {stable.revision}: {_pods(stable)}"


def _waiting(resource: SpecDecodeDeployment) -> Iterator[str]:
    """What is in the way, or else what is waited for."""
    stalled, moving = _condition(resource, "Stalled"), _condition(resource, "Reconciling")
    if stalled is not None and stalled.status == "True":
        if stalled.reason != reasons.ROLLED_BACK:  # told with the rejected revision
            yield f"It is held up ({stalled.reason}): {_sentence(stalled.message)}"
            yield from _advice(resource, stalled.reason)
        return
    if moving is None or moving.status != "True" or moving.reason in (reasons.TAKING_AWAY, reasons.ANALYSING):
        return  # told by the headline and by the evidence
    if moving.message:
        yield f"It waits ({moving.reason}): {_sentence(moving.message)}"
    yield from _advice(resource, moving.reason)


def _step(resource: SpecDecodeDeployment, now: float) -> Iterator[str]:
    """What this step still needs."""
    rollout, policy = resource.status.rollout, resource.spec.rollout
    if rollout.phase != "Analysing" or not 1 <= rollout.step <= len(policy.steps) or rollout.step_started_at is None:
        return
    since = now - unix(rollout.step_started_at)
    pause = policy.steps[rollout.step - 1].pause
    if rollout.step_passed_at is None:
        left = seconds(policy.analysis.deadline) - since
        answers = f"onDeadline {policy.analysis.on_deadline}, onNoData {policy.analysis.on_no_data}"
        if left > 0:
            yield f"This step began {ago(since)} ago; without a Pass within {ago(left)} more, {answers} answers."
        else:
            yield f"This step began {ago(since)} ago and its deadline is over: {answers} has answered."
        return
    passed = f"This step passed {ago(now - unix(rollout.step_passed_at))} ago"
    if pause is None:
        yield f"{passed}."
    elif pause.duration is None:
        yield f"{passed} and waits for you: {_annotate(resource, _promote(resource))}"
    else:
        yield f"{passed}; its pause of {pause.duration} has {ago(seconds(pause.duration) - since)} left."


def _rejections(resource: SpecDecodeDeployment, now: float) -> Iterator[str]:
    status = resource.status
    for entry in reversed(status.rejected):
        when = f"{ago(now - unix(entry.at))} ago"
        if entry.revision == status.current_revision:
            because = _sentence(entry.message)
            yield f"Revision {entry.revision} was rolled back {when} ({entry.reason}). {because}".rstrip()
            yield (
                "It isn't tried again until the spec changes, or until you ask for it: "
                f"{_annotate(resource, _retry(resource, entry))}"
            )
        else:
            yield f"Before that, revision {entry.revision} was rolled back {when} ({entry.reason})."


def acceptance(arm: ArmAcceptance, called: str) -> str:
    """One revision's acceptance in a sentence."""
    bounds = f" ({arm.interval[0]} to {arm.interval[1]})" if len(arm.interval) == 2 else ""
    positions = f", by position {' '.join(arm.positions)}" if arm.positions else ""
    return (
        f"Acceptance length of revision {arm.revision}{called}: {arm.length}{bounds}{positions}, from {arm.drafts} "
        f"drafts of {arm.requests} requests."
    )


def _which(resource: SpecDecodeDeployment, revision: int) -> str:
    stable, canary = resource.status.stable, resource.status.canary
    if canary is None or stable is None:
        return ""
    return {stable.revision: " (stable)", canary.revision: " (canary)"}.get(revision, "")


def _advice(resource: SpecDecodeDeployment, reason: str) -> Iterator[str]:
    if reason in _ADVICE:
        meta, canary = resource.metadata, resource.status.canary
        revision = canary.revision if canary is not None else resource.status.current_revision
        yield _ADVICE[reason].format(
            name=meta.name,
            namespace=meta.namespace,
            selector=f"{LABEL_DEPLOYMENT}={meta.name},{LABEL_REVISION}={revision}",
            promote=_promote(resource),
        )


def _annotate(resource: SpecDecodeDeployment, annotation: str) -> str:
    meta = resource.metadata
    return f"kubectl annotate --overwrite sdd {meta.name} -n {meta.namespace} {annotation}"


def _promote(resource: SpecDecodeDeployment) -> str:
    canary = resource.status.canary
    value = f"{canary.revision if canary else 0}/{resource.status.rollout.step}"
    return f"{ANNOTATION_PROMOTE}={fresh(value, resource.status.answered.promote)}"


def _retry(resource: SpecDecodeDeployment, entry: RejectedRevision) -> str:
    return f"{ANNOTATION_RETRY}={fresh(f'{entry.revision}/{entry.attempts}', resource.status.answered.retry)}"


def _pods(arm: RevisionStatus) -> str:
    return f"{arm.prefill} prefill, {arm.decode} decode and {arm.router} router Pods are ready."


def _condition(resource: SpecDecodeDeployment, kind: str) -> Condition | None:
    return next((c for c in resource.status.conditions if c.type == kind), None)


def _sentence(message: str) -> str:
    message = message.strip()
    return message if not message or message.endswith((".", "!", "?")) else f"{message}."
