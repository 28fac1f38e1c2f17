"""The design's invariants over random sequences of edits, Pod events and verdicts, and that every rollout ends."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from specdecode.acceptance.types import Reason, Verdict, VerdictKind
from specdecode.api import SpecDecodeDeployment
from specdecode.rollout.capacity import first_step_faults
from specdecode.rollout.planner import plan

from .checks import ALL
from .world import SimPod, World, resource, serving, verdict

# A sequence that breaks an invariant is told in full by its events; shrinking one would take minutes.
SLOW = settings(
    max_examples=settings().max_examples // 2,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

COUNTS = st.one_of(st.integers(0, 3), st.sampled_from(["0%", "10%", "25%", "50%", "100%"]))
CAPACITY = st.fixed_dictionaries({"maxSurge": COUNTS, "maxUnavailable": COUNTS})
STEPS = st.lists(st.integers(1, 99), max_size=4, unique=True).map(
    lambda weights: [{"weight": w} for w in (*sorted(weights), 100)]
)
ANSWERS = st.sampled_from([VerdictKind.PASS, VerdictKind.INCONCLUSIVE, VerdictKind.NO_DATA, VerdictKind.FAIL])


@st.composite
def specs(draw: st.DrawFn, most: int = 8) -> dict[str, Any]:
    found: dict[str, Any] = {
        "topology__prefill__replicas": draw(st.integers(1, most)),
        "topology__decode__replicas": draw(st.integers(1, most)),
        "topology__router__replicas": draw(st.integers(1, 4)),
        "rollout__steps": draw(STEPS),
        "rollout__capacity": {"prefill": draw(CAPACITY), "decode": draw(CAPACITY)},
        "rollout__promotionDelay": draw(st.sampled_from(["0s", "30s"])),
        "rollout__progressDeadline": "10m",
    }
    if draw(st.booleans()):
        found["traffic__gateway"] = {"parentRefs": [{"name": "g"}]}
    return found


def pods(world: World) -> list[SimPod]:
    return [p for arm in world.arms.values() for role, w in sorted(arm.items()) if role != "router" for p in w.pods]


@SLOW
@given(st.data())
def test_invariants_hold_at_every_write(data: st.DataObject) -> None:
    world = World(
        resource(**data.draw(specs())),
        start_delay=data.draw(st.integers(0, 3)),
        drain=data.draw(st.integers(1, 4)),
        checks=list(ALL),
    )
    said: dict[str, Verdict] = {"now": verdict(VerdictKind.PASS)}
    world.answer = lambda _, __: said["now"]
    for _ in range(data.draw(st.integers(5, 60))):
        event = data.draw(
            st.sampled_from(["none", "none", "none", "edit", "resize", "kill", "break", "heal", "verdict", "miss"])
        )
        if event == "edit":
            depth = data.draw(st.integers(1, 4))
            world.edit(resource(**data.draw(specs()), speculation__depth=depth))
        elif event == "resize":
            world.edit(_resized(world.resource, data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))))
        elif event in ("kill", "break", "heal") and (there := pods(world)):
            pod = there[data.draw(st.integers(0, len(there) - 1))]
            if event == "kill":
                pod.dying_since = pod.dying_since if pod.dying_since is not None else world.t
            pod.down = event == "break"
        elif event == "miss" and (works := [w for arm in world.arms.values() for w in arm.values() if w.exists]):
            works[data.draw(st.integers(0, len(works) - 1))].missing = True
        elif event == "verdict":
            said["now"] = verdict(data.draw(ANSWERS), Reason.ACCEPTANCE_FELL, by_errors=data.draw(st.booleans()))
        world.step()


def _resized(old: SpecDecodeDeployment, prefill: int, decode: int) -> SpecDecodeDeployment:
    topology = old.spec.topology
    assert topology.prefill is not None
    sized = topology.model_copy(
        update={
            "prefill": topology.prefill.model_copy(update={"replicas": prefill}),
            "decode": topology.decode.model_copy(update={"replicas": decode}),
        }
    )
    return old.model_copy(update={"spec": old.spec.model_copy(update={"topology": sized})})


@settings(parent=SLOW, max_examples=settings().max_examples // 4)
@given(spec=specs(most=64), by_errors=st.booleans(), fails_at=st.integers(1, 5))
@example(
    # The only decode Pod goes to the canary before prefill gives way: routers that can't answer still follow.
    spec={
        "topology__prefill__replicas": 54,
        "topology__decode__replicas": 1,
        "topology__router__replicas": 3,
        "rollout__steps": [{"weight": 100}],
        "rollout__capacity": {
            "prefill": {"maxSurge": 0, "maxUnavailable": "50%"},
            "decode": {"maxSurge": 0, "maxUnavailable": 1},
        },
    },
    by_errors=True,
    fails_at=1,
)
def test_every_rollout_that_may_start_ends(spec: dict[str, Any], by_errors: bool, fails_at: int) -> None:
    """With Pods that start and a Pass at every step it is promoted; with a Fail it is rolled back to all of stable."""
    # A revision that is promoted the moment it has all traffic can't fail there.
    spec["rollout__promotionDelay"] = "10m"
    for fail in (False, True):
        world = World(resource(**spec), start_delay=1, drain=1, tick_seconds=40.0, checks=list(ALL)).run(serving)
        target = resource(**spec, speculation__depth=2)
        world.edit(target)
        steps = len(target.spec.rollout.steps)

        def answer(_: int, step: int, steps: int = steps, fail: bool = fail) -> Verdict:
            failing = fail and step == min(fails_at, steps)
            kind = VerdictKind.FAIL if failing else VerdictKind.PASS
            return verdict(kind, Reason.ACCEPTANCE_FELL, by_errors=by_errors)

        world.answer = answer
        if first_step_faults(target.spec):
            for _ in range(5):
                world.step()
            conditions = {c.type: c for c in world.resource.status.conditions}
            assert conditions["Stalled"].reason == "SurgeTooSmall"
            assert conditions["Available"].status == "True"
            continue
        whole = world.row().split()[0]
        if fail:
            world.run(lambda w: bool(w.resource.status.rejected) and w.row() == whole, limit=1500)  # noqa: B023
            assert world.resource.status.stable is not None
            assert world.resource.status.stable.revision == 1
        else:
            world.run(lambda w: serving(w) and len(w.arms) == 1, limit=1500)
            assert world.resource.status.stable is not None
            assert world.resource.status.stable.revision == 2


@SLOW
@given(st.data())
def test_a_restart_anywhere_changes_nothing(data: st.DataObject) -> None:
    """The planner has no memory but status: planning from what was written down gives what planning on would."""
    spec = data.draw(specs())
    world = World(resource(**spec), checks=list(ALL))
    world.edit(resource(**spec, speculation__depth=2))
    for _ in range(data.draw(st.integers(1, 50))):
        snapshot = world.snapshot()
        written = SpecDecodeDeployment.parse(snapshot.resource.model_dump(by_alias=True, mode="json"))
        assert plan(snapshot).arms == plan(_with(snapshot, written)).arms
        world.step()


def _with(snapshot: Any, written: SpecDecodeDeployment) -> Any:
    from dataclasses import replace

    return replace(snapshot, resource=written)


@SLOW
@given(st.data())
def test_no_data_never_decides(data: st.DataObject) -> None:
    """Invariant 3: without data a canary is neither promoted nor taken away, whatever else happens to it."""
    world = World(resource()).run(serving)
    world.answer = lambda _, __: verdict(
        data.draw(st.sampled_from([VerdictKind.NO_DATA, VerdictKind.INCONCLUSIVE])), Reason.NO_TRAFFIC
    )
    world.edit(resource(speculation__depth=2))
    for _ in range(60):
        world.step()
    status = world.resource.status
    assert status.canary is not None
    assert status.canary.revision == 2
    assert status.rollout.step == 1
    assert not status.rejected
