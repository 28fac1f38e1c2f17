"""Real vLLM engines and vllm-router on loopback addresses, as the tests need them: started, asked, scraped, stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.vllm.install import UNTOUCHED, VENV

START_SECONDS = 1800.0
SERVED_NAME = "tiny"
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
# Where the caller's environment forbids it, each start of vLLM would compile thousands of files anew.
KEEP_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
# What a router sends to the prefill instance.
PREFILL_PARAMS = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(frozen=True)
class Platform:
    """How vLLM is started: command of ``vllm serve``, environment over the process's own, long options, flags."""

    serve: tuple[str, ...]
    environment: Mapping[str, str]
    arguments: Mapping[str, str]
    flags: tuple[str, ...] = ()


SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")
"""``vllm serve`` as arguments of the interpreter that has it."""
CPU = Platform(
    serve=(str(VENV / "bin/python"), *SERVE),
    environment=OFFLINE
    | KEEP_BYTECODE
    | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # One core is enough for the model, and pinned workers would share one with NIXL's polling thread.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "UCX_TLS": "tcp,self",
    },
    arguments={
        "dtype": "float32",
        "max-model-len": "1024",
        "max-num-seqs": "8",
        "block-size": "32",
        "kv-cache-memory-bytes": "67108864",
    },
    flags=("enforce-eager",),
)
# vLLM as its wheel brings it, without the patch series.
CPU_UNTOUCHED = replace(CPU, environment={**CPU.environment, "PYTHONPATH": str(UNTOUCHED)})


class StartError(Exception):
    """A server ended before it was healthy; the message is the end of its log."""


@dataclass(frozen=True)
class Answer:
    """Status and JSON body of an HTTP answer."""

    status: int
    body: dict[str, Any]

    @property
    def token_ids(self) -> list[int]:
        """Generated token ids of a completion."""
        ids: list[int] = self.body["choices"][0]["token_ids"]
        return ids


def post(url: str, body: Mapping[str, Any], timeout: float = 600.0) -> Answer:
    """POST JSON; any HTTP status is an answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return Answer(response.status, json.load(response))
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        try:
            return Answer(error.code, json.loads(text))
        except ValueError:
            return Answer(error.code, {"text": text})


def get(url: str, timeout: float = 60.0) -> str:
    """GET a text, in time even from a busy machine.

    Raises:
        OSError: no answer, or a status that is no success.
    """
    with urllib.request.urlopen(url, timeout=timeout) as response:
        text: str = response.read().decode()
        return text


@dataclass(frozen=True)
class Engine:
    """A vLLM server that answers at ``url``; its log is a file."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]

    def complete(self, prompt: Sequence[int], max_tokens: int, **more: Any) -> Answer:
        """One greedy completion of exactly ``max_tokens`` tokens."""
        return post(f"{self.url}/v1/completions", completion(prompt, max_tokens) | more)

    def metrics(self) -> str:
        """The text of /metrics."""
        return get(f"{self.url}/metrics")

    def threads(self) -> list[Path]:
        """Folders under /proc of its processes' threads."""
        found: list[Path] = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # one that has ended meanwhile
                if os.getpgid(int(folder.name)) == self.process.pid:
                    found += folder.glob("task/[0-9]*")
        return found

    def cpu_seconds(self) -> float:
        """CPU time that its threads have taken so far."""
        ticks = 0
        for thread in self.threads():
            with contextlib.suppress(OSError):
                # Behind the name in parentheses, from the state on: user and system time.
                fields = (thread / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def completion(prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
    """Body of a greedy completion of exactly ``max_tokens`` tokens, with token ids in the answer."""
    return {
        "model": SERVED_NAME,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


def speculative(depth: int, **more: Any) -> dict[str, str]:
    """Arguments for MTP at this depth."""
    config = {"method": "mtp", "num_speculative_tokens": depth} | more
    return {"speculative-config": json.dumps(config)}


def nixl(
    role: str, policy: str = "fail", connector: str = "NixlConnector", device: str = "cpu", **extra: Any
) -> dict[str, str]:
    """Arguments for a prefill (``kv_producer``) or decode (``kv_consumer``) instance over NIXL."""
    config = {
        "kv_connector": connector,
        "kv_role": role,
        "kv_buffer_device": device,
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": extra,
    }
    return {"kv-transfer-config": json.dumps(config)}


@contextlib.contextmanager
def engine(
    model: Path,
    port: int,
    log: Path,
    arguments: Mapping[str, str],
    *,
    flags: Sequence[str] = (),
    side_channel: int | None = None,
    platform: Platform = CPU,
) -> Iterator[Engine]:
    """A vLLM server, healthy when the body is entered, ended after it.

    Args:
        model: folder of the checkpoint.
        port: on the loopback address.
        log: file for its output.
        arguments: long options by name, over the platform's.
        flags: options without a value, beside the platform's.
        side_channel: port of NIXL's side channel.
        platform: how vLLM is started.

    Raises:
        StartError: it ended, or wasn't healthy in time.
    """
    fixed = {"host": "127.0.0.1", "port": str(port), "served-model-name": SERVED_NAME}
    command = [*platform.serve, str(model)]
    for name, value in (fixed | dict(platform.arguments) | dict(arguments)).items():
        command += [f"--{name}", value]
    command += [f"--{flag}" for flag in (*platform.flags, *flags)]
    environment = os.environ | platform.environment
    if side_channel is not None:
        environment |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel)}
    url = f"http://127.0.0.1:{port}"
    with run(command, log, environment) as process:
        wait_until_healthy(f"{url}/health", process, log)
        yield Engine(url, log, process)


@contextlib.contextmanager
def run(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process group of its own, ended with the body."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Ask until the URL answers with a success.

    Raises:
        StartError: the process ended, or time is up.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            get(url, timeout=5)
            return
        time.sleep(0.5)
    raise StartError("\n".join(log.read_text(errors="replace").splitlines()[-200:]))


def disaggregated(prefill: Engine, decode: Engine, prompt: Sequence[int], max_tokens: int, **changed: Any) -> Answer:
    """One request as a router sends it: prefill first, its ``kv_transfer_params`` then to decode, under one id.

    In push mode the id is what the prefill instance finds the decode instance's registration by.

    Args:
        prefill, decode: the two servers.
        prompt: token ids.
        max_tokens: to generate on the decode instance.
        changed: entries of ``kv_transfer_params`` to falsify on their way.
    """
    name = uuid.uuid4().hex
    first = prefill.complete(prompt, 1, request_id=name, kv_transfer_params=PREFILL_PARAMS)
    assert first.status == 200, first.body
    handed = first.body["kv_transfer_params"] | changed
    return decode.complete(prompt, max_tokens, request_id=name, kv_transfer_params=handed)


def in_parallel(calls: Sequence[Any], width: int = 4) -> list[Answer]:
    """Results of the calls, in their order, ``width`` at a time."""
    with ThreadPoolExecutor(width) as pool:
        return list(pool.map(lambda call: call(), calls))
