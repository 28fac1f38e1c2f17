"""The fleet's process: watches Pods, Services and HTTPRoutes, runs the traffic, serves the metrics, logs events.

The event log has one JSON object a line, with `at` (Unix seconds by this process's clock) and `event`:

- `scenario`: a scenario took effect (`file`); `scenario_refused` (`message`): it can't be read, the old one stays;
- `pod_ready`: a Pod became Ready for the first time (`namespace`, `deployment`, `revision`, `role`, `pod`);
- `first_draft`: the first counted draft of a revision (`namespace`, `deployment`, `revision`);
- `failed_request`: a revision's n-th failed request (`n`; for the n that the scenario names);
- `weight`: a revision's share of new requests changed (`weight` in percent, `routers`: its Pods that take requests).
  `routers` 0 is the end of its traffic: no Ready, non-terminating router Pod of it is left that the entry Service's
  selector (or the backend of an HTTPRoute) means. This is seen on watched objects alone, never in a status of a
  resource.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np

from specdecode.api.names import LABEL_DEPLOYMENT
from tests.bed.api import Endpoint, Json, path_of
from tests.bed.fleet import exposition, scenario
from tests.bed.fleet.pages import Page, PodServer
from tests.bed.fleet.routing import Key, Pod, Route, pod_of, routes
from tests.bed.fleet.simulation import Engine, EngineCounters, Proxy, Simulation
from tests.bed.watch import Change, session, watch

TICK: Final = 0.1
"""Seconds between two steps of the simulation."""
GATEWAY_CONTROLLER: Final = "bed.specdecode.dev/gateway"

RevisionKey = tuple[Key, int]


class EventLog:
    """Appends events to a file, each with its time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, at: float, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"at": round(at, 4), "event": event} | fields) + "\n")


