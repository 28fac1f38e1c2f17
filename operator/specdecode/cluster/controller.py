"""The controller: takes resources off the queue, plans, writes, and keeps their evidence coming.

One worker at a time holds a resource. Everything it decides on is in the snapshot; everything it does is in the plan.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pydantic

from specdecode.acceptance import Policy
from specdecode.api import SpecDecodeDeployment, SpecDecodeDeploymentStatus, timestamp
from specdecode.rollout import reasons
from specdecode.rollout.planner import plan as decide
from specdecode.rollout.types import EventNote, Plan, Snapshot
from specdecode.scrape import Scraper
from specdecode.telemetry import Metrics, ResourceLogger
from specdecode.workload import Access, controller_revision, desired

from .client import ApiError, NotLeaderError
from .events import Recorder
from .evidence import Evidence
from .executor import Executor, Outcome
from .kinds import CONTROLLER_REVISION, Key, Object, kind_of
from .nodes import Nodes, overdue
from .publish import publish
from .queue import QueueClosedError, WorkQueue
from .rounds import Rounds
from .snapshot import Today, snapshot, today, working_policy
from .statuswrite import NUMBERS, essence, status_due
from .store import Store

log: Final = logging.getLogger(__name__)

_STALE: Final = 0.05
"""Seconds after which a plan that rested on something stale is made anew."""


@dataclass(slots=True)
class Tracked:
    """What the controller keeps of one resource between two looks; a restart loses nothing that matters."""

    uid: str
    evidence: Evidence
    rounds: Rounds
    log: ResourceLogger
    last_write: float
    """When status was last written, Unix seconds; for all that we know when this process began."""
    today: tuple[int, Today] | None = None
    """For a generation."""
    policy: Policy | None = None
    """What evidence is judged by; None while nothing says how."""
    write_errors: tuple[str, ...] = ()
    seen: tuple[Snapshot, Plan] | None = None
    said: str = ""


class Controller:
    """Reconciles resources.

    Args:
        store: what is known of the cluster.
        queue: keys of resources that need a look.
        executor: carries plans out.
        nodes: tells lost nodes.
        recorder: sends Events.
        scraper: fetches pages of metrics.
        metrics: the operator's own.
        router_image: image of routers where a resource names none.
        gateway: whether the cluster serves HTTPRoutes.
        clock: Unix seconds.
        access: who may scrape serving Pods; None for no NetworkPolicies.
    """

    def __init__(
        self,
        *,
        store: Store,
        queue: WorkQueue[Key],
        executor: Executor,
        nodes: Nodes,
        recorder: Recorder,
        scraper: Scraper,
        metrics: Metrics,
        router_image: str,
        gateway: Callable[[], bool],
        clock: Callable[[], float],
        access: Access | None = None,
    ) -> None:
        self._store = store
        self._queue = queue
        self._executor = executor
        self._nodes = nodes
        self._recorder = recorder
        self._scraper = scraper
        self._metrics = metrics
        self._router_image = router_image
        self._gateway = gateway
        self._clock = clock
        self._access = access
        self._tracked: dict[Key, Tracked] = {}

    async def work(self) -> None:
        """One worker: takes keys until the queue is closed."""
        while True:
            try:
                key = await self._queue.take()
            except QueueClosedError:
                return
            try:
                with self._metrics.reconcile_seconds.time():
                    await self._visit(key)
            except NotLeaderError:
                # A renewal that is only late makes this process the leader again, and no event would bring the key
                # back. If the Lease is lost the process ends.
                delay = self._queue.failed(key)
                log.info("not the leader at this moment: %s/%s again in %.1f s", *key, delay)
            except Exception as error:
                self._metrics.reconcile_errors.inc()
                delay = self._queue.failed(key)
                level = logging.WARNING if isinstance(error, ApiError) else logging.ERROR
                log.log(
                    level,
                    "%s/%s: %s; again in %.1f s",
                    *key,
                    error,
                    delay,
                    exc_info=None if isinstance(error, ApiError) else error,
                )
            finally:
                self._queue.done(key)

    async def close(self) -> None:
        """End all scraping."""
        for key in list(self._tracked):
            await self._forget(key)

    async def _visit(self, key: Key) -> None:
        raw = self._store.resource(key)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            # What it owns goes with it, by the cluster's garbage collector.
            await self._forget(key)
            return
        tracked = await self._track(key, raw)
        try:
            resource = SpecDecodeDeployment.parse(raw)
        except pydantic.ValidationError as error:
            await self._unreadable(tracked, raw, error)
            return
        await self._reconcile(key, raw, resource, tracked)

    async def _reconcile(self, key: Key, raw: Object, resource: SpecDecodeDeployment, tracked: Tracked) -> None:
        now = self._clock()
        known = self._today(resource, tracked)
        objects = list(self._store.children(key))
        lost_records = self._lost_records(resource, tracked, objects)
        objects += lost_records
        late, due = overdue(objects, now)
        lost = await self._nodes.lost(late) if late else set()

        snap = snapshot(
            resource,
            known,
            objects,
            tracked.evidence,
            now=now,
            lost_nodes=lost,
            write_errors=tracked.write_errors,
        )
        plan = decide(snap)
        tracked.seen = (snap, plan)
        stable = plan.status.stable
        tracked.policy = working_policy(known, snap)
        if tracked.policy is not None:
            tracked.evidence.watch_over(stable.revision if stable else None, resource, tracked.policy, now)
            tracked.evidence.aim_at(plan.analysis, resource, tracked.policy, now)
        tracked.evidence.forget(record.number for record in snap.records)
        self._say(tracked, plan)

        restored = await self._restore(raw, lost_records)
        outcome = Outcome()
        if plan.status_first:
            # A decision is acted on only if the resource is still what it was, and is written down before.
            if not await self._executor.confirm(raw):
                self._queue.add_after(key, _STALE)
                return
            outcome = await self._write_status(key, raw, plan, tracked, now)
            raw = self._store.resource(key) or raw
        # Taking traffic from a failing canary doesn't wait for a status that is refused; the evidence still says so.
        failing = plan.status.rollout.failure is not None
        if not outcome.stale and (failing or not outcome.errors):
            refused, outcome = outcome.errors, await self._carry_out(key, raw, resource, plan, snap)
            outcome.errors[:0] = restored.errors + refused
            outcome.writes += restored.writes
        if outcome.stale:
            self._queue.add_after(key, _STALE)
            return
        if tuple(outcome.errors) != tracked.write_errors:
            tracked.write_errors = tuple(outcome.errors)
            # Of the same snapshot, so that no other decision can come of it than the one that was acted on.
            plan = dataclasses.replace(
                plan, status=decide(dataclasses.replace(snap, write_errors=tracked.write_errors)).status
            )
        written = await self._write_status(key, raw, plan, tracked, now)
        for note in plan.events:
            self._recorder.record(raw, note)
        tracked.seen = (snap, plan)
        self._publish(tracked)
        self._follow(tracked, snap, plan)
        if outcome.errors or written.errors:
            self._queue.failed(key, outcome.retry_after)
            return
        self._queue.succeeded(key)
        if written.stale or outcome.writes:
            self._queue.add_after(key, _STALE)
        for delay in (plan.requeue_after, due - now if due is not None else None, NUMBERS):
            if delay is not None:
                self._queue.add_after(key, max(delay, _STALE))

    @staticmethod
    def _lost_records(resource: SpecDecodeDeployment, tracked: Tracked, objects: Sequence[Object]) -> list[Object]:
        """ControllerRevisions that were deleted under a living revision, as long as we remember them.

        Plans go by them as if they were there: without its record a revision can't be written, and a stable one would
        be given up.
        """
        if tracked.seen is None:
            return []
        before, plan = tracked.seen
        living = {arm.revision for arm in (plan.status.stable, plan.status.canary) if arm is not None}
        shown = {obj["metadata"]["name"] for obj in objects if kind_of(obj) is CONTROLLER_REVISION}
        remembered = (controller_revision(resource, record) for record in before.records if record.number in living)
        return [record for record in remembered if record["metadata"]["name"] not in shown]

    async def _restore(self, raw: Object, records: Iterable[Object]) -> Outcome:
        """Write lost records again."""
        restored = Outcome()
        for record in records:
            outcome = await self._executor.record(record)
            restored.errors += outcome.errors
            restored.writes += outcome.writes
            if outcome.writes:
                note = f"{record['metadata']['name']}, which records a revision, was deleted under it: written again"
                self._recorder.record(raw, EventNote("Warning", reasons.RECORD_RESTORED, note))
        return restored

    async def _carry_out(
        self, key: Key, raw: Object, resource: SpecDecodeDeployment, plan: Plan, snap: Snapshot
    ) -> Outcome:
        if plan.create is not None:
            revision = dataclasses.replace(plan.create, spec_raw=raw["spec"])
            return await self._executor.record(controller_revision(resource, revision))
        records = {record.number: record for record in snap.records}
        wanted = desired(resource, plan, records, self._access)
        return await self._executor.carry_out(key, resource.metadata.uid, plan, wanted, self._gateway())

    async def _write_status(self, key: Key, raw: Object, plan: Plan, tracked: Tracked, now: float) -> Outcome:
        """Write the plan's status if it is due; else come back when it is."""
        status = plan.status.model_copy(update={"evidence": tracked.evidence.state()})
        new = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        old = raw.get("status") or {}
        interval = tracked.rounds.interval if tracked.evidence.judging else None
        wait = status_due(old, new, last_write=tracked.last_write, now=now, interval=interval)
        if wait is None:
            return Outcome()
        if wait > 0.0:
            self._queue.add_after(key, wait)
            return Outcome()
        outcome = await self._executor.put_status(raw, new)
        if outcome.writes:
            tracked.last_write = now
            self._count(raw, plan.status)
            if essence(old) != essence(new):
                self._queue.add_after(key, _STALE)
        return outcome

    def _count(self, raw: Object, new: SpecDecodeDeploymentStatus) -> None:
        """Count what a status that was just written decided."""
        metadata = raw["metadata"]
        names = (metadata["namespace"], metadata["name"])
        old = SpecDecodeDeploymentStatus.model_validate(raw.get("status") or {})
        failure = new.rollout.failure
        if failure is not None and old.rollout.failure is None:
            self._metrics.count(self._metrics.rollbacks, *names, failure.reason)
        if new.stable and old.canary and new.stable.revision == old.canary.revision:
            self._metrics.count(self._metrics.promotions, *names)

    async def _unreadable(self, tracked: Tracked, raw: Object, error: pydantic.ValidationError) -> None:
        """A stored object that this operator can't read: say so, and leave all that runs alone."""
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{where}: {first['msg']}; this operator can't read the resource: mend it, or upgrade the operator"
        tracked.log.warning("%s", message)
        status = dict(raw.get("status") or {})
        kept = [c for c in status.get("conditions") or [] if c.get("type") not in ("Ready", "Stalled")]
        old = {c["type"]: c for c in status.get("conditions") or []}
        for kind, value in (("Ready", "False"), ("Stalled", "True")):
            before = old.get(kind, {})
            since = before.get("lastTransitionTime") if before.get("status") == value else None
            kept.append(
                {
                    "type": kind,
                    "status": value,
                    "reason": "Unreadable",
                    "message": message,
                    "lastTransitionTime": since or timestamp(self._clock()),
                    "observedGeneration": raw["metadata"].get("generation", 0),
                }
            )
        status["conditions"] = kept
        if status != raw.get("status"):
            await self._executor.put_status(raw, status)
            self._recorder.record(raw, EventNote("Warning", "Unreadable", message))

    # -- what is kept ----------------------------------------------------------------------------------------------

    async def _track(self, key: Key, raw: Object) -> Tracked:
        uid = raw["metadata"]["uid"]
        tracked = self._tracked.get(key)
        if tracked is not None and tracked.uid == uid:
            return tracked
        await self._forget(key)
        saved = (raw.get("status") or {}).get("evidence")
        evidence = Evidence(saved if isinstance(saved, dict) else {})
        rounds = Rounds(self._scraper, evidence, self._metrics, self._clock, lambda news: self._scraped(key, news=news))
        rounds.start(f"{key[0]}/{key[1]}")
        tracked = Tracked(uid, evidence, rounds, ResourceLogger(log, *key), self._clock())
        self._tracked[key] = tracked
        return tracked

    async def _forget(self, key: Key) -> None:
        self._queue.forget(key)
        tracked = self._tracked.pop(key, None)
        if tracked is not None:
            await tracked.rounds.stop()
        self._metrics.forget(*key)

    def _today(self, resource: SpecDecodeDeployment, tracked: Tracked) -> Today:
        generation = resource.metadata.generation
        if tracked.today is None or tracked.today[0] != generation:
            tracked.today = (generation, today(resource, self._router_image))
        return tracked.today[1]

    def _follow(self, tracked: Tracked, snap: Snapshot, plan: Plan) -> None:
        """Have the right Pods scraped, at the right times."""
        policy = tracked.policy
        stable, canary = plan.status.stable, plan.status.canary
        aims = tracked.evidence.aims(
            snap.arms, stable.revision if stable else None, canary.revision if canary else None
        )
        if policy is None:
            tracked.rounds.follow([], 30.0)
        elif tracked.evidence.judging or tracked.evidence.learning:
            tracked.rounds.follow(aims, policy.interval)
        else:
            tracked.rounds.follow(aims, policy.guard_interval, policy.short_interval)

    def _scraped(self, key: Key, *, news: bool) -> None:
        """A round of scrapes is in."""
        tracked = self._tracked.get(key)
        if tracked is None:
            return
        if news or tracked.evidence.judging:
            self._queue.add(key)
        else:
            self._publish(tracked)

    def _publish(self, tracked: Tracked) -> None:
        if tracked.seen is not None:
            evidence = tracked.evidence
            publish(self._metrics, *tracked.seen, evidence.summaries(self._clock()), evidence.drafts())

    def _say(self, tracked: Tracked, plan: Plan) -> None:
        """Log what is being done whenever it changes; events say the rest."""
        arm = plan.status.canary or plan.status.stable
        said = f"{plan.reason}: {plan.message}" if plan.message else plan.reason
        if plan.reason != tracked.said:
            tracked.said = plan.reason
            revision = arm.revision if arm is not None else 0
            tracked.log.info("%s", said, extra={"revision": revision, "reason": plan.reason})
