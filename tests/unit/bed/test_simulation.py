"""The simulated requests have the means that the scenario says, whatever the noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bed.fleet.scenario import Behaviour, Traffic
from tests.bed.fleet.simulation import Engine, EngineCounters, Histogram, Proxy, Simulation

TRAFFIC = Traffic.model_validate({"life": {"median": 2.0, "sigma": 0.5}})


def run(
    behaviour: Behaviour, depth: int, *, count: int = 4000, empty: bool = False, seconds: float = 60.0
) -> Simulation:
    simulation = Simulation(np.random.default_rng(7))
    simulation.engines["d"] = Engine(depth, behaviour, empty, EngineCounters(0.0))
    simulation.proxies["r"] = Proxy()
    simulation.arrive(TRAFFIC, ["r"], np.array([1.0]), {"r": ["d"]}, count)
    for _ in range(int(seconds / 0.1)):
        simulation.advance(0.1)
    return simulation


@pytest.mark.parametrize("concentration", [None, 30.0, 3.0])
def test_positions_are_accepted_as_the_scenario_says(concentration: float | None) -> None:
    wanted = [0.8, 0.6, 0.45]
    counters = run(Behaviour(acceptance=wanted, concentration=concentration), 3).engines["d"].counters
    assert counters.drafts > 100_000
    assert counters.draft_tokens == 3 * counters.drafts
    # 4,000 requests with a standard deviation of at most 0.2 each: 5 standard errors are below 0.02
    assert counters.accepted[:3] / counters.drafts == pytest.approx(wanted, abs=0.02)
    assert counters.accepted[3:].sum() == 0


def test_noise_between_requests_widens_the_spread_of_a_pods_acceptance() -> None:
    def spread(concentration: float | None) -> float:
        found = []
        for seed in range(40):
            simulation = Simulation(np.random.default_rng(seed))
            behaviour = Behaviour(acceptance=[0.7], concentration=concentration)
            simulation.engines["d"] = Engine(1, behaviour, False, EngineCounters(0.0))
            simulation.proxies["r"] = Proxy()
            simulation.arrive(TRAFFIC, ["r"], np.array([1.0]), {"r": ["d"]}, 20)
            for _ in range(50):
                simulation.advance(0.5)
            counters = simulation.engines["d"].counters
            found.append(counters.accepted[0] / counters.drafts)
        return float(np.std(found))

    assert spread(3.0) > 3 * spread(None)


def test_drafts_come_at_their_rate() -> None:
    simulation = Simulation(np.random.default_rng(1))
    simulation.engines["d"] = Engine(3, Behaviour(draft_rate=20.0), False, EngineCounters(0.0))
    simulation.proxies["r"] = Proxy()
    long = Traffic.model_validate({"life": {"median": 1000.0, "sigma": 0.0}})
    simulation.arrive(long, ["r"], np.array([1.0]), {"r": ["d"]}, 50)
    for _ in range(100):
        simulation.advance(0.1)
    assert simulation.engines["d"].counters.drafts == pytest.approx(50 * 20 * 10, rel=0.02)
    assert simulation.engines["d"].counters.running == 50


def test_every_request_ends_once_and_is_counted_at_its_router_and_engine() -> None:
    simulation = run(Behaviour(), 3, count=500)
    counters, proxy = simulation.engines["d"].counters, simulation.proxies["r"].counters
    assert len(simulation) == 0
    assert counters.running == proxy.active == 0
    assert proxy.total == proxy.classes[2] == sum(counters.finished.values()) == 500
    assert counters.latency.counts.sum() == proxy.time.counts.sum() == 500
    assert proxy.time.total == pytest.approx(counters.latency.total * 1000)


def test_generation_is_one_token_a_draft_and_one_for_each_accepted() -> None:
    counters = run(Behaviour(), 3, count=200).engines["d"].counters
    assert counters.generation_tokens == counters.drafts + int(counters.accepted.sum())


def test_failing_requests_draft_nothing_and_end_as_5xx() -> None:
    simulation = run(Behaviour(failing=1.0), 3, count=300, empty=True)
    counters, proxy = simulation.engines["d"].counters, simulation.proxies["r"].counters
    assert counters.drafts == counters.generation_tokens == 0
    assert counters.finished["error"] == proxy.classes[5] == 300


def test_a_share_of_requests_fails() -> None:
    proxy = run(Behaviour(failing=0.3), 3, count=4000).proxies["r"].counters
    assert proxy.classes[5] / 4000 == pytest.approx(0.3, abs=0.04)


def test_the_padded_first_step_is_one_empty_draft_a_request() -> None:
    with_, without = (run(Behaviour(concentration=None), 3, count=300, empty=empty) for empty in (True, False))
    more = with_.engines["d"].counters.drafts - without.engines["d"].counters.drafts
    assert more == pytest.approx(300, abs=60)  # both drew their lives from the same stream, roughly
    counters = with_.engines["d"].counters
    assert counters.generation_tokens == counters.drafts - 300 + int(counters.accepted.sum())


def test_without_speculation_requests_run_and_draft_nothing() -> None:
    for simulation in (run(Behaviour(), 0, count=50), run(Behaviour(drafting=False), 3, count=50)):
        counters = simulation.engines["d"].counters
        assert counters.drafts == 0
        assert counters.generation_tokens > 0
        assert counters.finished["error"] == 0


def test_without_an_engine_behind_its_router_a_request_fails() -> None:
    simulation = Simulation(np.random.default_rng(1))
    simulation.proxies["r"] = Proxy()
    simulation.arrive(TRAFFIC, ["r"], np.array([1.0]), {"r": []}, 10)
    simulation.advance(0.1)
    assert simulation.proxies["r"].counters.classes[5] == 10


def test_what_runs_on_a_pod_that_goes_is_drained() -> None:
    simulation = Simulation(np.random.default_rng(1))
    simulation.engines["d"] = Engine(3, Behaviour(), False, EngineCounters(0.0))
    simulation.proxies["r"] = Proxy()
    simulation.arrive(TRAFFIC, ["r"], np.array([1.0]), {"r": ["d"]}, 10)
    simulation.advance(0.01)
    simulation.forget_engine("d")
    simulation.advance(0.01)
    assert simulation.proxies["r"].counters.classes[2] == 10
    assert len(simulation) == 0


def test_routers_are_chosen_by_their_shares() -> None:
    simulation = Simulation(np.random.default_rng(1))
    for name in ("a", "b"):
        simulation.proxies[name] = Proxy()
    simulation.arrive(TRAFFIC, ["a", "b"], np.array([0.9, 0.1]), {"a": [], "b": []}, 5000)
    assert simulation.proxies["b"].counters.total / 5000 == pytest.approx(0.1, abs=0.02)


@settings(max_examples=25, deadline=None)
@given(
    positions=st.lists(st.floats(0, 1), min_size=1, max_size=6).map(lambda found: sorted(found, reverse=True)),
    depth=st.integers(0, 8),
    failing=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_counters_are_such_as_an_engine_can_have(positions: list[float], depth: int, failing: float) -> None:
    behaviour = Behaviour(acceptance=positions, failing=failing)
    counters = run(behaviour, depth, count=30, empty=True, seconds=3).engines["d"].counters
    accepted = counters.accepted.tolist()
    assert accepted == sorted(accepted, reverse=True)
    assert accepted[0] <= counters.drafts
    assert counters.draft_tokens == counters.drafts * depth
    assert all(count == 0 for count in accepted[depth:])


def test_a_histogram_counts_into_the_first_bucket_that_holds_the_value() -> None:
    found = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        found.observe(value)
    assert found.counts.tolist() == [2, 1, 1]
    assert found.total == 6.0
