"""Who serves whom, and with what weight, as the objects say."""

from __future__ import annotations

import pytest

from specdecode.api import names
from tests.bed.api import Json
from tests.bed.fleet.routing import Key, Pod, Route, pod_of, routes, selects
from tests.unit.bed.objects import NAME, NAMESPACE, entry, pod, route, service

KEY: Key = (NAMESPACE, NAME)


def view(pods: list[Json], services: list[Json], http: list[Json] | None = None, idle: int | None = None) -> Route:
    known = [found for obj in pods if (found := pod_of(obj)) is not None]
    by_name = {(NAMESPACE, obj["metadata"]["name"]): obj for obj in services}
    by_route = {(NAMESPACE, obj["metadata"]["name"]): obj for obj in http or []}
    return routes(known, by_name, by_route, [(KEY, idle)] if idle else [])[KEY]


def two_revisions(first: int, second: int) -> list[Json]:
    return [pod("router", 1, at) for at in range(first)] + [pod("router", 2, at) for at in range(second)]


def router_service(revision: int) -> Json:
    labels = names.labels(NAME, revision)
    return service(f"{NAME}-{revision}", labels, names.labels(NAME, revision, "router"))


def test_weights_are_the_shares_of_ready_routers() -> None:
    found = view(two_revisions(3, 1), [entry()])
    assert found.weights == {1: 0.75, 2: 0.25}
    assert found.routers[2] == ["router-2-0"]


@pytest.mark.parametrize("gone", [{"ready": False}, {"going": True}])
def test_a_router_that_is_not_ready_or_terminates_takes_nothing(gone: dict[str, bool]) -> None:
    found = view([*two_revisions(1, 0), pod("router", 2, 0, **gone)], [entry()])
    assert found.weights == {1: 1.0}
    assert 2 not in found.routers


def test_without_an_entry_service_nothing_serves() -> None:
    assert view(two_revisions(1, 1), []).weights == {}


def test_a_selector_that_leaves_a_revision_out_ends_its_traffic() -> None:
    only = entry()
    only["spec"]["selector"][names.LABEL_REVISION] = "1"
    found = view(two_revisions(1, 3), [only])
    assert found.weights == {1: 1.0}
    assert 2 not in found.routers


def test_an_http_routes_weights_decide_where_there_is_one() -> None:
    services = [entry(), router_service(1), router_service(2)]
    found = view(two_revisions(3, 3), services, [route(llm_1=90, llm_2=10)])
    assert found.weights == {1: 0.9, 2: 0.1}
    gone = view(two_revisions(3, 0), services, [route(llm_1=90, llm_2=10)])
    assert gone.weights == {1: 1.0}
    assert view(two_revisions(3, 3), services, [route(llm_1=100, llm_2=0)]).weights[2] == 0


def test_an_http_route_reaches_only_services_that_exist() -> None:
    assert view(two_revisions(1, 1), [entry()], [route(llm_1=90, llm_2=10)]).weights == {}


def test_an_idle_revision_gets_nothing() -> None:
    assert view(two_revisions(1, 1), [entry()], idle=2).weights == {1: 1.0}


def test_ready_decode_pods_stand_behind_the_routers_of_their_revision() -> None:
    pods = [
        pod("router", 1, 0),
        pod("decode", 1, 0),
        pod("decode", 1, 1, ready=False),
        pod("decode", 1, 2, going=True),
        pod("decode", 2, 0),
        pod("prefill", 2, 0, ready=False),
    ]
    found = view(pods, [entry()])
    assert found.decodes == {1: ["decode-1-0"], 2: ["decode-2-0"]}
    assert found.prefills == {2}


def test_what_a_pod_says_of_itself() -> None:
    args = ["serve", "--model=org/m", "--revision", "abc", "--speculative-config", '{"num_speculative_tokens": 4}']
    found = pod_of(pod("decode", 3, 1, args=args, env=[{"name": "A", "value": "b"}, {"name": "C"}]))
    assert isinstance(found, Pod)
    assert (found.deployment, found.revision, found.role, found.port) == (KEY, 3, "decode", names.ENGINE_PORT)
    assert (found.subject.depth, found.subject.args["--revision"], found.model) == (4, "abc", "org/m")
    assert found.subject.env == {"A": "b", "C": ""}
    router = pod_of(pod("router", 1, 0))
    assert router is not None
    assert router.port == names.PROXY_METRICS_PORT


def test_other_pods_are_none_of_ours() -> None:
    stranger = pod("decode", 1, 0)
    del stranger["metadata"]["labels"][names.LABEL_REVISION]
    assert pod_of(stranger) is None


def test_a_service_without_a_selector_means_no_pod() -> None:
    assert not selects(None, {"a": "b"})
    assert not selects({}, {"a": "b"})
    assert selects({"a": "b"}, {"a": "b", "c": "d"})
