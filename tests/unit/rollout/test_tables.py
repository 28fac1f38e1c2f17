"""Exact step tables: what is asked for, row by row, from a changed spec to its end."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from specdecode.acceptance.types import Reason, Verdict, VerdictKind

from .checks import ALL
from .world import Answer, World, resource, serving, started, verdict

NO_SPARE = {"maxSurge": 0, "maxUnavailable": 1}
DOUBLE = {"maxSurge": "100%", "maxUnavailable": 0}
ONE = {"topology__prefill__replicas": 1, "topology__decode__replicas": 1}


def capacity(of: Mapping[str, object]) -> dict[str, object]:
    return {"rollout__capacity": {"prefill": of, "decode": of}}


def table(world: World, *, until: int = 120) -> list[str]:
    """Distinct rows: stable and canary P/D/R asked for, phase, weight asked and reached."""
    rows: list[str] = []
    for _ in range(until):
        world.step()
        status = world.resource.status
        row = f"{world.asked():14} {status.rollout.phase:11} {status.weight.asked:3}/{status.weight.reached}".strip()
        if not rows or row != rows[-1]:
            rows.append(row)
        over = serving(world) or bool(status.rejected)
        if status.canary is None and over and len(world.arms) == 1:
            break
    return [" ".join(r.split()) for r in rows]


def canary(world: World, **changes: object) -> World:
    world.checks = list(ALL)
    spec = {"speculation__depth": 2, "rollout__promotionDelay": "0s", **changes}
    world.edit(resource(**spec))
    return world


def failing(step: int, *, by_errors: bool = False) -> Answer:
    def answer(_: int, at: int) -> Verdict:
        if at == step:
            return verdict(VerdictKind.FAIL, Reason.ACCEPTANCE_FELL, by_errors=by_errors)
        return verdict(VerdictKind.PASS)

    return answer


def test_the_worked_example() -> None:
    assert table(canary(started())) == [
        "2/4/2 Idle 0/0",
        "2/4/2 1/1/0 ComingUp 0/0",
        "2/4/2 1/1/0 Moving 0/0",
        "2/4/9 1/1/0 Moving 10/0",
        "2/4/9 1/1/1 Moving 10/0",
        "2/4/9 1/1/1 Analysing 10/10",
        "2/4/9 1/1/1 Moving 10/10",
        "2/4/3 1/1/1 Moving 50/10",
        "2/4/3 1/1/1 Moving 50/25",
        "2/3/3 1/1/1 Moving 50/25",
        "2/3/3 1/2/1 Moving 50/25",
        "2/3/2 1/2/2 Moving 50/25",
        "2/3/2 1/2/2 Moving 50/33",
        "2/3/2 1/2/2 Analysing 50/50",
        "2/3/2 1/2/2 Moving 50/33",
        "2/3/2 1/2/2 Moving 100/50",
        "1/2/2 1/2/2 Moving 100/50",
        "1/2/2 2/3/2 Moving 100/50",
        "1/2/1 2/3/3 Moving 100/50",
        "1/2/1 2/3/3 Moving 100/67",
        "1/2/1 2/3/3 Moving 100/75",
        "1/2/1 2/3/3 Moving 100/67",
        "1/2/1 2/3/3 Moving 100/75",
        "1/2/1 2/3/3 Moving 100/67",
        "1/2/1 2/3/3 Moving 100/75",
        "1/1/1 2/3/3 Moving 100/75",
        "1/1/1 2/4/3 Moving 100/75",
        "1/1/0 2/4/3 Moving 100/75",
        "1/1/0 2/4/2 Moving 100/100",
        "0/0/0 2/4/2 Idle 0/0",
        "2/4/2 Idle 0/0",
    ]


def test_one_replica_a_role() -> None:
    assert table(canary(started(**ONE), **ONE)) == [
        "1/1/2 Idle 0/0",
        "1/1/2 1/1/0 ComingUp 0/0",
        "1/1/2 1/1/0 Moving 0/0",
        "1/1/9 1/1/0 Moving 10/0",
        "1/1/9 1/1/1 Moving 10/0",
        "1/1/9 1/1/1 Analysing 10/10",
        "1/1/9 1/1/1 Moving 10/10",
        "1/1/2 1/1/2 Moving 50/10",
        "1/1/2 1/1/2 Moving 50/33",
        "1/1/2 1/1/2 Analysing 50/50",
        "1/1/2 1/1/2 Moving 50/50",
        "1/1/0 1/1/2 Moving 100/50",
        "1/1/0 1/1/2 Idle 0/0",
        "0/0/0 1/1/2 Idle 0/0",
        "1/1/2 Idle 0/0",
    ]


def test_no_spare_accelerator() -> None:
    spec = capacity(NO_SPARE)
    assert table(canary(started(**spec), **spec)) == [
        "2/4/2 Idle 0/0",
        "2/4/2 0/0/0 ComingUp 0/0",
        "1/3/2 0/0/0 ComingUp 0/0",
        "1/3/2 1/1/0 ComingUp 0/0",
        "1/3/2 1/1/0 Moving 0/0",
        "1/3/9 1/1/0 Moving 10/0",
        "1/3/9 1/1/1 Moving 10/0",
        "1/3/9 1/1/1 Analysing 10/10",
        "1/3/9 1/1/1 Moving 10/10",
        "1/3/3 1/1/1 Moving 50/10",
        "1/3/3 1/1/1 Moving 50/25",
        "1/2/3 1/1/1 Moving 50/25",
        "1/2/3 1/2/1 Moving 50/25",
        "1/2/2 1/2/2 Moving 50/25",
        "1/2/2 1/2/2 Moving 50/33",
        "1/2/2 1/2/2 Analysing 50/50",
        "1/2/2 1/2/2 Moving 50/33",
        "1/2/2 1/2/2 Moving 100/50",
        "1/1/2 1/2/2 Moving 100/50",
        "1/1/2 1/3/2 Moving 100/50",
        "1/1/0 1/3/2 Moving 100/50",
        "0/0/0 1/3/2 Moving 100/100",
        "0/0/0 1/3/2 Promoting 100/100",
        "0/0/0 2/4/2 Promoting 100/100",
        "2/4/2 Idle 0/0",
    ]


def test_one_replica_and_no_spare_accelerator() -> None:
    spec = {**ONE, **capacity(NO_SPARE)}
    assert table(canary(started(**spec), **spec)) == [
        "1/1/2 Idle 0/0",
        "0/0/2 0/0/0 ComingUp 0/0",
        "0/0/2 1/1/0 ComingUp 0/0",
        "0/0/2 1/1/0 Moving 0/0",
        "0/0/0 1/1/2 Moving 10/0",
        "0/0/0 1/1/2 Analysing 10/100",
        "0/0/0 1/1/2 Moving 10/100",
        "0/0/0 1/1/2 Analysing 50/100",
        "0/0/0 1/1/2 Moving 50/100",
        "1/1/2 Idle 0/0",
    ]


def test_surge_of_all_keeps_stable_whole_to_the_end() -> None:
    spec = capacity(DOUBLE)
    rows = table(canary(started(**spec), **spec))
    assert all(row.startswith("2/4/") for row in rows[:-2]), rows
    assert rows[-3:] == ["2/4/0 2/4/2 Idle 0/0", "0/0/0 2/4/2 Idle 0/0", "2/4/2 Idle 0/0"]


def test_a_gateway_moves_weights_not_routers() -> None:
    spec = {"traffic__gateway": {"parentRefs": [{"name": "g"}]}}
    world = canary(started(**spec), **spec)
    rows = table(world)
    assert rows[:6] == [
        "2/4/2 Idle 0/0",
        "2/4/2 1/1/0 ComingUp 0/0",
        "2/4/2 1/1/2 Moving 0/0",
        "2/4/2 1/1/2 Moving 10/0",
        "2/4/2 1/1/2 Analysing 10/10",
        "2/4/2 1/1/2 Moving 10/10",
    ]
    assert world.route == {2: 100}


def test_fail_at_step_1_takes_all_traffic_at_once() -> None:
    world = canary(started())
    world.answer = failing(1)
    rows = table(world)
    at = rows.index("2/4/9 1/1/1 Analysing 10/10")
    assert rows[at + 1 :] == [
        "2/4/9 1/1/0 RollingBack 0/10",
        "2/4/2 1/1/0 RollingBack 0/0",
        "2/4/2 0/0/0 RollingBack 0/0",
        "2/4/2 RollingBack 0/0",
        "2/4/2 Idle 0/0",
    ]
    (rejected,) = world.resource.status.rejected
    assert (rejected.revision, rejected.reason, rejected.attempts) == (2, "AcceptanceFell", 1)


def test_fail_at_step_2_moves_what_stable_carries() -> None:
    world = canary(started())
    world.answer = failing(2)
    rows = table(world)
    at = rows.index("2/3/2 1/2/2 Analysing 50/50")
    assert rows[at + 1 :] == [
        "2/3/3 1/2/1 RollingBack 0/33",
        "2/3/3 1/2/1 RollingBack 0/25",
        "2/3/3 1/2/1 RollingBack 0/0",
        "2/3/3 1/1/1 RollingBack 0/25",
        "2/4/3 1/1/1 RollingBack 0/25",
        "2/4/3 1/1/0 RollingBack 0/25",
        "2/4/2 1/1/0 RollingBack 0/0",
        "2/4/2 0/0/0 RollingBack 0/0",
        "2/4/2 RollingBack 0/0",
        "2/4/2 Idle 0/0",
    ]


def test_fail_by_errors_at_step_2_moves_everything() -> None:
    world = canary(started())
    world.answer = failing(2, by_errors=True)
    rows = table(world)
    at = rows.index("2/3/2 1/2/2 Analysing 50/50")
    assert rows[at + 1 :] == [
        "2/3/2 1/2/0 RollingBack 0/33",
        "2/3/2 1/2/0 RollingBack 0/0",
        "2/3/2 0/1/0 RollingBack 0/0",
        "2/4/2 0/1/0 RollingBack 0/0",
        "2/4/2 0/0/0 RollingBack 0/0",
        "2/4/2 RollingBack 0/0",
        "2/4/2 Idle 0/0",
    ]


@pytest.mark.parametrize("of", [NO_SPARE, {"maxSurge": 1, "maxUnavailable": 0}, DOUBLE], ids=["none", "one", "all"])
@pytest.mark.parametrize("size", [(1, 1), (2, 4), (3, 7)], ids=str)
@pytest.mark.parametrize("by_errors", [False, True])
def test_a_fail_at_weight_100_goes_all_the_way_back(
    of: Mapping[str, object], size: tuple[int, int], by_errors: bool
) -> None:
    spec = {
        **capacity(of),
        "topology__prefill__replicas": size[0],
        "topology__decode__replicas": size[1],
        "rollout__promotionDelay": "10m",
    }
    world = canary(started(**spec), **spec)
    world.answer = failing(3, by_errors=by_errors)
    world.run(lambda w: bool(w.resource.status.rejected) and w.row() == f"{size[0]}/{size[1]}/2")
    assert world.resource.status.stable is not None
    assert world.resource.status.stable.revision == 1
