"""The project's own images, from its own Dockerfiles, for the node: operator, router, vLLM on a CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.bed.control_plane import ROOT
from tests.node import images
from tests.node.images import Archive
from tools import operator_image, serving_images

OPERATOR: Final = operator_image.IMAGE
ROUTER: Final = serving_images.ROUTER
VLLM: Final = serving_images.VLLM


@dataclass(frozen=True)
class Product:
    """One image.

    Attributes:
        image: its name.
        build: builds it on a base.
        sources: files and folders of the repository that it is made of.
    """

    image: str
    build: Callable[[str], str]
    sources: tuple[str, ...]

    def key(self) -> str:
        """Hash of its sources."""
        digest = hashlib.sha256()
        for source in self.sources:
            path = ROOT / source
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            for file in files:
                if file.is_file() and "__pycache__" not in file.parts and ".egg-info" not in str(file):
                    digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
        return digest.hexdigest()[:16]


PRODUCTS: Final = {
    found.image: found
    for found in (
        Product(
            OPERATOR, operator_image.build, ("Dockerfile", "pyproject.toml", "requirements/operator.txt", "operator")
        ),
        Product(ROUTER, serving_images.build_router, ("images/router",)),
        Product(VLLM, serving_images.build_vllm, ("images/vllm",)),
    )
}


def ensure(*chosen: str) -> list[Archive]:
    """Archives of images, all of them by default; built now where the cache doesn't hold today's.

    Raises:
        ImageError: a build failed, or an archive can't be written.
    """
    return [_ensure(PRODUCTS[image]) for image in chosen or PRODUCTS]


def _ensure(product: Product) -> Archive:
    def build() -> None:
        product.build(operator_image.make_base())

    return images.archive(product.image, product.key(), build)
