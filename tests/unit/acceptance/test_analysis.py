"""The analysis as a whole, on simulated fleets: what each scenario must and must not end in."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from specdecode.acceptance import Analysis, Arm, Policy, Reason, Sample, ScrapeError, Verdict, VerdictKind
from tests.sim.fleet import Behaviour, Fleet


def start(now: float = 0.0, **policy: float | None) -> Analysis:
    analysis = Analysis(Policy(**policy), steps=2, split="request", trust_connection=False, now=now)  # type: ignore[arg-type]
    analysis.begin_step(0, 10.0, now)
    return analysis


def play(
    fleet: Fleet,
    analysis: Analysis,
    looks: int,
    change: Callable[[list[Sample]], list[Sample | ScrapeError]] = lambda items: list(items),
) -> list[Verdict]:
    verdicts = []
    for _ in range(looks):
        analysis.observe(change(fleet.step()))
        verdicts.append(analysis.look(fleet.now))
        if verdicts[-1].kind is VerdictKind.FAIL:
            break
    return verdicts


def kinds(verdicts: list[Verdict]) -> set[VerdictKind]:
    return {v.kind for v in verdicts}


def test_an_equal_canary_passes_with_numbers() -> None:
    verdicts = play(Fleet(1, Behaviour(running=60), Behaviour(running=60)), start(), 400)
    assert VerdictKind.FAIL not in kinds(verdicts)
    last = verdicts[-1]
    assert last.kind is VerdictKind.PASS
    assert last.reason is Reason.ACCEPTANCE_HELD
    assert last.estimate is not None
    assert abs(last.estimate) < 0.05
    assert last.interval is not None
    assert last.interval[0] < last.estimate < last.interval[1]
    assert last.evidence.canary.pods == 1
    assert last.evidence.stable.pods == 4
    waiting = next(v for v in verdicts if v.kind is VerdictKind.INCONCLUSIVE and v.more_seconds)
    assert waiting.more_seconds is not None
    assert math.isfinite(waiting.more_seconds)


@pytest.mark.parametrize("pods", [(1, 1), (2, 1), (8, 2)])
def test_while_the_noise_is_measured_it_says_so_and_for_how_long(pods: tuple[int, int]) -> None:
    fleet = Fleet(1, Behaviour(running=60), Behaviour(running=60), pods)
    verdicts = play(fleet, start(), 100)
    early = [(i, v) for i, v in enumerate(verdicts) if "is still being measured" in v.message]
    known = early[-1][0] + 1
    assert known < len(verdicts)
    assert all(v.kind is VerdictKind.INCONCLUSIVE for _, v in early)
    told = [(known - i, v.more_seconds / 5.0) for i, v in early if v.more_seconds is not None]
    assert len(told) >= len(early) - 2
    assert all(looks >= left - 2.0 for left, looks in told)
    assert early[len(early) // 2][1].message.count("more.") == 1


def test_what_is_saved_while_the_noise_is_unknown_is_numbers_and_goes_on_the_same() -> None:
    fleet, analysis = Fleet(1, Behaviour(running=60), Behaviour(running=60, keep=0.7)), start()
    again = start()
    for look in range(60):
        samples = fleet.step()
        for one in (analysis, again):
            one.observe(samples)
        assert analysis.look(fleet.now).kind is again.look(fleet.now).kind
        saved = json.loads(json.dumps(analysis.state(), allow_nan=False))
        if look % 7 == 3:
            again = Analysis(Policy(), steps=2, split="request", trust_connection=False, now=fleet.now, state=saved)


def test_a_canary_that_loads_for_long_is_no_slow_one() -> None:
    fleet, analysis = Fleet(1, Behaviour(running=60), Behaviour(running=60)), start()
    for _ in range(150):
        samples = fleet.step()
        analysis.observe(s for s in samples if s.arm == "stable")
        analysis.look(fleet.now)
    assert analysis.state()["kernel"]["served"] is None
    play(fleet, analysis, 100)
    state = analysis.state()["kernel"]
    assert fleet.now - state["served"] == pytest.approx(500.0, abs=10.0)
    assert state["slow"] is False


def test_a_fall_is_named_with_the_numbers() -> None:
    fleet = Fleet(2, Behaviour(), Behaviour(keep=0.6))
    last = play(fleet, start(), 300)[-1]
    assert (last.kind, last.reason) == (VerdictKind.FAIL, Reason.ACCEPTANCE_FELL)
    assert not last.by_errors
    assert last.estimate is not None
    assert last.estimate < -0.1
    assert "5.0 % is allowed" in last.message


def test_a_late_fall_is_called_about_as_fast_as_an_early_one() -> None:
    fleet = Fleet(3, Behaviour(running=60), Behaviour(running=60))
    analysis = start()
    assert VerdictKind.FAIL not in kinds(play(fleet, analysis, 240))
    fleet.behaviour["canary"].keep = 0.5
    verdicts = play(fleet, analysis, 60)
    assert verdicts[-1].kind is VerdictKind.FAIL
    assert len(verdicts) <= 12


@pytest.mark.parametrize("interval", [2.0, 5.0])
def test_a_collapse_fails_at_the_second_scrape_with_enough_requests(interval: float) -> None:
    for seed in range(10):
        fleet = Fleet(seed, Behaviour(running=100, mean=0.92, spread=0.05), Behaviour(running=200, keep=0.04))
        analysis = start(interval=interval)
        seen = 0
        for _ in range(30):
            items = fleet.step(interval)
            analysis.observe(items)
            verdict = analysis.look(fleet.now)
            counted = sum((s.requests_finished or 0) + (s.requests_running or 0) for s in items if s.arm == "canary")
            seen += counted >= 20
            if verdict.kind is VerdictKind.FAIL:
                break
        assert verdict.kind is VerdictKind.FAIL
        assert seen <= 2


@pytest.mark.parametrize("silent", [False, True])
def test_failing_requests_fail_within_three_scrapes(silent: bool) -> None:
    for seed in range(10):
        canary = Behaviour(running=60, failing=1.0 if silent else 0.5, silent=silent)
        fleet = Fleet(seed, Behaviour(running=60), canary)
        analysis = start()
        scrapes = 0
        origin: float | None = None
        for _ in range(60):
            items = fleet.step()
            analysis.observe(items)
            verdict = analysis.look(fleet.now)
            ended = sum((s.requests_finished or 0) + (s.requests_failed or 0) for s in items if s.arm == "canary")
            origin = ended if origin is None else origin
            scrapes += ended - origin >= 20
            if verdict.kind is VerdictKind.FAIL:
                break
        assert verdict.reason is Reason.REQUESTS_FAILING
        assert verdict.by_errors
        assert scrapes <= 3


def test_few_failures_on_both_arms_are_no_failure() -> None:
    fleet = Fleet(5, Behaviour(failing=0.001), Behaviour(failing=0.001))
    assert VerdictKind.FAIL not in kinds(play(fleet, start(), 300))


@pytest.mark.parametrize(
    ("stable", "canary"),
    [
        (Behaviour(depth=1), Behaviour(depth=8)),
        (Behaviour(depth=8), Behaviour(depth=1)),
        (Behaviour(depth=3), Behaviour(depth=2)),
        (Behaviour(depth=3), Behaviour(depths=(3, 2), tells_drafted=True)),
        (Behaviour(depth=3), Behaviour(depths=(3, 1))),
        (Behaviour(depth=3), Behaviour(depth=3, empty_first=True)),
        (Behaviour(depth=3, empty_first=True), Behaviour(depth=3)),
    ],
    ids=["1-8", "8-1", "3-2", "schedule", "schedule-untold", "to-pd", "from-pd"],
)
def test_depth_and_counting_are_no_fall(stable: Behaviour, canary: Behaviour) -> None:
    stable.running = canary.running = 60
    verdicts = play(Fleet(6, stable, canary), start(), 250)
    assert VerdictKind.FAIL not in kinds(verdicts)
    assert verdicts[-1].kind is VerdictKind.PASS


def test_drift_of_both_arms_is_no_fall() -> None:
    fleet = Fleet(7, Behaviour(running=60), Behaviour(running=60))
    analysis = start()
    play(fleet, analysis, 60)
    fleet.behaviour["stable"].keep = fleet.behaviour["canary"].keep = 0.6
    assert VerdictKind.FAIL not in kinds(play(fleet, analysis, 200))


def away(items: list[Sample]) -> list[Sample | ScrapeError]:
    return [ScrapeError(s.t, s.arm, s.pod, "timeout") if s.arm == "canary" else s for s in items]


def nan(items: list[Sample]) -> list[Sample | ScrapeError]:
    return [
        Sample(s.t, s.arm, s.pod, s.engine, s.depth, math.nan, s.draft_tokens, s.accepted, s.accepted_per_pos)
        for s in items
    ]


@pytest.mark.parametrize("change", [away, nan])
def test_no_metrics_is_no_data_and_evidence_goes_on(
    change: Callable[[list[Sample]], list[Sample | ScrapeError]],
) -> None:
    fleet = Fleet(8, Behaviour(running=60), Behaviour(running=60))
    analysis = start()
    play(fleet, analysis, 10)
    before = analysis.evidence(fleet.now).canary.drafts
    lost = play(fleet, analysis, 12, change)
    assert kinds(lost) <= {VerdictKind.NO_DATA, VerdictKind.INCONCLUSIVE}
    assert lost[-1].kind is VerdictKind.NO_DATA
    assert lost[-1].reason is Reason.SCRAPES_FAILING
    verdicts = play(fleet, analysis, 150)
    assert VerdictKind.FAIL not in kinds(verdicts)
    assert verdicts[-1].kind is VerdictKind.PASS
    assert verdicts[0].evidence.canary.drafts > before


def test_an_idle_canary_is_no_data_for_ever() -> None:
    fleet = Fleet(9, Behaviour(), Behaviour(running=0.0))
    verdicts = play(fleet, start(), 100)
    assert kinds(verdicts) == {VerdictKind.NO_DATA}
    assert verdicts[-1].reason is Reason.NO_TRAFFIC


def test_a_pod_that_hangs_holds_the_pass() -> None:
    fleet = Fleet(10, Behaviour(running=60), Behaviour(running=60), pods=(4, 2))
    hanging = fleet.engines[("canary", "canary-1")]

    def still(items: list[Sample]) -> list[Sample | ScrapeError]:
        return [
            s
            if s.pod != "canary-1"
            else Sample(s.t, s.arm, s.pod, s.engine, s.depth, 0.0, 0.0, 0.0, (0.0,) * 3, requests_running=0.0)
            for s in items
        ]

    verdicts = play(fleet, start(), 200, still)
    assert hanging.drafts > 0.0
    assert VerdictKind.PASS not in kinds(verdicts)
    assert verdicts[-1].reason is Reason.PODS_UNSEEN


def test_a_counter_reset_is_no_fall() -> None:
    fleet = Fleet(11, Behaviour(running=60), Behaviour(running=60))
    analysis = start()
    for _ in range(6):
        assert VerdictKind.FAIL not in kinds(play(fleet, analysis, 30))
        fleet.restart("canary", "canary-0")
        fleet.restart("stable", "stable-1")


def test_slower_tokens_fail_only_under_the_same_load() -> None:
    same = Fleet(12, Behaviour(running=60), Behaviour(running=60, tpot=0.04))
    assert play(same, start(), 300)[-1].reason is Reason.SLOWER_TOKENS
    fuller = Fleet(12, Behaviour(running=10), Behaviour(running=200, tpot=0.04))
    assert VerdictKind.FAIL not in kinds(play(fuller, start(), 60))


def test_slower_tokens_are_told_where_they_decide_nothing() -> None:
    same = Fleet(12, Behaviour(running=60), Behaviour(running=60, tpot=0.04))
    verdicts = play(same, start(latency_margin=None), 60)
    assert VerdictKind.FAIL not in kinds(verdicts)
    assert "longer per output token" in verdicts[-1].message
    assert (
        "per output token" not in play(Fleet(12, Behaviour(running=60), Behaviour(running=60)), start(), 60)[-1].message
    )


def test_below_the_floor_fails_only_while_stable_is_above() -> None:
    low = Behaviour(running=100, mean=0.05, spread=0.02)
    verdicts = play(Fleet(13, Behaviour(running=100, mean=0.16, spread=0.02), low), start(margin=0.4), 200)
    assert verdicts[-1].reason is Reason.BELOW_FLOOR
    both = Fleet(13, Behaviour(running=100, mean=0.05, spread=0.02), low)
    assert Reason.BELOW_FLOOR not in {v.reason for v in play(both, start(margin=0.4), 100)}


def test_split_by_connection_holds_a_fall_but_not_a_collapse() -> None:
    def judge(trust: bool, keep: float) -> Verdict:
        fleet = Fleet(14, Behaviour(running=60, mean=0.85, spread=0.1), Behaviour(running=60, keep=keep))
        fleet.behaviour["canary"].mean, fleet.behaviour["canary"].spread = 0.85, 0.1
        analysis = Analysis(Policy(), steps=1, split="connection", trust_connection=trust, now=0.0)
        analysis.begin_step(0, 10.0, 0.0)
        return play(fleet, analysis, 120)[-1]

    held = judge(False, 0.75)
    assert (held.kind, held.reason) == (VerdictKind.INCONCLUSIVE, Reason.SPLIT_BY_CONNECTION)
    assert judge(True, 0.75).reason is Reason.ACCEPTANCE_FELL
    assert judge(False, 0.03).reason is Reason.ACCEPTANCE_COLLAPSED


def test_at_the_whole_weight_only_stables_last_values_count() -> None:
    fleet = Fleet(15, Behaviour(running=60), Behaviour(running=60))
    analysis = start()
    play(fleet, analysis, 60)
    analysis.begin_step(1, 100.0, fleet.now)

    def alone(items: list[Sample]) -> list[Sample | ScrapeError]:
        return [s for s in items if s.arm == "canary"]

    fleet.behaviour["canary"].keep = 0.75
    assert VerdictKind.FAIL not in kinds(play(fleet, analysis, 60, alone))
    fleet.behaviour["canary"].keep = 0.02
    last = play(fleet, analysis, 20, alone)[-1]
    assert (last.kind, last.reason) == (VerdictKind.FAIL, Reason.ACCEPTANCE_COLLAPSED)


@pytest.mark.parametrize("keep", [1.0, 0.7])
def test_a_restart_ends_the_same(keep: float) -> None:
    def run(stop: int | None) -> tuple[VerdictKind, int]:
        fleet = Fleet(16, Behaviour(running=60), Behaviour(running=60, keep=keep))
        analysis = start()
        for look in range(200):
            if look == stop:
                saved = json.loads(json.dumps(analysis.state()))
                analysis = Analysis(
                    Policy(), steps=2, split="request", trust_connection=False, now=fleet.now, state=saved
                )
                analysis.begin_step(0, 10.0, fleet.now)
            verdict = play(fleet, analysis, 1)[-1]
            if verdict.kind in (VerdictKind.FAIL, VerdictKind.PASS):
                return verdict.kind, look
        return verdict.kind, 200

    kind, look = run(None)
    assert look < 200
    for stop in {1, 2, look // 2, look - 1, look}:
        again, later = run(stop)
        assert again is kind
        assert abs(later - look) <= 1


@pytest.mark.parametrize("pods", [(4, 1), (6, 2), (16, 8)])
def test_state_is_small(pods: tuple[int, int]) -> None:
    fleet = Fleet(17, Behaviour(running=60), Behaviour(running=60, failing=0.001), pods=pods)
    analysis = start()
    play(fleet, analysis, 200)
    assert len(json.dumps(analysis.state(), separators=(",", ":"))) < 2 * 4096


def test_the_same_samples_in_any_order_say_the_same() -> None:
    def run(backwards: bool) -> list[Verdict]:
        fleet = Fleet(18, Behaviour(), Behaviour(keep=0.8))
        return play(fleet, start(), 40, lambda items: list(reversed(items)) if backwards else list(items))

    assert run(False) == run(True)


@pytest.mark.parametrize(
    "wrong", [{"v": 2}, {"v": 3}, {}, {"v": 3, "positions": 3, "merged_at": 0.0, "running": 0.0, "kernel": []}]
)
def test_evidence_that_cannot_be_read_says_so(wrong: dict[str, object]) -> None:
    def begun(state: dict[str, object] | None) -> Analysis:
        return Analysis(Policy(), steps=1, split="request", trust_connection=False, now=0.0, state=state)

    if wrong:
        with pytest.raises(ValueError, match="saved"):
            begun(wrong)
    else:
        assert begun(wrong).look(5.0).kind is VerdictKind.NO_DATA


def test_evidence_from_the_future_is_not_gone_on_with() -> None:
    """The clock was set back: what is new would all lie before what is known."""
    fleet, analysis = Fleet(20, Behaviour(), Behaviour()), start()
    play(fleet, analysis, 5)

    def again(now: float) -> Analysis:
        state = analysis.state()
        return Analysis(Policy(), steps=1, split="request", trust_connection=False, now=now, state=state)

    again(fleet.now - 1.0)
    with pytest.raises(ValueError, match="set back"):
        again(fleet.now - 3600.0)


def test_a_late_collapse_is_told_by_the_window_that_failed() -> None:
    fleet = Fleet(19, Behaviour(running=60, mean=0.92, spread=0.05), Behaviour(running=60, mean=0.92, spread=0.05))
    analysis = start()
    play(fleet, analysis, 150)
    fleet.behaviour["canary"].keep = 0.04
    last = play(fleet, analysis, 20)[-1]
    assert last.reason is Reason.ACCEPTANCE_COLLAPSED
    accepts, where = (float(x.split(" ")[0].rstrip(",")) for x in last.message.split("accepts ")[1:])
    assert accepts < 0.5 * where
    assert where > 2.0


@pytest.mark.filterwarnings("error")
def test_counters_without_noise_are_judged_without_a_warning() -> None:
    def counted(t: float, arm: Arm, rate: float) -> Sample:
        drafts = 100.0 * t
        accepted = (rate * drafts, 0.5 * rate * drafts)
        return Sample(t, arm, f"{arm}-0", "0", 2, drafts, 2.0 * drafts, sum(accepted), accepted)

    def end(rate: float) -> VerdictKind:
        analysis = start()
        for look in range(1, 80):
            analysis.observe([counted(5.0 * look, "stable", 0.8), counted(5.0 * look, "canary", rate)])
            verdict = analysis.look(5.0 * look)
        return verdict.kind

    assert end(0.8) is VerdictKind.PASS
    assert end(0.6) is VerdictKind.FAIL