class World:
    """All Pods of all deployments with their counters, and who serves whom."""

    def __init__(self, log: EventLog, rng: np.random.Generator) -> None:
        self.log = log
        self.scenario = scenario.Scenario()
        self.simulation = Simulation(rng)
        self.pods: dict[str, Pod] = {}
        self.routes: dict[Key, Route] = {}
        self._services: dict[Key, Json] = {}
        self._http_routes: dict[Key, Json] = {}
        self._servers: dict[str, PodServer] = {}
        self._listening: set[asyncio.Task[None]] = set()
        self._idle_engines: dict[str, EngineCounters] = {}
        self._seen_ready: set[str] = set()
        self._restarts: dict[str, int] = {}
        self._resets: dict[str, float] = {}
        self._first_draft: dict[RevisionKey, float] = {}
        self._failed: dict[RevisionKey, int] = {}
        self._failed_by_pod: dict[str, int] = {}
        self._shown: dict[RevisionKey, tuple[float, int]] = {}
        self._clients: dict[Key, list[str]] = {}

    # What the watches say

    def on_pod(self, change: Change) -> None:
        pod = pod_of(change.obj)
        uid = change.obj["metadata"]["uid"]
        if change.type == "DELETED" or pod is None:
            self._remove(uid)
        else:
            self.pods[uid] = pod
            self._keep(pod, change)
        self.reroute(change.at)

    def on_service(self, change: Change) -> None:
        self._hold(self._services, change)

    def on_http_route(self, change: Change) -> None:
        self._hold(self._http_routes, change)

    def _hold(self, held: dict[Key, Json], change: Change) -> None:
        key = (change.obj["metadata"]["namespace"], change.obj["metadata"]["name"])
        if change.type == "DELETED":
            held.pop(key, None)
        else:
            held[key] = change.obj
        self.reroute(change.at)

    def _keep(self, pod: Pod, change: Change) -> None:
        containers = change.obj.get("status", {}).get("containerStatuses") or []
        restarts = sum(container.get("restartCount", 0) for container in containers)
        restarted = restarts != self._restarts.setdefault(pod.uid, restarts)
        self._restarts[pod.uid] = restarts
        if pod.started and (restarted or pod.uid not in self._servers):
            self._begin(pod, change.at)
        if not pod.started and pod.uid in self._servers and restarted:
            self._servers.pop(pod.uid).close()
        if pod.ready and pod.uid not in self._seen_ready:
            self._seen_ready.add(pod.uid)
            self.log.write(change.at, "pod_ready", **self._names(pod.deployment, pod.revision), role=pod.role,
                           pod=pod.name)  # fmt: skip

    def _begin(self, pod: Pod, now: float) -> None:
        """The Pod's process starts: counters at 0, and its port answers."""
        if pod.role == "router":
            self.simulation.proxies[pod.uid] = Proxy()
        else:
            engine = Engine(pod.subject.depth, self.behaviour(pod, now), False, EngineCounters(now))
            self.simulation.engines[pod.uid] = engine
        if pod.uid not in self._servers and pod.address:
            server = self._servers[pod.uid] = PodServer(lambda: self.page(pod.uid))
            task = asyncio.get_running_loop().create_task(server.listen(pod.address, pod.port))
            self._listening.add(task)
            task.add_done_callback(self._listening.discard)

    def _remove(self, uid: str) -> None:
        self.pods.pop(uid, None)
        self.simulation.forget_engine(uid)
        self.simulation.forget_proxy(uid)
        for held in (self._restarts, self._resets, self._failed_by_pod):
            held.pop(uid, None)
        if server := self._servers.pop(uid, None):
            server.close()

    # What follows from it

    def behaviour(self, pod: Pod, now: float) -> scenario.Behaviour:
        since = self._first_draft.get((pod.deployment, pod.revision))
        subject = self._subjects().get((pod.deployment, pod.revision), pod.subject)
        return self.scenario.behaviour_of(subject, None if since is None else now - since)

    def _subjects(self) -> dict[RevisionKey, scenario.Subject]:
        """Each revision is matched by what its decode Pods say, its router Pods too."""
        return {(pod.deployment, pod.revision): pod.subject for pod in self.pods.values() if pod.role == "decode"}

    def reroute(self, now: float) -> None:
        idle = {(pod.deployment, pod.revision) for pod in self.pods.values() if self.behaviour(pod, now).idle}
        self.routes = routes(self.pods.values(), self._services, self._http_routes, idle)
        arms = {(pod.deployment, pod.revision) for pod in self.pods.values()} | self._shown.keys()
        for key, revision in arms:
            route = self.routes.get(key, Route())
            shown = (round(100 * route.weights.get(revision, 0.0), 2), len(route.routers.get(revision, ())))
            if shown != self._shown.get((key, revision), (0.0, 0)):
                self._shown[key, revision] = shown
                self.log.write(now, "weight", **self._names(key, revision), weight=shown[0], routers=shown[1])

    @staticmethod
    def _names(key: Key, revision: int) -> dict[str, Any]:
        return {"namespace": key[0], "deployment": key[1], "revision": revision}

    # The passing of time

    def tick(self, now: float, seconds: float) -> None:
        subjects = self._subjects()
        behaviours: dict[RevisionKey, scenario.Behaviour] = {}
        for uid, engine in self.simulation.engines.items():
            pod = self.pods[uid]
            arm = (pod.deployment, pod.revision)
            if arm not in behaviours:
                since = self._first_draft.get(arm)
                subject = subjects.get(arm, pod.subject)
                behaviours[arm] = self.scenario.behaviour_of(subject, None if since is None else now - since)
            engine.behaviour = behaviours[arm]
            route = self.routes.get(pod.deployment, Route())
            engine.empty_first_draft = engine.behaviour.empty_first_draft and pod.revision in route.prefills
            self._maybe_reset(uid, engine, now)
        for key, route in self.routes.items():
            self._arrivals(key, route, seconds)
        self.simulation.advance(seconds)
        self._note(now)

    def _maybe_reset(self, uid: str, engine: Engine, now: float) -> None:
        every = engine.behaviour.reset_every
        if every is None:
            self._resets.pop(uid, None)
        elif now >= self._resets.setdefault(uid, now + every):
            engine.counters = EngineCounters(now)
            self._resets[uid] = now + every

    def _arrivals(self, key: Key, route: Route, seconds: float) -> None:
        traffic = self.scenario.traffic
        if not route.weights:
            return
        count = int(self.simulation.rng.poisson(traffic.rate * seconds))
        if not count:
            return
        routers = [uid for revision in route.weights for uid in route.routers[revision]]
        shares = np.array(
            [weight / len(route.routers[revision]) for revision, weight in route.weights.items()
             for _ in route.routers[revision]]
        )  # fmt: skip
        behind = {
            uid: [e for e in route.decodes.get(revision, []) if e in self.simulation.engines]
            for revision in route.weights
            for uid in route.routers[revision]
        }
        if traffic.split == "request":
            self.simulation.arrive(traffic, routers, shares, behind, count)
        else:
            self.simulation.arrive_at(traffic, self._by_client(key, routers, shares, count), behind)

    def _by_client(self, key: Key, routers: list[str], shares: np.typing.NDArray[np.float64], count: int) -> list[str]:
        """Each client keeps to its router while that one takes requests."""
        rng = self.simulation.rng
        clients = self._clients.setdefault(key, [])
        wanted = self.scenario.traffic.clients
        del clients[wanted:]
        clients.extend([""] * (wanted - len(clients)))
        for index, router in enumerate(clients):
            if router not in routers:
                clients[index] = routers[int(rng.choice(len(routers), p=shares))]
        return [clients[int(index)] for index in rng.integers(wanted, size=count)]

    def _note(self, now: float) -> None:
        for uid, engine in self.simulation.engines.items():
            pod = self.pods[uid]
            arm = (pod.deployment, pod.revision)
            if engine.counters.drafts and arm not in self._first_draft:
                self._first_draft[arm] = now
                self.log.write(now, "first_draft", **self._names(*arm))
        for uid, proxy in self.simulation.proxies.items():
            count = proxy.counters.classes[5]
            before = self._failed_by_pod.get(uid, 0)
            if count > before:
                pod = self.pods[uid]
                arm = (pod.deployment, pod.revision)
                had = self._failed.get(arm, 0)
                self._failed[arm] = had + count - before
                self._failed_by_pod[uid] = count
                for n in self.scenario.fail_events:
                    if had < n <= self._failed[arm]:
                        self.log.write(now, "failed_request", **self._names(*arm), n=n)

    # What a scrape sees

    def page(self, uid: str) -> Page:
        pod = self.pods[uid]
        behaviour = self.behaviour(pod, time.time())
        if pod.role == "router":
            broken = behaviour.router_page == "nan"
            text = exposition.proxy_page(self.simulation.proxies[uid].counters, broken=broken)
            return Page(text, behaviour.router_page, behaviour.page_delay)
        text = exposition.engine_page(
            self.simulation.engines[uid].counters,
            model=pod.model,
            depth=pod.subject.depth,
            speculative_metrics=behaviour.speculative_metrics,
            info=behaviour.info,
            broken=behaviour.page == "nan",
        )
        return Page(text, behaviour.page, behaviour.page_delay)

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


