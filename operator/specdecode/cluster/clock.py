"""The operator's own clock: Unix time that never goes back while the process lives."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Unix seconds that grow by at least what has really passed.

    A machine's time may be set back by minutes or hours. Windows of evidence would then lie in the future and the
    analysis would see nothing new until that time comes again; deadlines would wait as long. Time that is set forward
    is taken as it is.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        """``wall``: Unix seconds, as the machine has them; ``steady``: seconds that only ever pass."""
        self._wall = wall
        self._steady = steady
        self._now = wall()
        self._at = steady()

    def __call__(self) -> float:
        """Now, Unix seconds."""
        at = self._steady()
        self._now, self._at = max(self._wall(), self._now + at - self._at), at
        return self._now
