"""What is wrong with a resource, said so that a person can mend it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with a resource that its schema can't say."""

    path: str
    value: str
    message: str
    """What is wrong and what to do."""
    reason: str = "InvalidSpec"
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.path}: {self.value}: {self.message}" if self.value else f"{self.path}: {self.message}"
