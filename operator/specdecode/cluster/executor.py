"""From a plan to writes: what to write, in which order, and what becomes of refusals.

Only what differs is written. What a revision needs comes first, then every reduction of traffic, then Pods, then
growth of traffic, then deletions. A refused write is a sentence for a condition and a reason to come back, not an end:
the writes after it go on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from specdecode.api.names import FIELD_MANAGER, LABEL_DEPLOYMENT, LABEL_REVISION
from specdecode.rollout.types import Plan
from specdecode.workload import changed, handover

from .client import ApiError, Client
from .kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    HTTP_ROUTE,
    NETWORK_POLICY,
    POD,
    SDD,
    SERVICE,
    STATEFUL_SET,
    Key,
    Object,
    kind_of,
)
from .store import Store

log: Final = logging.getLogger(__name__)

HANDOVER_MANAGER: Final = f"{FIELD_MANAGER}-handover"
"""Keeps a number of replicas that nobody owns yet, until an autoscaler does."""


@dataclass(slots=True)
class Outcome:
    """What came of carrying out a plan."""

    writes: int = 0
    errors: list[str] = field(default_factory=list)
    """Refused writes, a sentence each."""
    stale: bool = False
    """What the plan rests on is no longer so; it must be made anew."""
    retry_after: float = 0.0
    """Seconds that the API server asked us to wait."""

    def refused(self, what: str, error: ApiError) -> None:
        """Note a refusal."""
        log.warning("%s was refused: %s", what, error)
        self.errors.append(f"{what}: {error.reason}: {error.message}")
        self.retry_after = max(self.retry_after, error.retry_after or 0.0)


def arrange(desired: Iterable[Object], live: dict[tuple[str, str], Object]) -> list[Object]:
    """Objects in the order in which they are to be written.

    Args:
        desired: what should be.
        live: what is, by kind and name.
    """

    def rank(obj: Object) -> int:
        kind = kind_of(obj)
        if kind is HTTP_ROUTE:
            return 1
        if kind is STATEFUL_SET:
            return 2
        if kind is DEPLOYMENT:
            now = live.get((kind.kind, obj["metadata"]["name"]))
            fewer = now is not None and _replicas(obj) < _replicas(now)
            return 1 if fewer else 3
        return 0

    return sorted(desired, key=rank)


def _replicas(obj: Object) -> int:
    replicas = obj.get("spec", {}).get("replicas")
    return 1 if replicas is None else int(replicas)


def doomed(plan: Plan, children: Iterable[Object], uid: str, desired: Collection[tuple[str, str]]) -> list[Object]:
    """Objects of ours that the plan wants gone and that aren't going yet.

    Args:
        plan: names revisions whose objects go, and records that are forgotten.
        children: objects with the resource's label.
        uid: the resource's; objects of another owner are never touched.
        desired: kind and name of what is to stay.
    """
    remove, forget = ({str(number) for number in numbers} for numbers in (plan.remove, plan.forget))
    found = []
    for obj in children:
        kind, metadata = kind_of(obj), obj["metadata"]
        if kind is POD or metadata.get("deletionTimestamp") or not owned(obj, uid):
            continue
        revision = (metadata.get("labels") or {}).get(LABEL_REVISION)
        if kind is CONTROLLER_REVISION:
            gone = revision in forget
        elif kind is HTTP_ROUTE:
            gone = plan.weights is None and (kind.kind, metadata["name"]) not in desired
        elif kind is NETWORK_POLICY:
            # The operator may have been told to make none any more: then they go from arms that stay.
            stays = (DEPLOYMENT.kind, f"{metadata['labels'][LABEL_DEPLOYMENT]}-{revision}-router") in desired
            gone = revision in remove or (stays and (kind.kind, metadata["name"]) not in desired)
        else:
            gone = revision in remove
        if gone:
            found.append(obj)
    return found


def owned(obj: Object, uid: str) -> bool:
    """Whether the resource with this UID controls an object."""
    return any(
        owner.get("uid") == uid and owner.get("controller") for owner in obj["metadata"].get("ownerReferences") or []
    )


class Executor:
    """Carries plans out.

    Args:
        client: writes.
        store: knows what is, and takes in what writes answer.
    """

    def __init__(self, client: Client, store: Store) -> None:
        self._client = client
        self._store = store
        self._vain: dict[str, tuple[Object, Object]] = {}  # by UID: what was applied in vain, and to what

    async def record(self, revision: Object) -> Outcome:
        """Record a revision. Another with its number means that what we know is stale, or that it lost our labels."""
        outcome = Outcome()
        try:
            answer = await self._client.create(revision)
        except ApiError as error:
            if error.status == 409:
                found = await self._refresh(revision, outcome)
                (owner,) = revision["metadata"]["ownerReferences"]
                if found is not None and not owned(found, owner["uid"]):
                    outcome.errors.append(_not_ours(revision))
                elif found is not None and not _labelled_as(found, revision):
                    # Our watches will never show it, however long we wait.
                    await self._apply(revision, found, owner["uid"], outcome)
                else:
                    outcome.stale = True
            else:
                outcome.refused(_what("create", revision), error)
            return outcome
        self._take(answer, outcome)
        return outcome

    async def carry_out(self, key: Key, uid: str, plan: Plan, desired: list[Object], gateway: bool) -> Outcome:
        """Write what differs.

        Args:
            key: the resource.
            uid: its UID.
            plan: what should be.
            desired: its objects.
            gateway: whether the cluster serves HTTPRoutes.
        """
        outcome = Outcome()
        live = {(obj["kind"], obj["metadata"]["name"]): obj for obj in self._store.children(key)}
        foreign: set[tuple[str, str]] = set()
        for obj in arrange(desired, live):
            name = obj["metadata"]["name"]
            if kind_of(obj) is HTTP_ROUTE and not gateway:
                outcome.errors.append(
                    "the cluster serves no HTTPRoute of gateway.networking.k8s.io/v1: install the Gateway API's CRDs, "
                    "or remove spec.traffic.gateway"
                )
                continue
            if taken := backends(obj) & {name for kind, name in foreign if kind == SERVICE.kind}:
                # Its Pods may be anybody's.
                outcome.errors.append(
                    f"{obj['kind']} {name} is left as it is: it would send requests to another's Service "
                    f"{', '.join(sorted(taken))}"
                )
                continue
            if not await self._apply(obj, live.get((obj["kind"], name)), uid, outcome):
                foreign.add((obj["kind"], name))
        names = {(obj["kind"], obj["metadata"]["name"]) for obj in desired}
        for obj in doomed(plan, self._store.children(key), uid, names):
            await self._delete(obj, outcome)
        for lost in plan.force_delete:
            pod = self._store.child(key, POD, lost.name)
            # By now another one may have its name, and serve.
            if pod is not None and pod["metadata"]["uid"] == lost.uid:
                await self._delete(pod, outcome, grace=0)
        return outcome

    async def put_status(self, resource: Object, status: Object) -> Outcome:
        """Write a resource's status, unless the resource has changed since."""
        outcome = Outcome()
        try:
            answer = await self._client.put_status(resource, status)
        except ApiError as error:
            if error.status in (404, 409):
                await self._refresh(resource, outcome)
                outcome.stale = True
            else:
                outcome.refused(_what("status of", resource), error)
            return outcome
        self._take(answer, outcome)
        return outcome

    async def confirm(self, resource: Object) -> bool:
        """Whether the API server itself still has this resource as we know it; if not, learn what it has.

        Raises:
            ApiError: it doesn't answer.
        """
        metadata = resource["metadata"]
        try:
            found = await self._client.get(SDD, metadata["namespace"], metadata["name"])
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        self._store.put(SDD, found)
        now = found["metadata"]
        return bool((now["uid"], now["generation"]) == (metadata["uid"], metadata["generation"]))

    async def _apply(self, obj: Object, live: Object | None, uid: str, outcome: Outcome) -> bool:
        """Apply an object if it differs; False where the one of its name is another's."""
        try:
            if live is None:
                live = await self._stranger(obj)
            if live is not None:
                if not owned(live, uid):
                    outcome.errors.append(_not_ours(obj))
                    return False
                if live["metadata"].get("deletionTimestamp") or not changed(obj, live):
                    return True
                if self._vain.get(live["metadata"]["uid"]) == (obj, _content(live)):
                    return True
                if (kept := handover(obj, live)) is not None:
                    self._take(await self._client.apply(kept, manager=HANDOVER_MANAGER), outcome)
            answer = await self._client.apply(obj)
            if live is not None and _content(answer) == _content(live):
                # An admission policy, or an entry that somebody else owns: applying it again would change nothing.
                log.warning("%s changed nothing: somebody else has it otherwise, and so it stays", _what("apply", obj))
                self._vain[live["metadata"]["uid"]] = (obj, _content(live))
                self._store.put(kind_of(answer), answer, quiet=True)
            else:
                self._vain.pop(answer["metadata"]["uid"], None)
                self._take(answer, outcome)
        except ApiError as error:
            outcome.refused(_what("apply", obj), error)
        return True

    async def _stranger(self, obj: Object) -> Object | None:
        """An object of this name that our watches don't show: without our labels, or too new for them."""
        metadata = obj["metadata"]
        try:
            found = await self._client.get(kind_of(obj), metadata["namespace"], metadata["name"])
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        self._store.put(kind_of(obj), found)
        return found

    async def _delete(self, obj: Object, outcome: Outcome, grace: int | None = None) -> None:
        try:
            answer = await self._client.delete(obj, grace)
        except ApiError as error:
            outcome.refused(_what("delete", obj), error)
            return
        outcome.writes += 1
        if answer.get("kind") == obj["kind"]:
            self._store.put(kind_of(obj), answer, quiet=True)

    async def _refresh(self, obj: Object, outcome: Outcome) -> Object | None:
        """Bring the store up to date with one object; None if it is gone."""
        kind, metadata = kind_of(obj), obj["metadata"]
        try:
            found = await self._client.get(kind, metadata["namespace"], metadata["name"])
        except ApiError as error:
            if error.status != 404:
                outcome.refused(_what("get", obj), error)
            return None
        self._store.put(kind, found)
        return found

    def _take(self, answer: Object, outcome: Outcome) -> None:
        self._store.put(kind_of(answer), answer, quiet=True)
        outcome.writes += 1


def _labelled_as(found: Object, wanted: Object) -> bool:
    labels = found["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in wanted["metadata"]["labels"].items())


def _not_ours(obj: Object) -> str:
    return (
        f"{obj['kind']} {obj['metadata']['name']} exists and isn't this resource's: remove it, or give the resource "
        "another name"
    )


def backends(route: Object) -> set[str]:
    """Services that an HTTPRoute sends requests to; nothing for any other object."""
    if kind_of(route) is not HTTP_ROUTE:
        return set()
    rules = route.get("spec", {}).get("rules") or []
    return {ref["name"] for rule in rules for ref in rule.get("backendRefs") or [] if ref.get("weight", 1)}


def _content(obj: Object) -> Object:
    """What an apply may change of an object; its status and what the server keeps of it left out."""
    metadata = {name: obj["metadata"].get(name) for name in ("labels", "annotations", "ownerReferences")}
    return {name: value for name, value in obj.items() if name not in ("status", "metadata")} | metadata


def _what(verb: str, obj: Object) -> str:
    return f"{verb} {obj['kind']} {obj['metadata']['name']}"
