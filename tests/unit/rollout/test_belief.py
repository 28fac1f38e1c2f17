"""Times from the future in status, and workloads that are missing while their Pods serve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode.acceptance.types import VerdictKind
from specdecode.api import SpecDecodeDeploymentStatus, timestamp
from specdecode.api.names import Role
from specdecode.api.topology import MOST_REPLICAS
from specdecode.rollout.belief import believed
from specdecode.rollout.planner import plan
from specdecode.rollout.types import ArmObserved, PodObserved, RoleObserved, Snapshot

from .checks import ALL
from .world import T0, World, always, resource, serving, started

YEAR = 365.0 * 86400.0
DEADLINE = 3600.0
PAST = [
    "rollout.startedAt",
    "rollout.stepStartedAt",
    "rollout.stepPassedAt",
    "rollout.progressAt",
    "rollout.failure.at",
    "rejected.0.at",
    "verdict.at",
    "conditions.0.lastTransitionTime",
]
HELD = "rollout.heldUntil"


def status(time: str) -> SpecDecodeDeploymentStatus:
    """One with every time that there is."""
    said = {"revision": 2, "reason": "R", "at": time}
    rollout = dict.fromkeys(("startedAt", "stepStartedAt", "stepPassedAt", "progressAt", "heldUntil"), time)
    condition = {"type": "Ready", "status": "True", "reason": "R", "lastTransitionTime": time}
    return SpecDecodeDeploymentStatus.model_validate(
        {
            "rollout": rollout | {"failure": {"reason": "R", "at": time}},
            "rejected": [said],
            "verdict": said | {"verdict": "Fail"},
            "conditions": [condition],
        }
    )


def times(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every time in a dumped status, by its path."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from times(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, str) and re.fullmatch(r"[-0-9]+T[:0-9]+Z", value):
        yield path, value


def read(status: SpecDecodeDeploymentStatus) -> dict[str, str]:
    made = resource(rollout__analysis={"deadline": "1h"}).model_copy(update={"status": status})
    dumped = believed(Snapshot(resource=made, now=T0 + 0.7)).resource.status.model_dump(mode="json", by_alias=True)
    return dict(times(dumped))


def _timestamps(schema: dict[str, Any]) -> int:
    """Fields of a JSON schema that are times."""
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    here = isinstance(schema, dict) and schema.get("format") == "date-time"
    return here + sum(_timestamps(each) for each in inner)


def test_no_time_in_status_is_forgotten_here() -> None:
    assert set(dict(times(status(timestamp(T0)).model_dump(mode="json", by_alias=True)))) == {*PAST, HELD}
    assert _timestamps(SpecDecodeDeploymentStatus.model_json_schema()) == len({*PAST, HELD})


@given(ahead=st.floats(-YEAR, YEAR))
def test_nothing_has_happened_in_the_future(ahead: float) -> None:
    written = timestamp(T0 + ahead)
    now, hold = timestamp(T0 + 0.7), timestamp(T0 + 0.7 + DEADLINE)
    assert read(status(written)) == dict.fromkeys(PAST, min(written, now)) | {HELD: min(written, hold)}


def test_a_time_that_was_put_right_stays_as_it_is() -> None:
    snap = Snapshot(resource=resource().model_copy(update={"status": status(timestamp(T0 + YEAR))}), now=T0 + 0.7)
    once = believed(snap)
    assert believed(replace(once, now=T0 + 60.0)).resource.status == once.resource.status


@pytest.mark.parametrize("phase", ["ComingUp", "Moving", "Analysing", "Promoting", "RollingBack"])
def test_a_clock_that_was_ahead_holds_no_rollout_up(phase: str) -> None:
    """All times of its status lie a year ahead; it ends as it would have, at most a deadline later."""
    world = started()
    failing = phase == "RollingBack"
    world.answer = always(VerdictKind.FAIL if failing else VerdictKind.PASS)
    world.edit(resource(speculation__depth=2))
    world.run(lambda w: w.resource.status.rollout.phase == phase)
    ahead = world.resource.status.model_dump(mode="json", by_alias=True)
    for path, _ in list(times(ahead)):
        *heads, last = path.split(".")
        at: Any = ahead
        for head in heads:
            at = at[int(head) if isinstance(at, list) else head]
        at[last] = timestamp(T0 + YEAR)
    moved = SpecDecodeDeploymentStatus.model_validate(ahead)
    world.resource = world.resource.model_copy(update={"status": moved})
    world.step()
    assert max(time for _, time in times(world.resource.status.model_dump(mode="json"))) < timestamp(T0 + YEAR)
    world.run(lambda w: bool(w.resource.status.rejected) if failing else serving(w) and len(w.arms) == 1)


def test_a_held_start_waits_no_longer_than_it_could_have_been_held() -> None:
    spec = {"rollout__analysis": {"deadline": "5m"}}
    world = started(**spec)
    held = world.resource.status.rollout.model_copy(update={"held_until": timestamp(T0 + YEAR)})
    world.resource = world.resource.model_copy(
        update={"status": world.resource.status.model_copy(update={"rollout": held})}
    )
    world.edit(resource(speculation__depth=2, **spec))
    world.run(lambda w: w.resource.status.canary is not None, limit=2 + int(300.0 / world.tick_seconds))


def pod(ordinal: int | None, **fields: Any) -> PodObserved:
    return PodObserved(name=f"p-{ordinal}", uid=f"{ordinal}", ordinal=ordinal, ready=True, **fields)


@pytest.mark.parametrize(
    ("of", "size", "backends"),
    [
        (RoleObserved(), 0, None),
        (RoleObserved(exists=True, replicas=2, pods=(pod(0), pod(3))), 2, None),
        (RoleObserved(pods=(pod(0), pod(1), pod(2))), 3, None),
        (RoleObserved(pods=(pod(3),)), 4, None),
        (RoleObserved(pods=(pod(0), pod(1, terminating=True))), 1, None),
        (RoleObserved(pods=(pod(0, terminating=True),)), 0, None),
        (RoleObserved(pods=(pod(0), pod(None))), 1, None),
        (RoleObserved(pods=(pod(1_700_000_000),)), MOST_REPLICAS, None),
        (RoleObserved(pods=(pod(None, backends=(1, 3)), pod(None, backends=(1, 4)))), 2, (1, 4)),
        (RoleObserved(pods=(pod(None), pod(None, terminating=True, backends=(1, 4)))), 1, None),
    ],
)
def test_a_missing_workload_is_what_its_pods_tell(
    of: RoleObserved, size: int, backends: tuple[int, int] | None
) -> None:
    roles: tuple[Role, ...] = ("prefill", "decode", "router")
    for role in roles:
        given_as: dict[str, Any] = {role: of}
        arm = ArmObserved(1, **given_as)
        seen = believed(Snapshot(resource=resource(), now=T0, arms={1: arm})).arms[1].role(role)
        assert (seen.replicas, seen.backends, seen.exists, seen.pods) == (size, backends, of.exists, of.pods)


@pytest.mark.parametrize(("listed", "size"), [(0, 2), (2, 2), (3, 3), (9, 3)])
def test_a_pod_that_ends_while_routers_list_it_is_on_its_way_back(listed: int, size: int) -> None:
    decode = RoleObserved(pods=(pod(0), pod(1), pod(2, terminating=True)))
    router = RoleObserved(exists=True, replicas=1, pods=(pod(None, backends=(1, listed), terminating=True),))
    arm = ArmObserved(1, decode=decode, router=router)
    assert believed(Snapshot(resource=resource(), now=T0, arms={1: arm})).arms[1].decode.replicas == size


SURGE: dict[str, dict[str, Any]] = {
    "surge": {},
    "no surge": {"rollout__capacity": {r: {"maxSurge": 0, "maxUnavailable": 1} for r in ("prefill", "decode")}},
    "gateway": {"traffic": {"gateway": {"parentRefs": [{"name": "g"}]}}},
}


def alone(**spec: Any) -> World:
    return started(**spec)


def in_canary(step: int, kind: VerdictKind = VerdictKind.INCONCLUSIVE, **spec: Any) -> World:
    world = started(**spec)
    world.answer = lambda _, at: always(kind if at >= step else VerdictKind.PASS)(0, 0)
    world.edit(resource(speculation__depth=2, **spec))
    phase = "RollingBack" if kind is VerdictKind.FAIL else "Analysing"
    return world.run(lambda w: w.resource.status.rollout.phase == phase and w.resource.status.rollout.step == step)


@pytest.mark.parametrize("spec", SURGE.values(), ids=list(SURGE))
@pytest.mark.parametrize("moment", ["alone", "step 1", "step 2", "going back"])
@pytest.mark.parametrize("role", ["prefill", "decode", "router"])
@pytest.mark.parametrize("revision", [1, 2])
def test_a_missing_workload_is_written_again_at_its_size(
    spec: dict[str, Any], moment: str, role: str, revision: int
) -> None:
    """All else as if it had been there: at every moment the plan is the one that it would have been."""
    worlds = []
    for missing in (False, True):
        world = {
            "alone": lambda: alone(**spec),
            "step 1": lambda: in_canary(1, **spec),
            "step 2": lambda: in_canary(2, **spec),
            "going back": lambda: in_canary(2, VerdictKind.FAIL, **spec),
        }[moment]()
        if revision in world.arms:
            world.arms[revision][role].missing = missing
        world.checks = list(ALL)
        worlds.append((world.step(), world))
    (whole, before), (found, after) = worlds
    assert found.arms == whole.arms
    assert after.asked() == before.asked()


def test_an_autoscaler_s_workload_is_made_again_with_the_pods_that_it_had() -> None:
    """Without a number it would be made with one Pod; with one that exists the number is nobody's but its own."""
    spec = {"topology__decode": {"maxReplicas": 6}}
    world = started(**spec)
    decode = world.arms[1]["decode"]
    decode.replicas = 4
    world.run(lambda w: w.observed()[1].decode.ready == 4)
    decode.missing = True
    assert [target.decode for target in world.step().arms] == [4]
    assert (decode.replicas, decode.missing) == (4, False)
    assert [target.decode for target in world.step().arms] == [None]


@pytest.mark.parametrize("stray", [False, True])
def test_a_retired_revision_whose_workload_is_missing_still_helps_out(stray: bool) -> None:
    """Stable has lost Pods, so those of the old revision stay; they alone may be counted on."""
    world = started()
    arm = world.seen()[1]
    pods = (*arm.decode.pods[:2], *((pod(None),) if stray else ()))
    old = ArmObserved(1, prefill=arm.prefill, decode=RoleObserved(pods=pods))
    serving_arm = replace(arm, revision=2, decode=replace(arm.decode, pods=arm.decode.pods[:1]))
    status = world.resource.status
    assert status.stable is not None
    stable = status.stable.model_copy(update={"revision": 2})
    world.resource = world.resource.model_copy(update={"status": status.model_copy(update={"stable": stable})})
    newer = replace(world.records[0], number=2)
    snap = replace(world.snapshot(), arms={1: old, 2: serving_arm}, records=(*world.records, newer))
    kept = {target.revision: target for target in plan(snap).arms}[1]
    assert kept.decode == 2
