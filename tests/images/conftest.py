"""What the tests of the images share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.operator_image import environment


@pytest.fixture(scope="session", autouse=True)
def buildah() -> Iterator[None]:
    """Every buildah of these tests works as the builder's does, on the same storage."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        yield
