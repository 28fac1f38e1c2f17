"""Liveness and readiness, from the times at which things last worked. Pure: the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Health:
    """What must go on for the process to be alive, and what must have happened for it to be ready.

    Times are seconds of one monotonic clock. Each heartbeat has a bound of its own: the age at which it is dead.
    """

    bounds: dict[str, float] = field(default_factory=dict)
    beats: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    """What readiness still waits for, with why."""

    def expect(self, name: str, bound: float, now: float) -> None:
        """Begin to watch a heartbeat that may be ``bound`` seconds old at most."""
        self.bounds[name] = bound
        self.beats.setdefault(name, now)

    def beat(self, name: str, now: float) -> None:
        """Note that something worked."""
        self.beats[name] = now

    def drop(self, name: str) -> None:
        """Stop watching a heartbeat."""
        self.bounds.pop(name, None)
        self.beats.pop(name, None)

    def wait(self, name: str, why: str) -> None:
        """Readiness waits for ``name``."""
        self.waiting[name] = why

    def done(self, name: str) -> None:
        """Readiness no longer waits for ``name``."""
        self.waiting.pop(name, None)

    def dead(self, now: float) -> list[str]:
        """What is overdue, a sentence each; empty while the process is alive."""
        return [
            f"{name}: nothing for {now - self.beats[name]:.0f} s, at most {bound:.0f} s are usual"
            for name, bound in sorted(self.bounds.items())
            if now - self.beats[name] > bound
        ]

    def unready(self) -> list[str]:
        """What readiness waits for, a sentence each."""
        return [f"{name}: {why}" for name, why in sorted(self.waiting.items())]
