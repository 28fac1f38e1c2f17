"""Breaches of invariants 1 and 2 are found, and nothing else is taken for one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specdecode.api import names
from tests.bed.api import Json
from tests.bed.audit import Request
from tests.bed.invariants import Breach, Recorded, State, capacity, joins, judge
from tests.unit.bed.objects import NAME, NAMESPACE, engines, entry, pod, resource, route, routers, service

KINDS: dict[names.Role, str] = {"prefill": "StatefulSet", "decode": "StatefulSet", "router": "Deployment"}
ENGINES: tuple[names.Role, ...] = ("prefill", "decode")
Counts = dict[str, tuple[int, int, int]]


def state(sdd: Json, *, ready: Counts, wanted: Counts | None = None, more: Sequence[Json] = ()) -> State:
    """A state from counts such as {"1": (2, 4, 2)}: prefill, decode and router Pods that are ready, by revision.

    Workloads want as many, or what `wanted` says.
    """
    found = State()
    found = found.put(("SpecDecodeDeployment", NAMESPACE, NAME), sdd)
    for revision, counts in ready.items():
        for role, count, want in zip(KINDS, counts, (wanted or ready)[revision], strict=True):
            number = int(revision)
            obj = routers(number, want) if role == "router" else engines(role, number, want)
            found = found.put((KINDS[role], NAMESPACE, obj["metadata"]["name"]), obj)
            for at in range(count):
                one = pod(role, number, at)
                found = found.put(("Pod", NAMESPACE, one["metadata"]["name"]), one)
    for obj in more:
        found = found.put(("Pod", NAMESPACE, obj["metadata"]["name"]), obj)
    return found


def broken(before: State, kind: str, obj: Json) -> list[str]:
    return capacity(before, before.put((kind, NAMESPACE, obj["metadata"]["name"]), obj), NAMESPACE, NAME)


# The worked example: 2 prefill, 4 decode, maxSurge 1, maxUnavailable 0


@pytest.mark.parametrize(
    ("ready", "kind", "obj"),
    [
        pytest.param({"1": (2, 4, 2)}, "StatefulSet", engines("decode", 2, 1), id="canary comes up"),
        pytest.param({"1": (2, 4, 9), "2": (1, 1, 0)}, "Deployment", routers(2, 1), id="step 1: 10 percent"),
        pytest.param({"1": (2, 4, 9), "2": (1, 1, 1)}, "Deployment", routers(1, 3), id="step 2: 25 of 50 percent"),
        pytest.param({"1": (2, 4, 3), "2": (1, 1, 1)}, "StatefulSet", engines("decode", 1, 3), id="stable gives one"),
        pytest.param({"1": (2, 3, 3), "2": (1, 1, 1)}, "StatefulSet", engines("decode", 2, 2), id="canary grows"),
        pytest.param({"1": (2, 3, 3), "2": (1, 2, 1)}, "Deployment", routers(2, 3), id="step 2: 50 percent"),
        pytest.param({"1": (0, 0, 0), "2": (2, 4, 2)}, "StatefulSet", engines("decode", 1, 0), id="nothing changes"),
        pytest.param({"1": (2, 4, 2), "2": (1, 1, 1)}, "Deployment", routers(2, 0), id="fail at step 1"),
    ],
)
def test_the_worked_example_breaks_nothing(ready: Counts, kind: str, obj: Json) -> None:
    assert broken(state(resource(), ready=ready), kind, obj) == []


@pytest.mark.parametrize(
    ("ready", "kind", "obj", "words"),
    [
        pytest.param(
            {"1": (2, 4, 2), "2": (1, 0, 0)}, "StatefulSet", engines("decode", 1, 3), "decode Pods fall from 4 to 3",
            id="shrunk before the canary has grown",
        ),
        pytest.param(
            {"1": (2, 4, 2)}, "StatefulSet", engines("decode", 2, 2), "decode Pods rise from 4 to 6, above 5",
            id="beyond the surge",
        ),
        pytest.param(
            {"1": (2, 4, 2), "2": (1, 1, 0)}, "Deployment", routers(2, 1), "weight 0.333 and carries 0.250",
            id="too few of stable's routers beside it",
        ),
        pytest.param(
            {"1": (2, 4, 9), "2": (1, 1, 1)}, "Deployment", routers(1, 1), "weight 0.500 and carries 0.250",
            id="weight by taking stable's routers away",
        ),
        pytest.param(
            {"1": (2, 4, 9), "2": (0, 1, 0)}, "Deployment", routers(2, 1), "weight 0.100 and carries 0.000",
            id="without a prefill Pod it carries nothing",
        ),
        pytest.param(
            {"1": (2, 3, 3), "2": (1, 2, 1)}, "StatefulSet", engines("decode", 1, 2), "needs 3",
            id="stable below what its weight needs",
        ),
        pytest.param(
            {"1": (2, 3, 2), "2": (1, 2, 2)}, "StatefulSet", engines("decode", 2, 1), "carries 0.250",
            id="the canary shrunk before its weight",
        ),
    ],
)  # fmt: skip
def test_a_write_that_breaks_invariant_1_is_named(ready: Counts, kind: str, obj: Json, words: str) -> None:
    assert words in "; ".join(broken(state(resource(), ready=ready), kind, obj))


def test_ready_routers_count_for_the_weight_and_not_those_that_are_wanted() -> None:
    coming = state(resource(), ready={"1": (2, 4, 2), "2": (1, 1, 0)}, wanted={"1": (2, 4, 9), "2": (1, 1, 0)})
    assert "weight 0.333" in "; ".join(broken(coming, "Deployment", routers(2, 1)))


def test_what_is_below_already_is_no_breach_unless_a_write_widens_it() -> None:
    ill = state(resource(), ready={"1": (2, 2, 2), "2": (1, 1, 0)}, wanted={"1": (2, 4, 2), "2": (1, 1, 0)})
    assert broken(ill, "Deployment", routers(1, 3)) == []
    assert "fall from 3 to 2" in "; ".join(broken(ill, "StatefulSet", engines("decode", 2, 0)))


def test_terminating_pods_count_for_the_surge() -> None:
    going = [pod("decode", 1, 3, going=True)]
    draining = state(resource(), ready={"1": (2, 3, 3), "2": (1, 1, 1)}, more=going)
    assert "rise from 5 to 6" in "; ".join(broken(draining, "StatefulSet", engines("decode", 2, 2)))


def test_a_failure_by_errors_leaves_the_canary_no_weight() -> None:
    failed = state(resource(by_errors=True), ready={"1": (2, 3, 3), "2": (1, 2, 1)})
    assert broken(failed, "Deployment", routers(2, 0)) == []
    assert "failed by errors" in "; ".join(broken(failed, "Deployment", routers(2, 2)))


def test_max_unavailable_lets_a_role_shrink_first() -> None:
    tight = state(resource(surge=0, unavailable=1), ready={"1": (2, 4, 2)})
    assert broken(tight, "StatefulSet", engines("decode", 1, 3)) == []
    assert broken(tight, "StatefulSet", engines("decode", 1, 2)) != []


@pytest.mark.parametrize(("surge", "allowed"), [("25%", 1), ("26%", 2), ("100%", 4), ("0%", 0)])
def test_percentages_round_up_for_surge(surge: str, allowed: int) -> None:
    before = state(resource(surge=surge, unavailable=1), ready={"1": (2, 4, 2)})
    found = [broken(before, "StatefulSet", engines("decode", 2, count)) == [] for count in range(1, 6)]
    assert found == [count <= allowed for count in range(1, 6)]


def test_an_http_routes_weight_is_held_against_what_the_canary_carries() -> None:
    with_route = state(resource(), ready={"1": (2, 4, 2), "2": (1, 1, 1)}).put(
        ("HTTPRoute", NAMESPACE, NAME), route(llm_1=90, llm_2=10)
    )
    assert broken(with_route, "HTTPRoute", route(llm_1=75, llm_2=25)) == []
    assert "weight 0.300" in "; ".join(broken(with_route, "HTTPRoute", route(llm_1=70, llm_2=30)))


def test_a_first_roll_out_has_no_weights_to_judge() -> None:
    first = state(resource(stable=None, canary=1), ready={"1": (2, 0, 0)})
    assert broken(first, "Deployment", routers(1, 2)) == []


def test_a_role_that_an_autoscaler_sizes_has_no_bounds() -> None:
    scaled = state(resource(decode=None), ready={"1": (2, 4, 2)})
    assert broken(scaled, "StatefulSet", engines("decode", 1, 1)) == []


# Invariant 2


OWN = f"--prefill=http://{NAME}-2-prefill-0.{NAME}-2-prefill:8000"
FOREIGN = f"--prefill=http://{NAME}-1-prefill-0.{NAME}-1-prefill:8000"
REVISION_2 = names.labels(NAME, 2)


@pytest.mark.parametrize(
    ("kind", "obj"),
    [
        ("Service", entry()),
        ("Service", service(f"{NAME}-2", REVISION_2, names.labels(NAME, 2, "router"))),
        ("Deployment", routers(2, 1, OWN)),
        ("StatefulSet", engines("decode", 2, 1, env=f"{NAME}-2-decode")),
        ("StatefulSet", engines("decode", 2, 1, env=f"other-{NAME}-1-decode")),
        ("HTTPRoute", route(llm_1=90, llm_2=10)),
        ("ConfigMap", {"metadata": {"name": "c", "labels": REVISION_2}, "data": {"a": OWN}}),
    ],
)
def test_what_keeps_to_one_revision_joins_nothing(kind: str, obj: Json) -> None:
    assert joins(kind, obj, NAME) == []


@pytest.mark.parametrize(
    ("kind", "obj", "words"),
    [
        ("Service", service(NAME, {}, {names.LABEL_DEPLOYMENT: NAME}), "does not keep to router Pods"),
        ("Service", service(f"{NAME}-2", REVISION_2, names.labels(NAME, 1, "router")), "keep to revision 2"),
        ("Service", service(f"{NAME}-2", REVISION_2, {names.LABEL_ROLE: "decode"}), "keep to this deployment"),
        ("Deployment", routers(2, 1, OWN, FOREIGN), "names Pods of revision 1"),
        ("StatefulSet", engines("decode", 2, 1, env=f"http://{NAME}-1-prefill-0:8000"), "names Pods of revision 1"),
        ("HTTPRoute", route(llm_1_decode=100), "backend llm-1-decode"),
        ("ConfigMap", {"metadata": {"name": "c", "labels": REVISION_2}, "data": {"a": FOREIGN}}, "revision 1"),
    ],
)
def test_what_joins_two_revisions_is_named(kind: str, obj: Json, words: str) -> None:
    assert words in "; ".join(joins(kind, obj, NAME))


# Writes among changes


def seen(at: float, version: int, kind: str, obj: Json, type_: str = "ADDED") -> Recorded:
    return Recorded(at, type_, kind, obj | {"metadata": obj["metadata"] | {"resourceVersion": str(version)}})


def write(at: float, version: int | None, resource_: str, obj: Json, verb: str = "patch") -> Request:
    answer = (
        {"kind": "Status"}
        if version is None
        else obj | {"metadata": obj["metadata"] | {"resourceVersion": str(version)}}
    )
    return Request(at, at, "operator", verb, resource_, "", NAMESPACE, obj["metadata"]["name"], 200, None, answer)


def history() -> list[Recorded]:
    found = [seen(0.0, 1, "SpecDecodeDeployment", resource())]
    for at, role in enumerate(ENGINES):
        found.append(seen(0.0, 10 + at, "StatefulSet", engines(role, 1, 4 if role == "decode" else 2)))
    found += [seen(0.0, 20 + at, "Pod", pod("decode", 1, at)) for at in range(4)]
    return found


def canary_of_one() -> list[Recorded]:
    return [
        seen(1.0, 30, "StatefulSet", engines("decode", 2, 1)),
        seen(2.0, 31, "Pod", pod("decode", 2, 0)),
    ]


def test_a_write_is_judged_by_what_was_there_before_it() -> None:
    shrunk = write(10.0, 50, "statefulsets", engines("decode", 1, 3))
    what = "ready decode Pods fall from 4 to 3, below 4"
    assert judge(history(), [shrunk]) == [Breach(10.0, 1, f"patch StatefulSet {NAMESPACE}/{NAME}-1-decode", what)]
    grown = [*history(), *canary_of_one()]
    assert judge(grown, [shrunk]) == []
    too_early = write(10.0, 29, "statefulsets", engines("decode", 1, 3))
    assert [found.what for found in judge(grown, [too_early])] == [what]


def test_a_pod_that_fell_ill_just_before_is_no_breach() -> None:
    shrunk = write(10.0, 50, "statefulsets", engines("decode", 1, 3))
    for fell, breaches in ((9.5, 0), (8.5, 1)):
        ill = seen(fell, 40, "Pod", pod("decode", 2, 0, ready=False), "MODIFIED")
        assert len(judge([*history(), *canary_of_one(), ill], [shrunk])) == breaches


def test_a_deletion_is_found_by_the_change_that_it_made() -> None:
    gone = seen(10.05, 50, "StatefulSet", engines("decode", 1, 4), "DELETED")
    asked = write(10.0, None, "statefulsets", engines("decode", 1, 4), "delete")
    assert "fall from 4 to 0" in judge([*history(), gone], [asked])[0].what


def test_a_joined_router_is_a_breach_of_invariant_2() -> None:
    found = judge(history(), [write(3.0, 40, "deployments", routers(2, 0, FOREIGN))])
    assert [(breach.invariant, breach.what) for breach in found] == [(2, "it names Pods of revision 1")]


def test_writes_to_other_things_and_status_are_not_judged() -> None:
    other = write(3.0, 40, "leases", entry())
    status = Request(3.0, 3.0, "operator", "patch", "statefulsets", "status", NAMESPACE, "x", 200, None, None)
    assert judge(history(), [other, status]) == []
