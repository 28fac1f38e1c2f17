from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from specdecode.acceptance import Policy, Sample, ScrapeError, VerdictKind
from specdecode.api import SpecDecodeDeployment
from specdecode.cluster.evidence import Aim, Evidence
from specdecode.rollout.types import AnalysisTarget, ArmObserved, PodObserved, RoleObserved
from specdecode.scrape import Scraped

POLICY = Policy(interval=2.0, min_requests=20, guard_interval=30.0)
GOOD, BAD = (0.9, 0.8, 0.7), (0.01, 0.005, 0.0)


def resource(**spec: Any) -> SpecDecodeDeployment:
    base: dict[str, Any] = {
        "model": {"name": "m"},
        "speculation": {"depth": 3},
        "engine": {"image": "i"},
        "topology": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}},
    }
    return SpecDecodeDeployment.parse({"metadata": {"name": "glm", "uid": "u"}, "spec": base | spec})


def pod(name: str, **fields: Any) -> PodObserved:
    given: dict[str, Any] = {"ready": True, "ip": "127.0.0.9"} | fields
    return PodObserved(name=name, uid=f"uid-{name}", **given)


def arm(revision: int, *pods: PodObserved) -> ArmObserved:
    def role(word: str) -> RoleObserved:
        mine = tuple(p for p in pods if word in p.name)
        return RoleObserved(exists=bool(mine), replicas=len(mine), pods=mine)

    return ArmObserved(revision, prefill=role("prefill"), decode=role("decode"), router=role("router"))


def arms() -> dict[int, ArmObserved]:
    return {n: arm(n, pod(f"{n}-prefill-0"), pod(f"{n}-decode-0"), pod(f"{n}-router-x")) for n in (1, 2)}


def names(aims: Iterable[Aim]) -> list[str]:
    return [aim.pod for aim in aims]


def sample(aim: Aim, t: float, drafts: float, acceptance: tuple[float, ...], requests: float) -> Sample:
    accepted = tuple(drafts * p for p in acceptance)
    return Sample(
        t=t,
        arm=aim.target.arm,
        pod=aim.target.pod,
        engine="0",
        depth=len(acceptance),
        drafts=drafts,
        draft_tokens=drafts * len(acceptance),
        accepted=sum(accepted),
        accepted_per_pos=accepted,
        requests_running=0.0,
        requests_finished=requests,
        requests_failed=0.0,
    )


def answers(
    aims: Iterable[Aim],
    t: float,
    drafts: float,
    acceptance: dict[int, tuple[float, ...]],
    requests: float | None = None,
) -> list[Scraped]:
    finished = drafts / 40.0 if requests is None else requests
    return [
        Scraped(aim.target, ())
        if aim.role == "router"
        else Scraped(aim.target, (sample(aim, t, drafts, acceptance[aim.revision], finished),))
        for aim in aims
    ]


def target(**fields: Any) -> AnalysisTarget:
    base = {"canary": 2, "stable": 1, "started_at": 100.0, "step": 1, "steps": 3, "weight": 10, "began_at": 110.0}
    return AnalysisTarget(**(base | fields))


def test_outside_a_canary_routers_are_left_alone_and_prefill_is_asked_once() -> None:
    evidence = Evidence({})
    aims = evidence.aims(arms(), 1, None)
    assert names(aims) == ["1-prefill-0", "1-decode-0"]
    assert [(a.target.arm, a.target.port, a.target.prefill_apart) for a in aims] == [("stable", 8000, True)] * 2
    evidence.take(aims, answers(aims, 1.0, 10.0, {1: GOOD}))
    assert names(evidence.aims(arms(), 1, None)) == ["1-decode-0"]


def test_a_canary_s_pods_and_both_arms_proxies_are_scraped() -> None:
    aims = Evidence({}).aims(arms(), 1, 2)
    assert names(aims) == [f"{n}-{role}" for n in (1, 2) for role in ("prefill-0", "decode-0", "router-x")]
    assert [(a.target.arm, a.target.source, a.target.port) for a in aims if a.role == "router"] == [
        ("stable", "router", 9902),
        ("canary", "router", 9902),
    ]


@pytest.mark.parametrize("fields", [{"ready": False}, {"terminating": True}, {"ip": ""}])
def test_pods_that_can_t_answer_aren_t_asked_and_are_asked_anew_once_they_can(fields: dict[str, Any]) -> None:
    evidence = Evidence({})
    aims = evidence.aims(arms(), 1, None)
    evidence.take(aims, answers(aims, 1.0, 10.0, {1: GOOD}))
    assert evidence.unseen(aims) == []
    away = {1: arm(1, pod("1-prefill-0", **fields), pod("1-decode-0", **fields))}
    assert evidence.aims(away, 1, None) == []
    assert names(evidence.unseen(evidence.aims(arms(), 1, None))) == ["1-prefill-0", "1-decode-0"]


