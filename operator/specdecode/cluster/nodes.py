"""Nodes that are gone: asked for only when a Pod of ours should have ended long ago.

A Pod whose grace period is over and that is still there sits on a node that doesn't answer. Watching all nodes of a
cluster for that would cost more than everything else; asking for the one node costs a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

from .client import ApiError, Client
from .kinds import NODE, POD, Object, kind_of

log: Final = logging.getLogger(__name__)

RESERVE: Final = 30.0
"""Seconds after the end of its grace period in which a Pod may still end by itself."""
_REMEMBER: Final = 20.0


def overdue(objects: Iterable[Object], now: float) -> tuple[set[str], float | None]:
    """Names of nodes with a Pod that should have ended by now, and when the next Pod becomes so, Unix seconds."""
    late: set[str] = set()
    due: float | None = None
    for obj in objects:
        stamp = obj["metadata"].get("deletionTimestamp")
        node = obj.get("spec", {}).get("nodeName")
        if kind_of(obj) is not POD or not stamp or not node:
            continue
        end = datetime.fromisoformat(stamp).timestamp() + RESERVE
        if end <= now:
            late.add(node)
        else:
            due = end if due is None else min(due, end)
    return late, due


def answers(node: Object) -> bool:
    """Whether a node's kubelet is heard of."""
    conditions = node.get("status", {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


class Nodes:
    """Asks for nodes, and remembers the answer for a little while.

    Args:
        client: asks.
        clock: Unix seconds.
    """

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[str, tuple[float, bool]] = {}

    async def lost(self, names: Iterable[str]) -> set[str]:
        """Those of the nodes that are gone or silent. A node that can't be asked for isn't lost."""
        now = self._clock()
        self._known = {name: known for name, known in self._known.items() if now - known[0] < _REMEMBER}
        for name in names:
            if name not in self._known:
                self._known[name] = (now, await self._is_lost(name))
        return {name for name in names if self._known[name][1]}

    async def _is_lost(self, name: str) -> bool:
        try:
            return not answers(await self._client.get(NODE, None, name))
        except ApiError as error:
            if error.status == 404:
                return True
            log.warning("node %s can't be asked for, its stuck Pods stay: %s", name, error)
            return False
