"""The node that is up, or one for the session; tests run within its network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node import models, product, release
from tests.node import node as nodes
from tests.node.deployment import Deployment, manifest, serving
from tests.node.models import Models
from tests.node.node import Node, Outside
from tests.node.settings import STAND_IN_IMAGE
from tests.node.workshop import Workshop


@pytest.fixture(scope="session")
def entered() -> Iterator[tuple[Node, Outside]]:
    """A node, whose network this process is in, and the way out of it. One that was up before stays up."""
    before = Node.running()
    running = before or nodes.up()
    try:
        with running.network() as outside:
            yield running, outside
    finally:
        if before is None:
            nodes.down()


@pytest.fixture(scope="session")
def node(entered: tuple[Node, Outside]) -> Node:
    """The node; this process is in its network."""
    return entered[0]


@pytest.fixture(scope="session")
def outside(entered: tuple[Node, Outside]) -> Outside:
    """What needs the machine's own network runs within it."""
    return entered[1]


@pytest.fixture
def workshop(node: Node, request: pytest.FixtureRequest) -> Iterator[Workshop]:
    """A namespace of the test's own with restricted Pod security."""
    with Workshop(node, request.node.name) as made:
        yield made


@pytest.fixture(scope="session")
def operator(node: Node, outside: Outside) -> Node:
    """The node, with the operator installed by its chart."""
    with outside:
        archives = product.ensure(product.OPERATOR, product.ROUTER)
    for archive in archives:
        node.ctr.load(archive)
    release.install(node)
    return node


@pytest.fixture(scope="session")
def vllm(operator: Node, outside: Outside) -> Node:
    """The node, with vLLM's image loaded too."""
    with outside:
        archives = product.ensure(product.VLLM)
    for archive in archives:
        operator.ctr.load(archive)
    return operator


@pytest.fixture(scope="session")
def weights(node: Node) -> Models:
    """Checkpoints on the node's disk."""
    return models.make()


@pytest.fixture
def light(operator: Node, workshop: Workshop, weights: Models) -> Iterator[Deployment]:
    """1 prefill, 1 decode and 1 router Pod that serve, with stand-ins for vLLM."""
    models.claim_all(operator, workshop.name, weights)
    with serving(operator, manifest(workshop.name, STAND_IN_IMAGE)) as deployment:
        yield deployment