@pytest.mark.parametrize("canary", [None, 2])
def test_a_pod_that_has_answered_isn_t_new_at_the_next_look_whatever_its_role(canary: int | None) -> None:
    evidence = Evidence({})
    aims = evidence.aims(arms(), 1, canary)
    assert evidence.unseen(aims) == aims
    evidence.take(aims, [Scraped(aim.target) for aim in aims])
    assert evidence.unseen(evidence.aims(arms(), 1, canary)) == []


def test_tunings_are_kept_by_pod_and_silence_is_not_an_answer() -> None:
    evidence = Evidence({})
    aims = evidence.aims(arms(), 1, None)
    got = [
        Scraped(aims[0].target, error=ScrapeError(1.0, "stable", aims[0].target.pod, "timeout")),
        Scraped(aims[1].target, (sample(aims[1], 1.0, 0.0, GOOD, 0.0),), {"0": {"depth": "3"}}),
    ]
    evidence.take(aims, got)
    assert evidence.infos(arms()[1]) == {"prefill": {}, "decode": {"1-decode-0": {"depth": "3"}}}
    evidence.take(aims[:1], answers(aims[:1], 2.0, 0.0, {1: GOOD}))
    assert evidence.infos(arms()[1])["prefill"] == {"1-prefill-0": None}


def play(evidence: Evidence, canary: tuple[float, ...], rounds: range, rate: float = 4000.0) -> bool:
    """Rounds of scrapes two seconds apart from t = 120 on; whether any changed the verdict."""
    news = False
    for i in rounds:
        t = 120.0 + 2.0 * i
        aims = evidence.aims(arms(), 1, 2)
        evidence.take(aims, answers(aims, t, rate * (i + 1), {1: GOOD, 2: canary}))
        news = evidence.look(t) or news
    return news


def test_a_collapse_is_failed_at_the_second_look_and_a_verdict_is_news_once() -> None:
    evidence = Evidence({})
    evidence.aim_at(target(), resource(), POLICY, 100.0)
    assert evidence.judging
    assert evidence.verdict_of == (2, 1)
    assert play(evidence, BAD, range(2))
    assert evidence.verdict is not None
    assert (evidence.verdict.kind, evidence.verdict.reason) == (VerdictKind.FAIL, "AcceptanceCollapsed")


@pytest.mark.parametrize("then", ["healthy", "silent"])
def test_a_fail_stands_until_the_canary_is_gone(then: str) -> None:
    """It may not have been acted on when the next look finds nothing."""
    evidence = Evidence({})
    evidence.aim_at(target(), resource(), POLICY, 100.0)
    play(evidence, BAD, range(2))
    for i in range(2, 60):
        aims = [aim for aim in evidence.aims(arms(), 1, 2) if then == "healthy" or aim.revision == 1]
        evidence.take(aims, answers(aims, 120.0 + 2.0 * i, 40000.0 * (i + 1), {1: GOOD, 2: GOOD}))
        assert not evidence.look(120.0 + 2.0 * i)
        assert evidence.verdict is not None
        assert evidence.verdict.kind is VerdictKind.FAIL
    evidence.aim_at(target(started_at=500.0), resource(), POLICY, 500.0)
    assert evidence.verdict is None


def test_origins_seen_before_the_canary_s_analysis_count_from_its_first_draft() -> None:
    """The canary's Pods are scraped as soon as they are ready; what they drafted since is evidence."""
    evidence = Evidence({})
    aims = evidence.aims(arms(), 1, 2)
    evidence.take(aims, answers(aims, 119.0, 0.0, {1: GOOD, 2: BAD}))
    evidence.aim_at(target(), resource(), POLICY, 119.5)
    play(evidence, BAD, range(1))
    assert evidence.verdict is not None
    assert evidence.verdict.evidence.canary.drafts == 4000.0


def test_another_canary_begins_anew_and_none_ends_the_analysis() -> None:
    evidence = Evidence({})
    evidence.aim_at(target(), resource(), POLICY, 100.0)
    play(evidence, BAD, range(2))
    evidence.aim_at(target(started_at=500.0), resource(), POLICY, 500.0)
    assert evidence.verdict is None
    evidence.aim_at(None, resource(), POLICY, 600.0)
    assert not evidence.judging
    assert evidence.verdict_of == (0, 0)


def test_a_restarted_operator_goes_on_where_the_saved_state_ends() -> None:
    evidence = Evidence({})
    evidence.aim_at(target(), resource(), POLICY, 100.0)
    play(evidence, GOOD, range(30))
    assert evidence.verdict is not None
    before = evidence.verdict
    saved = json.loads(json.dumps(evidence.state()))

    again = Evidence(saved)
    again.aim_at(target(), resource(), POLICY, 180.0)
    assert again.verdict is None
    play(again, GOOD, range(30, 32))
    assert again.verdict is not None
    assert again.verdict.evidence.canary.drafts >= before.evidence.canary.drafts

    other = Evidence(saved)
    other.aim_at(target(started_at=170.0), resource(), POLICY, 180.0)
    play(other, GOOD, range(30, 31))
    assert other.verdict is not None
    assert other.verdict.evidence.canary.drafts == 0.0


