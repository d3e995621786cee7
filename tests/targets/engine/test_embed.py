"""Requests for vectors to an engine that does as it is told; real engines answer in tests/real."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from loadgen.errors import LoadgenError
from loadgen.measure.outcome import Exchange
from loadgen.profile import EngineTarget, Workload
from loadgen.targets.engine.embed import EmbedSession, Pooling, Texts, pooling_of, pooling_target

NAMES = frozenset({"dimensions", "use_activation"})
"""What vLLM's PoolingParams takes for a vector."""


class ToldEngine:
    """Answers text `n` with a vector of `lengths[n]` numbers; fails with an error; never answers None."""

    def __init__(self, *lengths: int | Exception | None) -> None:
        self.lengths = lengths
        self.doomed = False
        self.asked: list[str] = []
        self.aborted: list[str] = []
        self.all_asked = anyio.Event()

    async def encode(self, prompt: dict[str, Any], parameters: Any, request_id: str, priority: int) -> Any:
        self.asked.append(request_id)
        if len(self.asked) == len(self.lengths):
            self.all_asked.set()
        length = self.lengths[int(request_id.rpartition("-")[2])]
        await self.all_asked.wait()  # no text waits for another's answer
        if length is None:
            await anyio.sleep_forever()
        if isinstance(length, Exception):
            raise length
        data = SimpleNamespace(numel=lambda: length)
        yield SimpleNamespace(outputs=SimpleNamespace(data=data), prompt_token_ids=prompt["prompt_token_ids"])

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def failure_of(self, error: Exception, prompt_tokens: int | None) -> tuple[str, str]:
        return "too_long", f"{error} of {prompt_tokens}"

    def doom(self) -> None:
        self.doomed = True

    def epitaph(self) -> str:
        return "the engine died"


def session_on(engine: ToldEngine, dimensions: int | None = None) -> EmbedSession:
    session = EmbedSession.__new__(EmbedSession)
    session._engine = engine
    session._now_ns = lambda: 5
    session._dimensions = dimensions
    session._pooling = Pooling({})
    return session


def texts(count: int) -> Texts:
    """Of 1, 2, ... tokens."""
    return Texts("r", tuple({"prompt_token_ids": [7] * tokens} for tokens in range(1, count + 1)), None)


def answered(*lengths: int | Exception | None, dimensions: int | None = None) -> tuple[ToldEngine, Exchange]:
    async def ask() -> tuple[ToldEngine, Exchange]:
        engine, exchange = ToldEngine(*lengths), Exchange()
        with anyio.fail_after(5):
            await session_on(engine, dimensions).send(texts(len(lengths)), exchange)
        return engine, exchange

    return anyio.run(ask)


# --- answers ----------------------------------------------------------------------------------------------------------


def test_texts_are_sent_together_and_each_has_a_vector():
    engine, exchange = answered(64, 64, 64)
    assert exchange.failure is None
    assert (exchange.items, exchange.dimensions) == (3, 64)
    assert exchange.prompt_tokens == 1 + 2 + 3
    assert exchange.end_ns == 5
    assert engine.aborted == []


def test_vectors_are_no_stream_and_generate_nothing():
    _, exchange = answered(64)
    assert not exchange.streamed
    assert len(exchange.chunks_ns) == 0
    assert exchange.chunk_tokens is exchange.output_tokens is exchange.first_content_ns is None


@pytest.mark.parametrize(("lengths", "dimensions"), [((64, 32), None), ((64, 64), 32)])
def test_vectors_of_other_lengths_than_asked_for_are_no_answer(lengths, dimensions):
    _, exchange = answered(*lengths, dimensions=dimensions)
    assert exchange.failure == "protocol"
    assert exchange.dimensions is None


def test_one_text_that_fails_ends_the_request_and_the_rest_is_aborted():
    engine, exchange = answered(None, ValueError("too many"), None)
    assert (exchange.failure, exchange.message) == ("too_long", "too many of 2")
    assert sorted(engine.aborted) == ["r-0", "r-2"]
    assert exchange.prompt_tokens is exchange.items is None
    assert not exchange.target_gone


def test_an_engine_that_aborts_what_nobody_gave_up_is_taken_for_dead():
    engine, exchange = answered(64, 0)
    assert exchange.failure == "engine_dead"
    assert exchange.target_gone
    assert engine.doomed


def test_a_request_that_is_cancelled_is_aborted_whole():
    async def ask() -> tuple[ToldEngine, Exchange]:
        engine, exchange = ToldEngine(None, None), Exchange()
        async with anyio.create_task_group() as group:
            group.start_soon(session_on(engine).send, texts(2), exchange)
            await engine.all_asked.wait()
            group.cancel_scope.cancel()
        return engine, exchange

    engine, exchange = anyio.run(ask)
    assert sorted(engine.aborted) == ["r-0", "r-1"]
    assert exchange.end_ns is None
    assert exchange.failure is None


# --- what is asked ----------------------------------------------------------------------------------------------------


def embed(**keys: Any) -> Workload:
    return Workload(kind="embed", **keys)


def test_dimensions_are_asked_for_where_the_profile_has_them():
    assert pooling_of(embed(), NAMES) == Pooling({})
    assert pooling_of(embed(dimensions=32), NAMES) == Pooling({"dimensions": 32})


def test_a_body_has_the_parameters_of_pooling_and_the_priority():
    pooling = pooling_of(embed(dimensions=32, body={"use_activation": False, "priority": 3}), NAMES)
    assert pooling == Pooling({"dimensions": 32, "use_activation": False}, 3)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"use_activations": True}, "no pooling parameter of this vLLM; did you mean `use_activation`?"),
        ({"encoding_format": "base64"}, "no pooling parameter of this vLLM"),
        ({"temperature": 1.0}, "no pooling parameter of this vLLM"),
        ({"model": "m"}, "an engine does not take it; use target.model"),
        ({"priority": "high"}, "must be a whole number"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_body_that_an_engine_has_no_use_for_is_refused_by_name(body, told):
    with pytest.raises(LoadgenError) as refused:
        pooling_of(embed(body=body), NAMES)
    assert str(refused.value) == f"workload.body.{next(iter(body))}: {told}"


def test_an_engine_for_vectors_pools_unless_the_profile_says_otherwise():
    target = EngineTarget(model="m", engine_args={"dtype": "float32"})
    assert pooling_target(target).engine_args == {"runner": "pooling", "dtype": "float32"}
    automatic = EngineTarget(model="m", engine_args={"runner": "auto"})
    assert pooling_target(automatic) == automatic
