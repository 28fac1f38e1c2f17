"""`python -m tests.node up | down | check`: keeps a node up in the background. Needs root."""

from __future__ import annotations

import argparse
import sys

from tests.bed.binaries import BuildError
from tests.bed.processes import BedError
from tests.node import images, needs, node


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.node", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up", help="start one, if none is up, and print how to use it")
    verbs.add_parser("down", help="end it and remove its traces")
    verbs.add_parser("check", help="say what the machine lacks, and build what isn't in the cache")
    asked = parser.parse_args()
    try:
        if asked.verb == "check":
            needs.check()
            images.base_archives()
            return 0
        if asked.verb == "down":
            node.down()
            print("no node is up")
            return 0
        running = node.up()
    except (BuildError, BedError) as error:
        print(f"node: {error}", file=sys.stderr)
        return 1
    print(f"KUBECONFIG={running.kubeconfig}, reachable from the node's network alone. To look around:")
    print(f"  {running.how_to_enter()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
