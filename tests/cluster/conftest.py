"""A control plane for the tests of this folder: one for the session, a namespace for each test."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.bed.audit import requests
from tests.bed.control_plane import OPERATOR, Bed
from tests.bed.fleet import Fleet
from tests.bed.operator_process import OperatorProcess
from tests.bed.recorder import Recorder


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    """A control plane with our CRD and the Gateway API's.

    Its operator has the chart's permissions and no others: at the end it must never have asked for more.
    """
    with Bed() as running:
        running.install_gateway_api()
        running.install_crds()
        yield running
        asked = list(requests(running.audit_log, user=OPERATOR))
        assert [request for request in asked if request.forbidden] == []


@pytest.fixture
def namespace(bed: Bed, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, deleted after it."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    name = bed.namespace(f"{words[:40].rstrip('-')}-{secrets.token_hex(3)}")
    yield name
    if bed.api.find("Namespace", None, name):
        bed.api.delete("Namespace", None, name)


@pytest.fixture(scope="session")
def running_fleet(bed: Bed) -> Iterator[Fleet]:
    with Fleet(bed) as running:
        yield running


@pytest.fixture
def fleet(running_fleet: Fleet) -> Fleet:
    """The fleet of the session, playing the default scenario: healthy Pods and some traffic."""
    running_fleet.play({})
    return running_fleet


@pytest.fixture
def start_operator(bed: Bed) -> Iterator[Callable[..., OperatorProcess]]:
    """Starts the real operator, arguments as of OperatorProcess; what still runs after the test is killed."""
    started: list[OperatorProcess] = []

    def start(*arguments: str, **options: Any) -> OperatorProcess:
        running = OperatorProcess(bed, arguments, name=f"operator-{len(started)}", **options)
        running.start()
        started.append(running)
        return running

    yield start
    for running in started:
        running.kill()


@pytest.fixture
def operator(start_operator: Callable[..., OperatorProcess], request: pytest.FixtureRequest) -> OperatorProcess:
    """The real operator; its arguments by indirect parametrisation: a list of strings."""
    return start_operator(*getattr(request, "param", ()))


@pytest.fixture
def recorder(bed: Bed) -> Iterator[Recorder]:
    """Records all objects from now on, for judging the operator's writes."""
    with Recorder(bed) as running:
        yield running
