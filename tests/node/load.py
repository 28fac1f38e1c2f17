"""Clients that come at an open rate, ask a tiny model whose answers are known, and check every token.

Requests arrive by a Poisson process whether or not earlier ones were answered, each on a connection of its own, and
are never sent twice. Which revision answered is read from ``system_fingerprint``, which the specs of these tests set.
"""

from __future__ import annotations

import asyncio
import collections
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

PROMPT: Final = 48
"""Tokens of a prompt: more than one block, so that KV moves."""
PATIENCE: Final = 180.0
"""Seconds until a client gives up."""


@dataclass(frozen=True)
class Outcome:
    """One request.

    Attributes:
        sent, done: Unix seconds.
        stream: whether the answer came in pieces.
        revision: what the answer said of its revision; empty if nothing.
        failure: why there was no whole answer; empty if there was.
        exact: whether every token was the right one.
    """

    sent: float
    done: float
    stream: bool
    revision: str
    failure: str
    exact: bool

    @property
    def wrong(self) -> bool:
        """A whole answer with a token that isn't right."""
        return not self.failure and not self.exact


@dataclass(frozen=True)
class Question:
    """A prompt and the only right answer to it, as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def questions(cycle: Sequence[int], tokens: int, seed: int) -> Iterator[Question]:
    """Endless questions to a model of `tests.vllm.tiny_mtp`: it goes on along its cycle from the last token.

    Args:
        cycle: the model's.
        tokens: of each answer.
        seed: of the prompts.
    """
    pick = random.Random(seed)
    while True:
        prompt = tuple(pick.choice(cycle) for _ in range(PROMPT))
        at = cycle.index(prompt[-1])
        yield Question(prompt, tuple(cycle[(at + 1 + i) % len(cycle)] for i in range(tokens)))


class Load:
    """Clients as long as the body of `with` lasts; those that wait for an answer at its end are waited for.

    Attributes:
        outcomes: of every request that has ended, in the order of their ends.
    """

    def __init__(self, url: str, model: str, cycle: Sequence[int], *, rate: float, tokens: int = 24, seed: int = 1):
        """Set up.

        Args:
            url: of the entry, without a path.
            model: served name.
            cycle: the model's.
            rate: requests a second.
            tokens: of each answer.
            seed: of arrivals and prompts.
        """
        self.url, self.model, self.rate, self.tokens = url, model, rate, tokens
        self.outcomes: list[Outcome] = []
        self._questions = questions(cycle, tokens, seed)
        self._random = random.Random(seed)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()

    async def _serve(self) -> None:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as all_:
            due = time.monotonic()
            while not self._ending.is_set():
                due += self._random.expovariate(self.rate)
                # Late only by the loop's own delay: the rate is open.
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                stream = self._random.random() < 0.25
                all_.create_task(self._ask(session, next(self._questions), stream))

    async def _ask(self, session: aiohttp.ClientSession, question: Question, stream: bool) -> None:
        body = {
            "model": self.model,
            "prompt": list(question.prompt),
            "max_tokens": self.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": stream,
        }
        sent, failure, revision, got = time.time(), "", "", []
        try:
            async with session.post(f"{self.url}/v1/completions", json=body) as answer:
                if answer.status != 200:
                    failure = f"{answer.status}: {(await answer.text())[:300]}"
                else:
                    pieces = _pieces(await answer.text(), stream)
                    got = [token for piece in pieces for token in _tokens(piece)]
                    revision = next((str(p["system_fingerprint"]) for p in pieces if p.get("system_fingerprint")), "")
                    failure = next((_told(p["error"]) for p in pieces if "error" in p), "")
                    if not failure and len(got) < len(question.answer):
                        failure = f"cut after {len(got)} tokens"
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            failure = f"{type(error).__name__}: {error}"
        exact = tuple(got) == question.answer
        self.outcomes.append(Outcome(sent, time.time(), stream, revision, failure, exact))

    def answered(self, revision: str) -> list[Outcome]:
        """Whole answers of one revision."""
        return [found for found in list(self.outcomes) if found.revision == revision and not found.failure]

    def failed(self) -> list[Outcome]:
        """Requests without a whole answer."""
        return [found for found in list(self.outcomes) if found.failure]

    def wrong(self) -> list[Outcome]:
        """Whole answers that aren't right."""
        return [found for found in list(self.outcomes) if found.wrong]

    def summary(self) -> str:
        """Counts, and what failed, for people."""
        by_revision = collections.Counter(found.revision or "-" for found in list(self.outcomes))
        slow = max((found.done - found.sent for found in list(self.outcomes)), default=0.0)
        counted = ", ".join(f"{count} by {name}" for name, count in sorted(by_revision.items()))
        whole = (
            f"{len(self.outcomes)} requests ({counted}), {len(self.failed())} failed, {len(self.wrong())} wrong, "
            f"slowest {slow:.1f} s"
        )
        began = min((found.sent for found in list(self.outcomes)), default=0.0)
        lines = [
            f"  at {found.sent - began:.1f} s{', a stream' * found.stream}: {found.failure or 'wrong tokens'}"
            for found in (self.failed() + self.wrong())[:20]
        ]
        return "\n".join([whole, *lines])


def _pieces(text: str, stream: bool) -> list[dict[str, Any]]:
    if not stream:
        return [json.loads(text)]
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _told(error: Any) -> str:
    """An error within an answer that began as a good one."""
    code = error.get("code") if isinstance(error, dict) else None
    return f"{code or 'error'} in a stream: {error}"[:300]


def _tokens(piece: dict[str, Any]) -> list[int]:
    return [token for choice in piece.get("choices", []) for token in choice.get("token_ids") or []]
