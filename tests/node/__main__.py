"""`python -m tests.node up | down | ...`: keeps a node up in the background, and helps to use it. Needs root."""

from __future__ import annotations

import argparse
import sys
import time

from tests.bed.binaries import BuildError
from tests.bed.processes import BedError
from tests.node import images, models, needs, product
from tests.node import node as nodes
from tests.node.load import Load
from tests.node.node import Node
from tests.node.workshop import make_namespace
from tools.operator_image import ImageError

IMAGES = {"operator": product.OPERATOR, "router": product.ROUTER, "vllm": product.VLLM}


def running() -> Node:
    """The node that is up.

    Raises:
        BedError: none is.
    """
    found = Node.running()
    if found is None:
        raise BedError("no node is up: start one with `make node-up`")
    return found


def up() -> None:
    """Start one, and say how to use it."""
    node = nodes.up()
    print(f"KUBECONFIG={node.kubeconfig}, reachable from the node's network alone. To look around:")
    print(f"  {node.how_to_enter()}")


def load_images(chosen: list[str]) -> None:
    """Give the node images of the project's, and print their names."""
    for archive in product.ensure(*(IMAGES[name] for name in chosen)):
        running().ctr.load(archive)
        print(archive.image)


def make_claims(namespace: str) -> None:
    """A namespace with claims for checkpoints of the tiny model."""
    node = running()
    with node.network():
        make_namespace(node, namespace)
        models.claim_all(node, namespace, models.make())


def ask(url: str, rate: float, seconds: float) -> None:
    """Ask the tiny model for a while, from within the node's network.

    Raises:
        BedError: a request failed, or an answer was wrong.
    """
    with running().network(), Load(url, "tiny", models.make().good.cycle, rate=rate) as load:
        time.sleep(seconds)
    print(load.summary())
    if load.failed() or load.wrong():
        raise BedError(f"the first that failed: {load.failed()[:1] or load.wrong()[:1]}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.node", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("check", help="say what the machine lacks, and build what isn't in the cache")
    verbs.add_parser("up", help="start one, if none is up, and print how to use it")
    verbs.add_parser("down", help="end it and remove its traces")
    verb = verbs.add_parser("images", help="load the project's images, built if need be")
    verb.add_argument("image", nargs="+", choices=sorted(IMAGES))
    verb = verbs.add_parser("models", help="make a namespace with claims for checkpoints of the tiny model")
    verb.add_argument("namespace")
    verb = verbs.add_parser("ask", help="ask the tiny model at an open rate, checking every token")
    verb.add_argument("url")
    verb.add_argument("--rate", type=float, default=5.0, help="requests a second")
    verb.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    try:
        match asked.verb:
            case "check":
                needs.check()
                images.base_archives()
            case "up":
                up()
            case "down":
                nodes.down()
                print("no node is up")
            case "images":
                load_images(asked.image)
            case "models":
                make_claims(asked.namespace)
            case "ask":
                ask(asked.url, asked.rate, asked.seconds)
    except (BuildError, BedError, ImageError) as error:
        print(f"node: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
