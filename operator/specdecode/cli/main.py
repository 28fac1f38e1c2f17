"""``kubectl specdecode``: what a person asks of the resource, with a cluster or without.

Every verb imports what it needs when it runs: checking a file must not wait for a cluster's client.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from specdecode.api.names import ROUTER_IMAGE


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="kubectl specdecode", description="Check, render and explain SpecDecodeDeployment resources."
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    def offline(name: str, help: str) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=help, description=help)
        verb.add_argument("-f", "--filename", required=True, metavar="FILE", help="YAML file; - is standard input")
        return verb

    def online(name: str, help: str) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=help, description=help)
        verb.add_argument("-n", "--namespace", help="namespace; else the kubeconfig's")
        verb.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form of the output")
        verb.add_argument("--kubeconfig", help="kubeconfig file; else $KUBECONFIG, else ~/.kube/config")
        verb.add_argument("--context", help="context of the kubeconfig; else its current one")
        return verb

    offline("validate", "Say everything that is wrong with a file, without a cluster; exits 1 if anything is.")
    render = offline("render", "Print all objects of the revision that a file asks for, without a cluster.")
    render.add_argument("-n", "--namespace", help="namespace of the objects; else the resource's own, else default")
    render.add_argument(
        "--router-image",
        default=os.environ.get("SPECDECODE_ROUTER_IMAGE", ROUTER_IMAGE),
        help="image of routers where the resource names none; else $SPECDECODE_ROUTER_IMAGE, else the operator's",
    )
    analyze = offline("analyze", "Replay a recorded trace through the analysis that the file asks for.")
    analyze.add_argument("--trace", required=True, help="JSON Lines, one scrape a line; - is standard input")
    analyze.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form of the output")
    analyze.add_argument("--plot", metavar="FILE", help="draw the timeline into a .png, .svg or .pdf")
    status = online("status", "Show where resources stand.")
    status.add_argument("name", nargs="?", help="one resource, in full; without it all of the namespace, a line each")
    status.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces")
    status.add_argument("-w", "--watch", action="store_true", help="show it again whenever it changes")
    why = online("why", "Say in plain sentences what the operator does or waits for, and why.")
    why.add_argument("name", help="the resource")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 faults or no such thing, 2 input that can't be used."""
    asked = parser().parse_args(arguments)
    from .files import UnreadableError

    try:
        return _run(asked)
    except UnreadableError as error:
        print(error, file=sys.stderr)
        return 2 if asked.verb == "analyze" else 1
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _run(asked: argparse.Namespace) -> int:
    match asked.verb:
        case "validate":
            from . import validate

            return validate.run(asked.filename)
        case "render":
            from . import render

            return render.run(asked.filename, asked.namespace, asked.router_image)
        case "analyze":
            from . import analyze

            return analyze.run(asked.filename, asked.trace, asked.output, asked.plot)
        case _:
            from . import online

            return online.run(asked)


if __name__ == "__main__":
    sys.exit(main())