async def follow(client: aiohttp.ClientSession, kind: str, selector: str, heard: Any) -> None:
    async for change in watch(client, kind, selector):
        heard(change)


async def accept_routes(client: aiohttp.ClientSession, world: World) -> None:
    """Plays the Gateway's controller: says of each HTTPRoute that it is accepted and its backends are there."""
    async for change in watch(client, "HTTPRoute"):
        world.on_http_route(change)
        obj = change.obj
        if change.type == "DELETED" or not world.scenario.gateway:
            continue
        generation, parents = obj["metadata"]["generation"], obj["spec"].get("parentRefs") or []
        wanted = [
            {
                "parentRef": parent,
                "controllerName": GATEWAY_CONTROLLER,
                "conditions": [_condition(name, generation) for name in ("Accepted", "ResolvedRefs")],
            }
            for parent in parents
        ]
        known = [
            found["observedGeneration"]
            for parent in obj.get("status", {}).get("parents") or []
            for found in parent["conditions"]
        ]
        if known and all(at == generation for at in known):
            continue
        path = path_of("HTTPRoute", obj["metadata"]["namespace"], obj["metadata"]["name"]) + "/status"
        headers = {"Content-Type": "application/merge-patch+json"}
        with contextlib.suppress(aiohttp.ClientError):
            await client.patch(path, data=json.dumps({"status": {"parents": wanted}}), headers=headers)


def _condition(name: str, generation: int) -> Json:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    found = {"type": name, "status": "True", "reason": name, "message": "", "lastTransitionTime": now}
    return found | {"observedGeneration": generation}


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_ino


async def play(world: World, path: Path) -> None:
    """Takes up the scenario file whenever it changes, and lets time pass in steps."""
    known: tuple[int, int] | None = None
    last = time.time()
    while True:
        now_known = _identity(path)
        if now_known != known:
            known = now_known
            try:
                world.scenario = scenario.load(path)
                world.log.write(time.time(), "scenario", file=str(path))
                world.reroute(time.time())
            except scenario.ScenarioError as error:
                world.log.write(time.time(), "scenario_refused", message=str(error))
        now = time.time()
        world.tick(now, now - last)
        last = now
        await asyncio.sleep(max(0.01, TICK - (time.time() - now)))


async def run(kubeconfig: Path, scenario_file: Path, events: Path, seed: int) -> None:
    """Runs until SIGTERM."""
    world = World(EventLog(events), np.random.default_rng(seed))
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with session(Endpoint.from_kubeconfig(kubeconfig)) as client:
        tasks: Iterable[asyncio.Task[Any]] = [
            asyncio.create_task(work)
            for work in (
                stopped.wait(),
                follow(client, "Pod", LABEL_DEPLOYMENT, world.on_pod),
                follow(client, "Service", "", world.on_service),
                accept_routes(client, world),
                play(world, scenario_file),
            )
        ]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        world.close()
        for task in done:
            task.result()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bed.fleet.main", description=__doc__.splitlines()[0])
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--scenario", type=Path, required=True)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    asyncio.run(run(asked.kubeconfig, asked.scenario, asked.events, asked.seed))


if __name__ == "__main__":
    main()
