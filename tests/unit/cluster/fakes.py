"""A stand-in for the API server's client: objects in a dictionary, writes in a list."""

from __future__ import annotations

import asyncio
import copy
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from specdecode.cluster.client import ApiError
from specdecode.cluster.kinds import Kind, Object, kind_of

T = TypeVar("T")
Place = tuple[str, str | None, str]


class Clock:
    """Seconds that pass when told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class _NoWait(selectors.SelectSelector):
    """Instead of waiting lets the loop's time pass."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is not None and timeout > 0:
            self.passed += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while all its tasks wait, and then at once."""

    def __init__(self) -> None:
        self._no_wait = _NoWait()
        super().__init__(self._no_wait)

    def time(self) -> float:
        return self._no_wait.passed


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end without waiting for anything."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def merge(old: Any, new: Any) -> Any:
    """Roughly what server-side apply does with fields that are all ours."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {key: merge(old.get(key), new[key]) if key in new else old[key] for key in {**old, **new}}
    return copy.deepcopy(new)


class FakeClient:
    """Has `Client`'s calls. `refuse` makes writes fail; `before` runs ahead of each write, and `created` once an object
    is made, whose answer it may lose; `mutate` is an admission
    policy that changes what is applied."""

    def __init__(self) -> None:
        self.objects: dict[Place, Object] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.refuse: dict[tuple[str, str], ApiError] = {}
        self.before: Callable[[str, str, str], None] | None = None
        self.created: Callable[[Object], None] = lambda _: None
        self.mutate: Callable[[Object], Object] = lambda obj: obj
        self.serial = 100

    def place(self, obj: Object) -> Place:
        return (obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"])

    def add(self, obj: Object) -> Object:
        """Put an object into the cluster, as somebody else would."""
        self.serial += 1
        stored = copy.deepcopy(obj)
        stored["metadata"].setdefault("uid", f"uid-{self.serial}")
        stored["metadata"]["resourceVersion"] = str(self.serial)
        self.objects[self.place(stored)] = stored
        return copy.deepcopy(stored)

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        found = self.objects.get((kind.kind, namespace, name))
        if found is None:
            raise ApiError(404, "NotFound", f"{kind.plural} {name} not found")
        return copy.deepcopy(found)

    async def create(self, obj: Object) -> Object:
        self._write("create", obj)
        if self.place(obj) in self.objects:
            raise ApiError(409, "AlreadyExists", f"{obj['metadata']['name']} already exists")
        made = self.add(obj)
        self.created(made)
        return made

    async def apply(self, obj: Object, manager: str = "specdecode-operator") -> Object:
        self._write("apply", obj)
        old = self.objects.get(self.place(obj))
        return self.add(self.mutate(merge(old, obj) if old is not None else obj))

    async def put_status(self, resource: Object, status: Object) -> Object:
        self._write("put_status", resource)
        old = self.objects.get(self.place(resource))
        if old is None:
            raise ApiError(404, "NotFound", "no such object")
        if resource["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self.add(old | {"status": copy.deepcopy(status)})

    async def delete(self, obj: Object, grace: int | None = None) -> Object:
        self._write("delete" if grace is None else f"delete_{grace}", obj)
        there = self.objects.get(self.place(obj))
        if there is None or there["metadata"]["uid"] != obj["metadata"]["uid"]:
            return {}
        return self.objects.pop(self.place(obj))

    def _write(self, verb: str, obj: Object) -> None:
        kind_of(obj)
        name = obj["metadata"]["name"]
        if self.before is not None:
            self.before(verb, obj["kind"], name)
        if (obj["kind"], name) in self.refuse:
            raise self.refuse[(obj["kind"], name)]
        self.writes.append((verb, obj["kind"], name))
