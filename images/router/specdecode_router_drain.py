#!/usr/bin/env python3
"""Pre-stop hook of both containers of a router Pod: returns when the proxy has no request left.

Envoy ends at once on SIGTERM and vllm-router stops accepting, so both are kept from it until clients have gone. The
proxy is told to close its connections as their requests end; it goes on serving those who haven't heard yet. In the
image this file is ``specdecode-router-drain``.
"""

from __future__ import annotations

import argparse
import re
import time
import urllib.error
import urllib.request

ACTIVE = "http.entry.downstream_rq_active"
POLL = 0.5
"""Seconds between two looks."""


class ProxyGoneError(Exception):
    """The proxy's admin interface doesn't answer: there is nothing left to wait for."""


def ask(url: str, method: str = "GET") -> str:
    """The body of the admin interface's answer.

    Raises:
        ProxyGoneError: nobody answers.
    """
    # No proxy from the environment: this never leaves the Pod.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, method=method), timeout=2.0) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError) as error:
        raise ProxyGoneError(str(error)) from error


def active(admin: str) -> int:
    """Requests of clients that the proxy is answering.

    Raises:
        ProxyGoneError: nobody answers, or the answer isn't Envoy's.
    """
    body = ask(f"{admin}/stats?filter=^{re.escape(ACTIVE)}$")
    found = re.search(rf"^{re.escape(ACTIVE)}: (\d+)$", body, re.MULTILINE)
    if found is None:
        raise ProxyGoneError(f"no {ACTIVE} at {admin}")
    return int(found[1])


def drain(admin: str, at_least: float, at_most: float) -> bool:
    """Wait; times in seconds. True: nothing is left. False: ``at_most`` is over and something is."""
    start = time.monotonic()
    try:
        ask(f"{admin}/healthcheck/fail", "POST")
        # EndpointSlices and whoever follows them need a moment to hear that this Pod is going.
        time.sleep(min(at_least, at_most))
        while active(admin) > 0:
            if time.monotonic() - start >= at_most:
                return False
            time.sleep(POLL)
    except ProxyGoneError:
        return True
    return True


def main() -> int:
    """The command line. Always 0: the kubelet goes on to SIGTERM either way."""
    parser = argparse.ArgumentParser(prog="specdecode-router-drain", description=__doc__.splitlines()[0])
    parser.add_argument("--admin", default="http://127.0.0.1:9901", help="Envoy's admin interface")
    parser.add_argument("--at-least", type=float, default=5.0, help="seconds to wait in any case")
    parser.add_argument("--at-most", type=float, default=1800.0, help="seconds after which what is left is cut")
    asked = parser.parse_args()
    if not drain(asked.admin, asked.at_least, asked.at_most):
        print(f"requests are left after {asked.at_most:g}s and will be cut")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
