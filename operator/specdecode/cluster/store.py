"""What is known of the cluster: the newest version seen of every object of ours, by the resource that it belongs to.

Three sources feed it: watch events, periodic lists, and the answers to our own writes, so that the next plan already
sees what the last one did. They arrive in any order; the resource version, which grows within a cluster, decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from .kinds import POD, SDD, Key, Kind, Object, owner_key

_TOMBSTONES: Final = 20_000


class Store:
    """Objects by owner key.

    Args:
        changed: called with the key of a resource whenever one of its objects is new, newer or gone.
    """

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._objects: dict[Key, dict[tuple[Kind, str], Object]] = {}
        self._home: dict[str, tuple[Key, Kind, str]] = {}  # by UID
        self._buried: dict[str, str] = {}  # version at which an object was seen to go, by UID, oldest first

    def put(self, kind: Kind, obj: Object, *, quiet: bool = False) -> None:
        """Take in an object, unless a newer version of it is known or it has been seen to go since.

        ``quiet``: the answer to a write of our own, whose maker knows of it.
        """
        key = owner_key(kind, obj)
        uid = obj["metadata"]["uid"]
        if uid in self._buried:
            if not _after(obj, self._buried[uid]):
                return
            del self._buried[uid]
        home = self._home.get(uid)
        if home is not None:
            known = self._objects[home[0]][home[1:]]
            if not _newer(obj, known):
                return
            if home[0] != key:
                self._take_out(uid)
        if key is None:
            return
        name = obj["metadata"]["name"]
        if kind is POD:
            # Pods are never applied, and there are many of them.
            obj["metadata"].pop("managedFields", None)
        obj.setdefault("apiVersion", kind.api_version)
        obj.setdefault("kind", kind.kind)
        replaced = self._objects.setdefault(key, {}).get((kind, name))
        if replaced is not None and replaced["metadata"]["uid"] != uid:
            if not _newer(obj, replaced):
                return
            self._home.pop(replaced["metadata"]["uid"], None)
        self._objects[key][(kind, name)] = obj
        self._home[uid] = (key, kind, name)
        if not quiet:
            self._changed(key)

    def remove(self, uid: str, version: str) -> None:
        """Forget an object that was gone, or had lost our label, at a resource version."""
        self._buried.pop(uid, None)
        self._buried[uid] = version
        while len(self._buried) > _TOMBSTONES:
            self._buried.pop(next(iter(self._buried)))
        self._take_out(uid)

    def settle(self, kind: Kind, listed: Iterable[Object], version: str, namespaces: tuple[str, ...] = ()) -> int:
        """Take in a whole list and forget what it lacks; how many were forgotten.

        Watches lose deletions that happen while they are cut, and nobody tells them later. Objects newer than the
        list are kept: they came after it.

        Args:
            kind: what was listed.
            listed: the objects.
            version: the list's resource version.
            namespaces: what was listed, if not all namespaces.
        """
        seen = set()
        for obj in listed:
            seen.add(obj["metadata"]["uid"])
            self.put(kind, obj)
        gone = [
            uid
            for uid, (key, its_kind, name) in self._home.items()
            if its_kind == kind
            and uid not in seen
            and (not namespaces or key[0] in namespaces)
            and not _after(self._objects[key][(kind, name)], version)
        ]
        for uid in gone:
            self.remove(uid, version)
        return len(gone)

    def touch(self, key: Key) -> None:
        """Have a resource looked at again, though none of its objects changed."""
        self._changed(key)

    def resources(self) -> list[Key]:
        """Resources that exist."""
        return [key for key in self._objects if self.resource(key) is not None]

    def resource(self, key: Key) -> Object | None:
        """A SpecDecodeDeployment as it was last seen."""
        return self._objects.get(key, {}).get((SDD, key[1]))

    def children(self, key: Key) -> list[Object]:
        """Objects with the resource's label, whoever owns them."""
        return [obj for (kind, _), obj in self._objects.get(key, {}).items() if kind is not SDD]

    def child(self, key: Key, kind: Kind, name: str) -> Object | None:
        """One object with the resource's label."""
        return self._objects.get(key, {}).get((kind, name))

    def _take_out(self, uid: str) -> None:
        home = self._home.pop(uid, None)
        if home is None:
            return
        key, kind, name = home
        del self._objects[key][(kind, name)]
        if not self._objects[key]:
            del self._objects[key]
        self._changed(key)


def _version(obj: Object) -> str:
    return str(obj["metadata"].get("resourceVersion", ""))


def _number(version: str) -> int | None:
    return int(version) if version.isdecimal() else None


def _newer(new: Object, old: Object) -> bool:
    a, b = _number(_version(new)), _number(_version(old))
    return _version(new) != _version(old) if a is None or b is None else a > b


def _after(obj: Object, version: str) -> bool:
    a, b = _number(_version(obj)), _number(version)
    return a is None or b is None or a > b
