"""The node that is up, or one for the session; tests run within its network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node import models, product, release
from tests.node import node as nodes
from tests.node.deployment import Deployment, manifest
from tests.node.models import Models
from tests.node.node import Node
from tests.node.settings import STAND_IN_IMAGE
from tests.node.workshop import Workshop


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A node; this process is in its network. One that was up before stays up."""
    before = Node.running()
    running = before or nodes.up()
    try:
        with running.network():
            yield running
    finally:
        if before is None:
            nodes.down()


@pytest.fixture
def workshop(node: Node, request: pytest.FixtureRequest) -> Iterator[Workshop]:
    """A namespace of the test's own with restricted Pod security."""
    with Workshop(node, request.node.name) as made:
        yield made


@pytest.fixture(scope="session")
def operator(node: Node) -> Node:
    """The node, with the operator installed by its chart."""
    for archive in product.ensure(product.OPERATOR, product.ROUTER):
        node.ctr.load(archive)
    release.install(node)
    return node


@pytest.fixture(scope="session")
def weights(node: Node) -> Models:
    """Checkpoints on the node's disk."""
    return models.make()


@pytest.fixture
def light(operator: Node, workshop: Workshop, weights: Models) -> Iterator[Deployment]:
    """1 prefill, 1 decode and 1 router Pod that serve, with stand-ins for vLLM."""
    models.claim_all(operator, workshop.name, weights)
    deployment = Deployment(operator, manifest(workshop.name, STAND_IN_IMAGE))
    deployment.apply()
    deployment.wait_ready(180)
    yield deployment
    deployment.delete()
