"""What `status` shows, to the letter."""

from __future__ import annotations

from specdecode.cli.table import detail, overview
from tests.unit.cli.resources import NOW, SERVING, at, canary, resource

SUMMARY = {"prefill": "2/2", "decode": "4/4", "rollout": "Canary 10% 1/3", "acceptance": "3.41"}


def test_a_line_for_each_resource() -> None:
    known = resource(SERVING | {"summary": SUMMARY})
    fresh = resource({}, **{"metadata.name": "fresh", "metadata.creationTimestamp": at(5)})
    assert overview([known, fresh], NOW, namespaces=False) == [
        "NAME    MODEL                       DEPTH   PREFILL   DECODE   ROLLOUT          ACCEPTANCE   AGE",
        "plain   deepseek-ai/DeepSeek-V3.2   3       2/2       4/4      Canary 10% 1/3   3.41         120m",
        "fresh   deepseek-ai/DeepSeek-V3.2   3       -         -        -                -            5s",
    ]


def test_the_namespace_comes_first_where_there_are_several() -> None:
    assert overview([resource(SERVING)], NOW, namespaces=True)[1].split()[:2] == ["models", "plain"]


def test_one_in_full() -> None:
    acceptance = {"revision": 1, "length": "3.41", "positions": ["0.92"], "drafts": 10, "requests": 2}
    status = canary(
        "Analysing",
        acceptance=[acceptance],
        baseline=acceptance | {"length": "3.50"},
        verdict={"revision": 2, "verdict": "Pass", "reason": "AcceptanceHeld", "message": "It held.", "at": at(60)},
        tunings=[{"role": "decode", "revision": 1, "depth": "3", "hostCopy": "auto"}],
        rejected=[{"revision": 7, "reason": "Aborted", "message": "By hand.", "at": at(300), "attempts": 2}],
        conditions=canary("Analysing")["conditions"][:1],
    )
    assert detail(resource(status), NOW) == [
        "Name        plain in namespace models, 120m old",
        "Model       deepseek-ai/DeepSeek-V3.2, depth 3",
        "Generation  2, of which 2 was last acted on",
        "Available   True (Serving) Revision 1 serves",
        "Stable      revision 1: 2 prefill, 4 decode, 9 router Pods ready, depth 3, vllm:0.33.0",
        "Canary      revision 2: 1 prefill, 1 decode, 1 router Pods ready, depth 3, vllm:0.33.0",
        "Rollout     step 1 of 3, Analysing, 10% asked, 10% reached, split by connection",
        "Acceptance  Acceptance length of revision 1: 3.41, by position 0.92, from 10 drafts of 2 requests.",
        "Baseline    Acceptance length of revision 1 at its promotion: 3.50, by position 0.92, from 10 drafts of 2 "
        "requests.",
        "Verdict     revision 2: Pass (AcceptanceHeld), 60s ago: It held.",
        "Tunings     revision 1 decode: depth 3, lookaheadBackoff Unknown, hostCopy auto, topKSharing Unknown",
        "Rejected    revision 7 (Aborted), 5m ago, 2 times by now: By hand.",
    ]


def test_a_resource_that_nobody_has_looked_at() -> None:
    assert detail(resource({}, **{"metadata.creationTimestamp": None}), NOW) == [
        "Name        plain in namespace models, of unknown age old",
        "Model       deepseek-ai/DeepSeek-V3.2, depth 3",
        "Generation  2, of which 0 was last acted on",
    ]
