"""`specdecode-operator`: options, and the order in which the parts start and stop."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdecode import __version__
from specdecode.cluster import crdcheck, watch
from specdecode.cluster.client import ApiError, Client, configuration
from specdecode.cluster.clock import Clock
from specdecode.cluster.controller import Controller
from specdecode.cluster.events import Recorder
from specdecode.cluster.executor import Executor
from specdecode.cluster.kinds import Key
from specdecode.cluster.lease import Elector, LeaseSettings
from specdecode.cluster.nodes import Nodes
from specdecode.cluster.queue import WorkQueue
from specdecode.cluster.relist import Relister
from specdecode.cluster.store import Store
from specdecode.scrape import Scraper
from specdecode.telemetry import Health, Metrics
from specdecode.telemetry.logs import configure
from specdecode.telemetry.server import application, serve
from specdecode.workload import Access

log: Final = logging.getLogger(__name__)

ROUTER_IMAGE: Final = f"specdecode-router:{__version__}"
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DRAIN: Final = 10.0
"""Seconds that workers have to end what they are at when the operator is told to stop."""
_HEARTBEAT: Final = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    kubeconfig: str | None
    namespaces: tuple[str, ...]
    leader_elect: bool
    lease: LeaseSettings
    metrics_host: str
    metrics_port: int
    log_format: str
    log_level: str
    router_image: str
    access: Access | None
    workers: int
    resync: float


def options(argv: Sequence[str], environ: dict[str, str]) -> Options:
    """The options, from arguments and, where those say nothing, from `SPECDECODE_*` variables.

    Raises:
        SystemExit: an argument is wrong; argparse has said what.
    """
    parser = argparse.ArgumentParser(
        prog="specdecode-operator",
        description="Operates SpecDecodeDeployments: vLLM with multi-token prediction, changed by canaries that are "
        "judged by their acceptance length.",
        epilog="Each option can be given by an environment variable too: --lease-name as SPECDECODE_LEASE_NAME.",
    )

    def add(flag: str, default: str | None, text: str, **more: Any) -> None:
        variable = "SPECDECODE_" + flag.strip("-").replace("-", "_").upper()
        shown = "" if default is None else f" (default: {default})"
        parser.add_argument(flag, default=environ.get(variable, default), help=text + shown, **more)

    in_pod = _NAMESPACE_FILE.exists()
    own = _NAMESPACE_FILE.read_text().strip() if in_pod else "default"
    add("--kubeconfig", None if in_pod else environ.get("KUBECONFIG"), "file that says where the API server is")
    parser.add_argument(
        "--namespace",
        action="append",
        default=None,
        metavar="NAME",
        help="serve this namespace only; repeatable (default: all namespaces)",
    )
    parser.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=_truth(environ.get("SPECDECODE_LEADER_ELECT", "true")),
        help="write only while holding a Lease, so that two operators never both act",
    )
    add("--lease-namespace", own, "namespace of the Lease")
    add("--lease-name", "specdecode-operator", "name of the Lease")
    add("--lease-duration", "15", "seconds after which others may take a Lease that isn't renewed", type=float)
    add("--lease-retry", "2", "seconds between attempts to get or renew the Lease", type=float)
    add("--metrics-bind", "127.0.0.1:8081", "host:port of /metrics, /healthz and /readyz; port 0 takes a free one")
    add("--log-format", "text", "text or json", choices=("text", "json"))
    add("--log-level", "info", "least level that is logged", choices=("debug", "info", "warning", "error"))
    add("--router-image", ROUTER_IMAGE, "image of routers where a resource names none")
    parser.add_argument(
        "--network-policies",
        action=argparse.BooleanOptionalAction,
        default=_truth(environ.get("SPECDECODE_NETWORK_POLICIES", str(in_pod))),
        help="make NetworkPolicies with each revision; they let in an operator that runs as a Pod of its chart "
        "(default: yes in a Pod, no elsewhere)",
    )
    parser.add_argument(
        "--monitoring-namespace",
        action="append",
        default=None,
        metavar="NAME",
        help="namespace whose Pods may scrape serving Pods in spite of those policies; repeatable",
    )
    add("--workers", "4", "resources worked on at a time", type=int)
    add("--resync", "300", "seconds between full lists", type=float)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    args = parser.parse_args(argv)

    host, _, port = args.metrics_bind.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        parser.error(f"--metrics-bind {args.metrics_bind!r}: give host:port, such as 0.0.0.0:8081")
    for name, value, least in (("workers", args.workers, 1), ("resync", args.resync, 10)):
        if not value >= least:
            parser.error(f"--{name} {value}: give {least} or more")
    try:
        lease = LeaseSettings(
            namespace=args.lease_namespace,
            name=args.lease_name,
            identity=f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}",
            duration=args.lease_duration,
            retry=args.lease_retry,
        )
    except ValueError as error:
        parser.error(str(error))
    monitoring = _names(args.monitoring_namespace, environ.get("SPECDECODE_MONITORING_NAMESPACE"))
    return Options(
        kubeconfig=args.kubeconfig,
        namespaces=_names(args.namespace, environ.get("SPECDECODE_NAMESPACE")),
        leader_elect=args.leader_elect,
        lease=lease,
        metrics_host=host.strip("[]"),
        metrics_port=int(port),
        log_format=args.log_format,
        log_level=args.log_level,
        router_image=args.router_image,
        access=Access(own, monitoring) if args.network_policies else None,
        workers=args.workers,
        resync=args.resync,
    )


def _truth(text: str) -> bool:
    return text.lower() not in ("false", "0", "no")


def _names(given: list[str] | None, variable: str | None) -> tuple[str, ...]:
    """Names from arguments, else from a variable that separates them by commas."""
    return tuple(given if given is not None else (name for name in (variable or "").split(",") if name))


class Operator:
    """All parts of one process."""

    def __init__(self, opts: Options) -> None:
        self._opts = opts
        self._metrics = Metrics(__version__)
        self._health = Health()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> int:
        """Run until told to stop (0), or until something essential ends (1). 2: it couldn't begin."""
        opts = self._opts
        try:
            config = await configuration(opts.kubeconfig)
            runner, port = await serve(
                application(self._metrics.registry, self._health), opts.metrics_host, opts.metrics_port
            )
        except (ValueError, OSError) as error:
            log.error("%s", error)
            return 2
        print(f"listening on http://{opts.metrics_host}:{port}", flush=True)
        self._take_signals()
        client = Client(config, self._metrics)
        try:
            return await self._serve(client)
        finally:
            await runner.cleanup()
            await client.close()

    async def _serve(self, client: Client) -> int:
        opts, health = self._opts, self._health
        queue: WorkQueue[Key] = WorkQueue(asyncio.get_running_loop().time, self._metrics.queue_depth.set)
        store = Store(queue.add)
        relister = Relister(client, store, health, opts.namespaces, opts.resync, time.monotonic)
        elector = Elector(client, opts.lease, lambda: health.beat("Lease", time.monotonic()))
        clock = Clock()
        recorder = Recorder(client, self._metrics, opts.lease.identity, clock)
        health.wait("caches", "not filled yet")
        begun = await self._unless_stopped(self._begin(client, relister))
        if begun is not True:
            return 0 if self._stop.is_set() else 1
        health.done("caches")

        unwatch = asyncio.Event()
        watching = self._task("watches", self._watch(relister, store, unwatch))
        self._task("lists", relister.run())
        self._task("heartbeat", self._beat())
        if opts.leader_elect:
            client.permit = elector.permit
            health.expect("Lease", 2.0 * opts.lease.duration + 30.0, time.monotonic())
            await self._unless_stopped(elector.acquire(), watching)
        ends: list[asyncio.Task[Any]] = [watching]
        code = 0
        async with Scraper(clock) as scraper:
            controller = Controller(
                store=store,
                queue=queue,
                executor=Executor(client, store),
                nodes=Nodes(client, clock),
                recorder=recorder,
                scraper=scraper,
                metrics=self._metrics,
                router_image=opts.router_image,
                gateway=lambda: relister.gateway,
                clock=clock,
                access=opts.access,
            )
            if not self._stop.is_set() and not watching.done():
                self._metrics.leader.set(1)
                if opts.leader_elect:
                    ends.append(self._task("holding the Lease", elector.hold()))
                self._task("Events", recorder.run())
                workers = [self._task(f"worker {i}", controller.work()) for i in range(opts.workers)]
                stop = self._task("stop", self._stop.wait())
                await asyncio.wait([*ends, stop], return_when=asyncio.FIRST_COMPLETED)
                code = self._verdict(ends)
                queue.close()
                await asyncio.wait(workers, timeout=_DRAIN)
                await recorder.drain(2.0 if code == 0 else 0.0)
            elif watching.done():
                code = self._verdict(ends)
            await controller.close()
        self._metrics.leader.set(0)
        if opts.leader_elect:
            for task in ends[1:]:
                await _end(task)
            await elector.release()
        # kopf waits for every task begun after it, so ours end first.
        for task in self._tasks - {watching}:
            await _end(task)
        unwatch.set()
        await asyncio.wait([watching], timeout=5.0)
        await _end(watching)
        log.info("stopped")
        return code

    def _verdict(self, ends: list[asyncio.Task[Any]]) -> int:
        """Say what ended that shouldn't have; the exit code."""
        if self._stop.is_set():
            return 0
        for task in ends:
            if task.done():
                error = None if task.cancelled() else task.exception()
                log.error("%s ended%s: this process ends too", task.get_name(), f" ({error!r})" if error else "")
        return 1

    async def _begin(self, client: Client, relister: Relister) -> bool:
        delay = 1.0
        while True:
            try:
                await crdcheck.check(client)
                break
            except ValueError as error:
                log.error("%s", error)
                return False
            except ApiError as error:
                log.warning("waiting for the API server: %s", error)
                self._health.wait("API server", str(error))
                await asyncio.sleep(delay)
                delay = min(30.0, 2.0 * delay)
        self._health.done("API server")
        await relister.prime()
        return True

    async def _watch(self, relister: Relister, store: Store, stop: asyncio.Event) -> None:
        ready = asyncio.Event()

        async def retake() -> None:
            # kopf takes the signals for itself; the order in which we stop is ours.
            await ready.wait()
            self._take_signals()

        self._task("signals", retake())
        await watch.run(
            config=lambda: configuration(self._opts.kubeconfig),
            kinds=relister.kinds,
            namespaces=self._opts.namespaces,
            store=store,
            health=self._health,
            clock=time.monotonic,
            ready=ready,
            stop=stop,
        )

    async def _beat(self) -> None:
        self._health.expect("event loop", 60.0, time.monotonic())
        while True:
            self._health.beat("event loop", time.monotonic())
            await asyncio.sleep(_HEARTBEAT)

    async def _unless_stopped(self, work: Coroutine[Any, Any, Any], *others: asyncio.Task[Any]) -> Any:
        """Wait for some work, unless told to stop, or one of the others ends, before it is done."""
        task = self._task("start", work)
        stop = self._task("stop", self._stop.wait())
        await asyncio.wait([task, stop, *others], return_when=asyncio.FIRST_COMPLETED)
        await _end(stop)
        if task.done():
            return task.result()
        await _end(task)
        return None

    def _task(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=2.0)


def main(argv: Sequence[str] | None = None, exit_: Callable[[int], Any] = sys.exit) -> None:
    """Entry point of the console script."""
    opts = options(sys.argv[1:] if argv is None else argv, dict(os.environ))
    configure("json" if opts.log_format == "json" else "text", opts.log_level)
    code = asyncio.run(Operator(opts).run())
    # The process ends: searching its modules for garbage first would take longer than all the rest of stopping.
    gc.freeze()
    exit_(code)
