"""Time that never goes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specdecode.cluster.clock import Clock

HOUR = 3600.0


class Machine:
    """A machine whose time can be set."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_800_000_000.0, 50.0

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


def clock_of(machine: Machine) -> Clock:
    return Clock(lambda: machine.wall, lambda: machine.steady)


def test_it_is_the_machine_s_time() -> None:
    machine = Machine()
    clock = clock_of(machine)
    machine.wait(12.5)
    assert clock() == machine.wall


def test_set_back_it_goes_on_and_meets_the_machine_s_time_again() -> None:
    machine = Machine()
    clock = clock_of(machine)
    before = clock()
    machine.wall -= HOUR
    machine.wait(5.0)
    assert clock() == before + 5.0
    machine.wall += 2.0 * HOUR
    assert clock() == machine.wall


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(-2.0 * HOUR, 2.0 * HOUR)), max_size=20))
def test_it_grows_by_at_least_what_has_passed(steps: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = clock_of(machine)
    for passed, jump in steps:
        before = clock()
        machine.wait(passed)
        machine.wall += jump
        assert clock() >= before + passed - 1e-6
