"""What holds for the unit tests: they are many and short, so the collector of cyclic garbage runs seldom."""

from __future__ import annotations

import gc

import pytest

# Walking what the imports left behind, again and again, was a fifth of the tests' time.
gc.set_threshold(100_000, 50, 50)


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