@pytest.mark.parametrize(
    "saved",
    [
        {"analysis": {"canary": 2, "startedAt": 100.0, "state": {}}},
        {"analysis": {"canary": 2, "startedAt": 100.0, "state": {"positions": "x"}}},
        {"analysis": 7},
        {"guard": {"revision": 1, "state": {"began": "x"}}, "history": {"state": []}},
    ],
)
def test_saved_state_that_can_t_be_read_is_dropped(saved: dict[str, Any]) -> None:
    evidence = Evidence(saved)
    evidence.watch_over(1, resource(), POLICY, 100.0)
    evidence.aim_at(target(), resource(), POLICY, 100.0)
    play(evidence, BAD, range(3))
    assert evidence.verdict is not None
    assert evidence.verdict.kind is VerdictKind.FAIL


def test_the_guard_watches_the_serving_revision_and_begins_anew_with_another() -> None:
    evidence = Evidence({})
    evidence.watch_over(1, resource(), POLICY, 0.0)
    for i in range(12):
        t = 30.0 * i
        aims = evidence.aims({1: arms()[1]}, 1, None)
        evidence.take(aims, answers(aims, t, 1000.0 * i, {1: BAD}))
        evidence.look(t)
    assert evidence.suspicion is not None
    assert evidence.suspicion.suspected
    assert evidence.suspicion.reason == "BelowFloor"
    saved = json.loads(json.dumps(evidence.state()))
    again = Evidence(saved)
    again.watch_over(1, resource(), POLICY, 400.0)
    again.look(401.0)
    assert again.suspicion is not None
    assert again.suspicion.suspected
    evidence.watch_over(2, resource(), POLICY, 400.0)
    assert evidence.suspicion is None


def test_that_the_noise_is_learnt_is_news_once() -> None:
    evidence, news = Evidence({}), []
    evidence.watch_over(1, resource(), POLICY, 0.0)
    for i in range(200):
        aims = evidence.aims({1: arms()[1]}, 1, None)
        evidence.take(aims, answers(aims, 2.0 * i, 1000.0 * i, {1: GOOD}))
        if evidence.look(2.0 * i):
            news.append((i, evidence.learning))
    # The guard's first word, and what it says once there is traffic, are news too.
    assert [learning for _, learning in news if learning is not None][:2] == [False, True]
    flips = [i for (i, now), (_, before) in zip(news[1:], news[:-1], strict=True) if now != before]
    assert len(flips) == 2
    # One Pod makes one batch an interval.
    assert 68 <= flips[1] - flips[0] <= 70


def test_the_last_minutes_are_summed_up_for_display() -> None:
    evidence = Evidence({})
    aims = evidence.aims({1: arms()[1]}, 1, None)
    assert evidence.summaries(0.0) == {}
    for i in range(4):
        evidence.take(aims, answers(aims, 30.0 * i, 100.0 * i, {1: GOOD}))
    summary = evidence.summaries(90.0)[1]
    assert summary["length"] == pytest.approx(3.4)
    assert summary["positions"] == pytest.approx(GOOD)
    assert summary["drafts"] == 300.0
    assert evidence.drafts() == {1: 300.0}
    assert evidence.summaries(1000.0) == {}
    evidence.forget([2])
    assert evidence.drafts() == {}


def test_during_a_canary_the_step_s_own_evidence_is_shown() -> None:
    evidence = Evidence({})
    evidence.aim_at(target(), resource(), POLICY, 100.0)
    play(evidence, GOOD, range(20))
    assert evidence.summaries(160.0)[2]["interval"] is None  # so few batches know no noise
    play(evidence, GOOD, range(20, 80))
    found = evidence.summaries(280.0)
    assert set(found) == {1, 2}
    assert found[2]["length"] == pytest.approx(3.4)
    assert found[2]["interval"] is not None


def test_a_pass_of_one_step_is_no_word_on_the_next() -> None:
    evidence = Evidence({})
    evidence.aim_at(target(), resource(), POLICY, 110.0)
    play(evidence, GOOD, range(400))
    assert evidence.verdict is not None
    assert evidence.verdict.kind is VerdictKind.PASS
    assert evidence.verdict_of == (2, 1)
    evidence.aim_at(target(step=2, weight=10, began_at=0.0), resource(), POLICY, 2000.0)
    assert evidence.verdict_of == (2, 1)
    evidence.aim_at(target(step=2, weight=50, began_at=2001.0), resource(), POLICY, 2001.0)
    assert evidence.verdict_of == (2, 2)
    assert evidence.verdict is None
