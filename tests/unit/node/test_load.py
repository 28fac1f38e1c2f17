"""The clients of tests/node: a wrong token is seen, a cut answer is a failure, and nothing is asked twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice, pairwise
from typing import Any

import pytest

from tests.node.load import Load, questions

CYCLE = tuple(range(100, 160))


class Engine(ThreadingHTTPServer):
    """Goes along the cycle, and spoils its answers as it is told."""

    def __init__(self, spoil: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spoil = spoil
        self.bodies: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        at = CYCLE.index(body["prompt"][-1])
        tokens = [CYCLE[(at + 1 + i) % len(CYCLE)] for i in range(body["max_tokens"])]
        if self.server.spoil == "refuse":
            self.send_error(500, "told to")
            return
        if self.server.spoil == "wrong":
            tokens[-1] = 0
        if self.server.spoil == "cut":
            tokens = tokens[:-1]
        self.send_response(200)
        self.end_headers()
        halves = [tokens[:2], tokens[2:]] if body["stream"] else [tokens]
        pieces = [{"system_fingerprint": "mine", "choices": [{"token_ids": half}]} for half in halves]
        lines = [f"data: {json.dumps(piece)}\n\n" for piece in pieces] + ["data: [DONE]\n\n"]
        self.wfile.write(("".join(lines) if body["stream"] else json.dumps(pieces[0])).encode())


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine(request.param) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(engine: Engine, count: int = 12) -> Load:
    load = Load(f"http://127.0.0.1:{engine.server_port}", "tiny", CYCLE, rate=200.0, tokens=5)
    with load:
        while len(engine.bodies) < count:
            threading.Event().wait(0.01)
    return load


@pytest.mark.parametrize("engine", [""], indirect=True)
def test_right_answers_are_right_streamed_or_not(engine: Engine) -> None:
    load = ask(engine)
    assert load.failed() == load.wrong() == []
    assert {found.revision for found in load.outcomes} == {"mine"}
    assert {body["stream"] for body in engine.bodies} == {True, False}
    assert len(load.answered("mine")) == len(engine.bodies)


@pytest.mark.parametrize("engine", ["wrong"], indirect=True)
def test_one_wrong_token_is_a_wrong_answer(engine: Engine) -> None:
    load = ask(engine)
    assert load.failed() == []
    assert len(load.wrong()) == len(engine.bodies)


@pytest.mark.parametrize("engine", ["cut", "refuse"], indirect=True)
def test_half_an_answer_or_none_is_a_failure_and_not_asked_again(engine: Engine) -> None:
    load = ask(engine)
    assert len(load.failed()) == len(load.outcomes) == len(engine.bodies)
    assert load.wrong() == []
    prompts = [tuple(body["prompt"]) for body in engine.bodies]
    assert len(set(prompts)) == len(prompts)


def test_questions_are_the_same_for_a_seed_and_their_answers_follow_the_cycle() -> None:
    first, again, other = (list(islice(questions(CYCLE, 5, seed), 20)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    for question in first:
        steps = (question.prompt[-1], *question.answer)
        assert all(CYCLE[(CYCLE.index(a) + 1) % len(CYCLE)] == b for a, b in pairwise(steps))
