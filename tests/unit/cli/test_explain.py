"""What `why` says, to the letter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode.cli.explain import EventLine, ago, why
from tests.unit.cli.resources import NOW, SERVING, at, canary, condition, conditions, resource

PODS = (
    "Revision 2: 1 prefill, 1 decode and 1 router Pods are ready. Revision 1: 2 prefill, 4 decode and 9 router Pods "
    "are ready."
)
ON_TRIAL = f"Revision 2 is on trial at step 1 of 3 with 10% of the traffic; revision 1 serves the rest. {PODS}"
DEADLINE = "This step began 3m ago; without a Pass within 117m more, onDeadline Hold, onNoData Hold answers."


def _verdict(verdict: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"revision": 2, "verdict": verdict, "reason": reason, "message": message, "at": at(30)}


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "not seen yet": (
        {},
        [
            "The operator hasn't acted on this resource yet. Check that it runs, that it watches namespace models, "
            "and its log."
        ],
    ),
    "all is well": (
        dict(SERVING),
        ["Revision 1 serves and is what the spec asks for. Nothing is under way."],
    ),
    "an operator that lags": (
        {**SERVING, "observedGeneration": 1},
        [
            "The spec changed (generation 2), and the operator hasn't acted on that yet: what follows is about "
            "generation 1. If this lasts, check that the operator runs.",
            "Revision 1 serves and is what the spec asks for. Nothing is under way.",
        ],
    ),
    "the first roll-out": (
        {
            "observedGeneration": 2,
            "currentRevision": 1,
            "stable": {"revision": 1, "prefill": 1},
            "conditions": [
                condition("Reconciling", "True", "WaitingForPods", "Waiting for 3 decode Pods of revision 1"),
                condition("Stalled", "False", "NothingInTheWay"),
            ],
        },
        [
            "Revision 1 is coming up; nothing serves yet. 1 prefill, 0 decode and 0 router Pods are ready.",
            "It waits (WaitingForPods): Waiting for 3 decode Pods of revision 1.",
        ],
    ),
    "no GPU for the canary": (
        canary(
            "ComingUp",
            asked=0,
            reached=0,
            conditions=conditions(
                "WaitingForPods",
                "",
                stalled=("Unschedulable", "plain-2-decode-0: 0/4 nodes: 4 Insufficient nvidia.com/gpu"),
            ),
        ),
        [
            f"Revision 2 is coming up as a canary and has no traffic yet; revision 1 serves. {PODS}",
            "It is held up (Unschedulable): plain-2-decode-0: 0/4 nodes: 4 Insufficient nvidia.com/gpu.",
            "Free or add what the scheduler lacks, or let rollout.capacity take fewer Pods at a time; the revision is "
            "held and never rejected for this.",
        ],
    ),
    "a canary that crashes": (
        canary(
            "ComingUp",
            asked=0,
            reached=0,
            conditions=conditions("CrashLooping", "plain-2-decode-0: CrashLoopBackOff"),
        ),
        [
            f"Revision 2 is coming up as a canary and has no traffic yet; revision 1 serves. {PODS}",
            "It waits (CrashLooping): plain-2-decode-0: CrashLoopBackOff.",
            "Look at why it ends: kubectl logs --previous -n models -l "
            "specdecode.dev/deployment=plain,specdecode.dev/revision=2 -c vllm. Mend the spec, and a new revision "
            "takes its place.",
        ],
    ),
    "traffic on its way": (
        canary("Moving", step=2, asked=50, reached=25, conditions=conditions("MovingTraffic", "Moving to weight 50")),
        [
            "Revision 2 is moving to 50% of the traffic (step 2 of 3) and carries 25% now; revision 1 serves the "
            f"rest. {PODS}",
            "It waits (MovingTraffic): Moving to weight 50.",
        ],
    ),
    "an idle canary": (
        canary("Analysing", verdict=_verdict("NoData", "NoTraffic", "The canary has had no request for 3 min.")),
        [
            ON_TRIAL,
            DEADLINE,
            "For 30s the evidence has said NoData (NoTraffic). The canary has had no request for 3 min.",
            "No request reaches the canary: send traffic to Service plain. Without data it is held, neither promoted "
            "nor rolled back.",
        ],
    ),
    "not enough evidence": (
        canary(
            "Analysing",
            verdict=_verdict("Inconclusive", "NotEnoughEvidence", "about 40 s more should tell"),
            acceptance=[
                {
                    "revision": 1,
                    "length": "3.41",
                    "interval": ["3.38", "3.44"],
                    "positions": ["0.92", "0.81", "0.68"],
                    "drafts": 52000,
                    "requests": 900,
                },
                {"revision": 2, "length": "3.39", "drafts": 600, "requests": 12},
            ],
        ),
        [
            ON_TRIAL,
            DEADLINE,
            "For 30s the evidence has said Inconclusive (NotEnoughEvidence). about 40 s more should tell.",
            "Acceptance length of revision 1 (stable): 3.41 (3.38 to 3.44), by position 0.92 0.81 0.68, from 52000 "
            "drafts of 900 requests.",
            "Acceptance length of revision 2 (canary): 3.39, from 600 drafts of 12 requests.",
        ],
    ),
    "a fall that a split by connection can't prove": (
        canary("Analysing", verdict=_verdict("Inconclusive", "SplitByConnection", "It fell by 9 %")),
        [
            ON_TRIAL,
            DEADLINE,
            "For 30s the evidence has said Inconclusive (SplitByConnection). It fell by 9 %.",
            "Split by request with traffic.gateway; or, if many clients share the traffic evenly, set "
            "analysis.connectionSplit to Trust.",
        ],
    ),
    "a pause that runs": (
        canary(
            "Analysing",
            step=2,
            asked=50,
            reached=50,
            rollout={"stepPassedAt": at(60)},
            conditions=conditions("PauseRunning", "2 min left"),
        ),
        [
            f"Revision 2 is on trial at step 2 of 3 with 50% of the traffic; revision 1 serves the rest. {PODS}",
            "It waits (PauseRunning): 2 min left.",
            "This step passed 60s ago; its pause of 5m has 2m left.",
        ],
    ),
    "a deadline without data": (
        canary(
            "Analysing",
            rollout={"stepStartedAt": at(7300)},
            conditions=conditions("Analysing", "", stalled=("NoDataAtDeadline", "Step 1 has no Pass after 2h")),
        ),
        [
            ON_TRIAL,
            "It is held up (NoDataAtDeadline): Step 1 has no Pass after 2h.",
            "Send traffic, or let it pass without evidence: kubectl annotate --overwrite sdd plain -n models "
            "specdecode.dev/promote=2/1",
            "This step began 121m ago and its deadline is over: onDeadline Hold, onNoData Hold has answered.",
        ],
    ),
    "the last delay": (
        canary("Promoting", step=3, asked=100, reached=100, conditions=conditions("PromotionDelay", "4 min left")),
        [
            f"Revision 2 carries 100% of the traffic and is about to take over (step 3 of 3). {PODS}",
            "It waits (PromotionDelay): 4 min left.",
        ],
    ),
    "a rollback under way": (
        canary(
            "RollingBack",
            asked=0,
            reached=0,
            rollout={
                "failure": {
                    "reason": "AcceptanceCollapsed",
                    "message": "0.1 of 3 drafts accepted, stable 2.5",
                    "at": at(5),
                }
            },
            conditions=conditions("TakingCanaryAway", "Revision 2 is being taken away"),
        ),
        [
            "Revision 2 is being rolled back (AcceptanceCollapsed); it has no traffic any more, and revision 1 serves. "
            f"0.1 of 3 drafts accepted, stable 2.5. {PODS}",
        ],
    ),
    "a rollback that stable can't take over yet": (
        canary("RollingBack", asked=0, reached=25, conditions=conditions("TakingCanaryAway", "")),
        [f"Revision 2 is being rolled back; it still carries 25%, and revision 1 serves. {PODS}"],
    ),
    "a canary that the spec has left behind": (
        canary("Dropping", asked=0, reached=0, conditions=conditions("TakingCanaryAway", "")),
        [f"Revision 2 is being taken away, because the spec has moved on; revision 1 serves. {PODS}"],
    ),
    "rolled back": (
        {
            **SERVING,
            "currentRevision": 3,
            "conditions": [
                condition("Ready", "False", "RolledBack", "Revision 3 was rolled back"),
                condition("Reconciling", "False", "UpToDate"),
                condition("Stalled", "True", "RolledBack", "Revision 3 was rolled back: it fell"),
                condition("InputsMutable", "True", "Mutable", "May change: image vllm:0.33.0"),
                condition("TuningsEffective", "Unknown", "TuningsUnseen"),
            ],
            "rejected": [
                {"revision": 2, "reason": "CrashLooping", "at": at(90000)},
                {
                    "revision": 3,
                    "reason": "AcceptanceFell",
                    "message": "Acceptance length is 31.0 % lower than stable's",
                    "at": at(120),
                    "attempts": 2,
                },
            ],
        },
        [
            "Revision 1 serves all the traffic. 2 prefill, 4 decode and 2 router Pods are ready.",
            "Revision 3 was rolled back 2m ago (AcceptanceFell). Acceptance length is 31.0 % lower than stable's.",
            "It isn't tried again until the spec changes, or until you ask for it: kubectl annotate --overwrite sdd "
            "plain -n models specdecode.dev/retry=3/2",
            "Before that, revision 2 was rolled back 25h ago (CrashLooping).",
            "InputsMutable is True (Mutable): May change: image vllm:0.33.0.",
        ],
    ),
}


@pytest.mark.parametrize(("status", "lines"), CASES.values(), ids=CASES.keys())
def test_why(status: dict[str, Any], lines: list[str]) -> None:
    assert why(resource(status), [], NOW) == lines


def test_a_step_that_a_person_ends_names_the_command() -> None:
    steps = [{"weight": 10, "pause": {}}, {"weight": 50}, {"weight": 100}]
    status = canary("Analysing", rollout={"stepPassedAt": at(60)})
    assert why(resource(status, **{"spec.rollout": {"steps": steps}}), [], NOW) == [
        ON_TRIAL,
        "This step passed 60s ago and waits for you: kubectl annotate --overwrite sdd plain -n models "
        "specdecode.dev/promote=2/1",
    ]


def test_a_resource_on_its_way_out_says_so_first() -> None:
    found = resource(SERVING, **{"metadata.deletionTimestamp": at(10)})
    assert why(found, [], NOW)[0] == "It has been on its way out for 10s; its objects go with it."


def test_the_last_events_come_last_in_order_of_time() -> None:
    events = [EventLine(NOW - n * 100, "Normal", f"R{n}", f"message {n}") for n in range(1, 8)]
    assert why(resource(SERVING), events, NOW)[1:] == [
        "Recent events:",
        "  8m20s ago  Normal  R5: message 5",
        "  6m40s ago  Normal  R4: message 4",
        "  5m ago  Normal  R3: message 3",
        "  3m20s ago  Normal  R2: message 2",
        "  100s ago  Normal  R1: message 1",
    ]


@pytest.mark.parametrize(
    ("span", "said"),
    [
        (-5, "0s"),
        (0, "0s"),
        (119.9, "119s"),
        (120, "2m"),
        (185, "3m5s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (11100, "3h5m"),
        (28800, "8h"),
        (172799, "47h"),
        (172800, "2d"),
    ],
)
def test_ago(span: float, said: str) -> None:
    assert ago(span) == said


PHASES = ["Idle", "ComingUp", "Moving", "Analysing", "Promoting", "RollingBack", "Dropping"]


@given(
    phase=st.sampled_from(PHASES),
    step=st.integers(0, 9),
    passed=st.booleans(),
    stable=st.booleans(),
    reason=st.sampled_from(["Paused", "Analysing", "WaitingForPods", "NameTaken", "SurgeTooSmall", "Whatever"]),
    stalled=st.booleans(),
)
def test_it_always_has_an_answer_of_whole_lines(
    phase: str, step: int, passed: bool, stable: bool, reason: str, stalled: bool
) -> None:
    status = canary(
        phase,
        step=step,
        rollout={"stepPassedAt": at(1) if passed else None},
        conditions=conditions(reason, "message", stalled=(reason, "message") if stalled else None),
    )
    if not stable:
        del status["stable"]
    lines = why(resource(status), [], NOW)
    assert lines
    assert all(line and "\n" not in line and "{" not in line for line in lines)
