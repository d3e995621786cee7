"""What the session makes of how an engine ends an answer; the rest is tested on a real engine, in tests/real.

A real engine cannot be made to end a request with an error of its own, so here stands one that does as it is told.
"""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from loadgen.measure.outcome import Exchange
from loadgen.targets.engine.session import EngineSession, Prepared

ASKED = 8


class ToldEngine:
    """Yields one output of `tokens` tokens that ends with `finish_reason`."""

    max_model_len = 1024

    def __init__(self, tokens: int, finish_reason: str | None, dead: str | None = None) -> None:
        self.tokens = tokens
        self.finish_reason = finish_reason
        self.dead = dead
        self.doomed = False

    async def generate(self, *_: Any) -> Any:
        answer = SimpleNamespace(token_ids=[1] * self.tokens, text="x", finish_reason=self.finish_reason)
        yield SimpleNamespace(outputs=[answer], prompt_token_ids=[1, 2, 3], finished=self.finish_reason is not None)

    def doom(self) -> None:
        self.doomed = True

    def epitaph(self) -> str:
        return "the engine died"

    async def abort(self, request_id: str) -> None:
        raise AssertionError("what has ended is not aborted")


def answered(engine: ToldEngine) -> Exchange:
    session = EngineSession.__new__(EngineSession)
    session._engine = engine
    session._now_ns = lambda: 5
    session._sampling = SimpleNamespace(stream=True, priority=0)
    exchange = Exchange()
    prepared = Prepared("id", {"prompt_token_ids": [1, 2, 3]}, None, None, ASKED)
    anyio.run(session.send, prepared, exchange)
    return exchange


@pytest.mark.parametrize(
    ("tokens", "finish_reason", "dead", "failure"),
    [
        (ASKED, "length", None, None),
        (ASKED - 3, "stop", None, None),
        (ASKED - 3, "length", None, None),  # short, and told as such by the counts
        (ASKED - 3, "abort", None, "engine_dead"),
        (ASKED - 3, None, None, "engine_dead"),
        (ASKED - 3, "length", "EngineCore, exit code 0", "engine_dead"),
        (ASKED, "length", "EngineCore, exit code 0", None),  # whole before the engine ended
        (ASKED - 3, "error", None, "server_error"),
    ],
)
def test_an_answer_that_the_engines_end_cut_short_is_no_success(tokens, finish_reason, dead, failure):
    engine = ToldEngine(tokens, finish_reason, dead)
    exchange = answered(engine)
    assert exchange.failure == failure
    assert exchange.target_gone == (failure == "engine_dead")
    assert exchange.output_tokens == tokens
    assert exchange.end_ns == 5
    assert bool(exchange.message) == (failure is not None)
