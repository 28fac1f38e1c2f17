"""What is started and stopped, by hand or by a `with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Running(ABC):
    """Runs within a `with`."""

    @abstractmethod
    def start(self) -> None:
        """Returns once it runs."""

    @abstractmethod
    def stop(self) -> None:
        """Returns once it has ended."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
