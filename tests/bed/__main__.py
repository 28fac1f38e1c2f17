"""`python -m tests.bed build | up | down | kubeconfig`: builds the bed, or keeps one up in the background."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.bed import binaries
from tests.bed.binaries import BuildError, cache_root
from tests.bed.control_plane import OPERATOR, ROOT, Bed, Settings
from tests.bed.fleet import Fleet
from tests.bed.processes import BedError

SCENARIOS = Path(__file__).parent / "scenarios"


def state_file() -> Path:
    """Describes the bed that is kept up: its process and its kubeconfigs, as JSON."""
    return cache_root() / "bed-up.json"


def running() -> dict[str, str] | None:
    """What the state file says, while the process that it names lives."""
    try:
        state: dict[str, str] = json.loads(state_file().read_text())
        command = Path(f"/proc/{state['pid']}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return state if b"tests.bed" in command else None


def build() -> None:
    print(binaries.ensure().folder)


def up(scenario: Path, settings: Settings, bare: bool) -> None:
    """Starts a bed in the background and prints the line that makes kubectl use it."""
    binaries.ensure()
    if running() is None:
        state_file().unlink(missing_ok=True)
        log = cache_root() / "bed-up.log"
        command = [sys.executable, "-m", "tests.bed", "serve", "--scenario", str(scenario.resolve())]
        command += ["--nodes", str(settings.nodes), "--gpus", str(settings.gpus)]
        command += ["--bare"] if bare else []
        with log.open("wb") as out:
            server = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        deadline = time.monotonic() + 120
        while running() is None:
            if server.poll() is not None or time.monotonic() > deadline:
                raise BedError(f"the bed did not come up; {log} says:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
    state = running()
    assert state is not None
    print(f"export KUBECONFIG={state['kubeconfig']} PATH={state['bin']}:$PATH")


def serve(scenario: Path, settings: Settings, bare: bool) -> None:
    """Runs a bed in the foreground until SIGTERM or SIGINT."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Bed(settings) as bed, Fleet(bed) as fleet:
        if not bare:
            bed.install_gateway_api()
            bed.install_crds()
        fleet.play(scenario)
        described = {
            "pid": str(os.getpid()),
            "kubeconfig": str(bed.kubeconfig),
            "operator_kubeconfig": str(bed.kubeconfig_of(OPERATOR)),
            "bin": str(bed.binaries.folder),
            "state": str(bed.state),
            "scenario": str(fleet.scenario_file),
            "events": str(fleet.event_log),
        }
        written = state_file().with_suffix(".new")
        written.write_text(json.dumps(described, indent=1))
        written.rename(state_file())
        try:
            while True:
                for child in [*bed.children().values(), fleet.child]:
                    child.check()
                time.sleep(1)
        finally:
            state_file().unlink(missing_ok=True)


def down() -> None:
    """Ends the bed that `up` started."""
    state = running()
    if state is None:
        print("no bed is up")
        return
    pid = int(state["pid"])
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            raise BedError(f"the bed's process {pid} did not end within 20 s: kill -9 {pid} ends all of it")
        time.sleep(0.05)
    print("the bed is down")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bed", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("build", help="build its programs into the cache and print the folder")
    for name in ("up", "serve"):
        verb = verbs.add_parser(name, help="keep one up in the background" if name == "up" else "run one until SIGTERM")
        verb.add_argument("--scenario", type=Path, default=SCENARIOS / "healthy.yaml")
        verb.add_argument("--nodes", type=int, default=Settings.nodes)
        verb.add_argument("--gpus", type=int, default=Settings.gpus, help="of each node")
        verb.add_argument("--bare", action="store_true", help="without our CRDs and the Gateway API's")
    verbs.add_parser("down", help="end the one that is up")
    verbs.add_parser("kubeconfig", help="print the state of the one that is up")
    asked = parser.parse_args()
    try:
        match asked.verb:
            case "build":
                build()
            case "up":
                up(asked.scenario, Settings(nodes=asked.nodes, gpus=asked.gpus), asked.bare)
            case "serve":
                serve(asked.scenario, Settings(nodes=asked.nodes, gpus=asked.gpus), asked.bare)
            case "down":
                down()
            case "kubeconfig":
                print(json.dumps(running(), indent=1))
    except (BuildError, BedError) as error:
        print(f"bed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
