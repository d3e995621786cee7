"""Choices, scores and vectors of real vLLM engines: in whole runs, and of sessions in this process.

A run builds an engine of its own; the sessions share two, one that generates and one that pools.
"""

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from conftest import ENGINE_ARGS

from loadgen.clock import MonotonicClock
from loadgen.errors import LoadgenError, TargetError
from loadgen.measure.outcome import Exchange
from loadgen.measure.records import Record
from loadgen.profile import EngineTarget, Workload
from loadgen.summary.summary import Stage
from loadgen.targets.engine.embed import EmbedSession
from loadgen.targets.engine.opening import check_task, open_engine
from loadgen.targets.engine.session import EngineSession
from loadgen.workload.request import Message, Request
from tests.end_to_end import Ran, run, sets

# The first test of an engine waits for it.
pytestmark = pytest.mark.timeout(300)

# 0: fine; 4: the generator was late, which it may well be where an engine and its load share the cores of a machine.
RAN = (0, 4)
RATE, SECONDS = 4, 5
REQUESTS = RATE * SECONDS
LABELS = ("no", "no way", "yes")
INPUTS = 3
WIDTH = 64
"""The tiny model's hidden size, which is the length of its vectors."""
CONTEXT = ENGINE_ARGS["max_model_len"]
GENERATING: dict[str, Any] = {"engine_args": ENGINE_ARGS}
# A model that was trained to: whether a vector may be cut is told by its configuration.
POOLING: dict[str, Any] = {"engine_args": {**ENGINE_ARGS, "hf_overrides": {"is_matryoshka": True}}}
SCORE = Workload(kind="score", prompt_format="tokens", output_tokens=4)


class Opened(NamedTuple):
    """A session with its engine, and the loop that they belong to."""

    portal: BlockingPortal
    session: Any

    def answer(self, session: EngineSession | EmbedSession, request: Request) -> Exchange:
        exchange = Exchange()
        self.portal.call(session.send, session.prepare(request), exchange)
        return exchange

    def all_answers(self, session: EngineSession | EmbedSession, requests: list[Request]) -> list[Exchange]:
        """Of requests that are in flight at the same time."""
        exchanges = [Exchange() for _ in requests]

        async def ask() -> None:
            async with anyio.create_task_group() as group:
                for request, exchange in zip(requests, exchanges, strict=True):
                    group.start_soon(session.send, session.prepare(request), exchange)

        self.portal.call(ask)
        return exchanges

    def unfinished(self) -> int:
        count: int = self.session._engine.vllm.output_processor.get_num_unfinished_requests()
        return count


@contextlib.contextmanager
def opened(model: Path, workload: Workload, trial: Request, **target: Any) -> Iterator[Opened]:
    clock = MonotonicClock()
    with start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
        opening = open_engine(EngineTarget(model=str(model), **target), workload, (workload, trial), None, clock)
        with portal.wrap_async_context_manager(opening) as session:
            yield Opened(portal, session)


# One engine after the other: what dies is told by the processes below this one, which are then an engine's alone.


@pytest.fixture(scope="class")
def scoring(tiny_model) -> Iterator[Opened]:
    with opened(tiny_model, SCORE, to_score(2, 2), **GENERATING) as it:
        yield it


@pytest.fixture(scope="class")
def embedding(tiny_model) -> Iterator[Opened]:
    with opened(tiny_model, Workload(kind="embed"), to_embed("a"), **POOLING) as it:
        yield it


def to_score(prompt: int, completion: int) -> Request:
    return Request(0, prompt=tuple(range(300, 300 + prompt + completion)), scored_tokens=completion)


def to_embed(*texts: str | tuple[int, ...], index: int = 0) -> Request:
    return Request(index, inputs=texts)


def chat(text: str, index: int = 0, labels: tuple[str, ...] | None = None) -> Request:
    return Request(index, messages=(Message("user", text),), labels=labels)


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not true():  # noqa: ASYNC110  (vLLM does not tell of it)
            await anyio.sleep(0.005)


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True, scope="module")
def folders() -> Iterator[None]:
    """The workers' folders lie in one that is gone afterwards; short, since sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        yield


def stage_of(folder: Path, model: Path, profile: str, **keys: Any) -> tuple[Stage, list[Record]]:
    """The only stage, and the records, of a ready profile on an engine of the tiny model."""
    args = [
        f"--set=target.engine_args.{name}={msgspec.json.encode(value).decode()}" for name, value in ENGINE_ARGS.items()
    ]
    short = sets(load__kind="constant", load__warmup="0s", workload__prompt_tokens=32, output__records=True, **keys)
    engine = ["--set=target.kind=engine", f"--set=target.model={model}"]
    options = [*engine, "--rate", str(RATE), "--duration", f"{SECONDS}s"]
    ran: Ran = run(folder, profile, *options, *args, *short, timeout=240)
    assert ran.exit_code in RAN, ran.stdout + ran.stderr
    (stage,) = ran.summary.stages
    lines = (folder / "requests.jsonl").read_bytes().splitlines()
    return stage, [msgspec.json.decode(line, type=Record) for line in lines]


def completed_without_a_stream(stage: Stage) -> None:
    assert stage.books.intended == stage.books.completed == REQUESTS
    latency = stage.latency_seconds
    assert latency.ttft is latency.service_ttft is latency.itl is latency.tpot is None
    for name in ("response", "service", "queued", "lateness"):
        assert getattr(latency, name).count == REQUESTS


def test_a_run_of_choices_counts_each_label(tiny_model, tmp_path):
    stage, records = stage_of(tmp_path / "run", tiny_model, "choice", workload__labels=LABELS)
    completed_without_a_stream(stage)
    assert sum(stage.labels.values()) == REQUESTS
    assert set(stage.labels) <= set(LABELS)
    # The longest label is 6 bytes, a token is at least one, and the end is a token.
    assert all(2 <= record.output_tokens <= 7 for record in records)


def test_a_run_of_scores_counts_the_tokens_scored(tiny_model, tmp_path):
    stage, records = stage_of(tmp_path / "run", tiny_model, "score", workload__output_tokens=8)
    completed_without_a_stream(stage)
    assert (stage.items.what, stage.items.mean) == ("scored tokens", 8)
    assert {(record.prompt_tokens, record.output_tokens, record.items) for record in records} == {(32 + 8, 1, 8)}


def test_a_run_of_embeddings_counts_vectors_and_their_dimensions(tiny_model, tmp_path):
    stage, records = stage_of(tmp_path / "run", tiny_model, "embed", workload__inputs=INPUTS)
    completed_without_a_stream(stage)
    assert (stage.items.what, stage.items.mean) == ("vectors", INPUTS)
    assert stage.items.dimensions == WIDTH
    assert {(record.prompt_tokens, record.items, record.output_tokens) for record in records} == {
        (32 * INPUTS, INPUTS, None)
    }


# --- sessions ---------------------------------------------------------------------------------------------------------


def answers_of_an_ended_engine(opened: Opened, requests: list[Request]) -> list[Exchange]:
    """What becomes of requests that are in flight as the engine is told to terminate."""
    exchanges = [Exchange() for _ in requests]
    (core,) = opened.session._engine._cores

    async def end_in_flight() -> None:
        async with anyio.create_task_group() as group:
            for request, exchange in zip(requests, exchanges, strict=True):
                group.start_soon(opened.session.send, opened.session.prepare(request), exchange)
            await until(lambda: opened.unfinished() >= len(requests))
            os.kill(core.pid, signal.SIGTERM)

    opened.portal.call(end_in_flight)
    return exchanges


class TestAnEngineThatGenerates:
    """The last test ends the engine that the others share."""

    def test_every_answer_to_a_choice_is_a_label_at_temperature_1(self, scoring):
        session = scoring.session.with_workload(Workload(kind="choice", labels=LABELS, body={"temperature": 1.0}))
        answers = scoring.all_answers(session, [chat(f"Is {i} even?", i) for i in range(200)])
        assert [answer.failure for answer in answers] == [None] * 200
        assert {answer.label for answer in answers} <= set(LABELS)
        assert len({answer.label for answer in answers}) > 1
        assert not any(answer.streamed or answer.chunks_ns for answer in answers)
        assert {answer.finish_reason for answer in answers} == {"stop"}

    def test_a_request_with_labels_of_its_own_is_answered_with_one_of_them(self, scoring):
        session = scoring.session.with_workload(Workload(kind="choice", labels=LABELS))
        own = ("red", "a longer label than any other")
        assert scoring.answer(session, chat("Which?", labels=own)).label in own

    def test_an_answer_that_the_body_constrains_to_no_label_fails(self, scoring):
        body = {"structured_outputs": {"choice": ["maybe", "perhaps"]}, "max_tokens": 20}
        session = scoring.session.with_workload(Workload(kind="choice", labels=LABELS, body=body))
        exchange = scoring.answer(session, chat("Is water wet?"))
        assert exchange.failure == "not_a_label"
        assert exchange.label is None
        assert "maybe" in exchange.message or "perhaps" in exchange.message

    def test_a_score_tells_of_the_completion_and_generates_one_token(self, scoring):
        exchange = scoring.answer(scoring.session, to_score(prompt=10, completion=6))
        assert exchange.failure is None
        assert (exchange.items, exchange.prompt_tokens, exchange.output_tokens) == (6, 16, 1)

    def test_the_log_probabilities_are_those_that_transformers_computes(self, scoring, tiny_model):
        import torch
        from transformers import AutoModelForCausalLM

        request = to_score(prompt=10, completion=6)

        async def told() -> Any:
            (output,) = [output async for output in scoring.session.outputs(scoring.session.prepare(request))]
            return output.prompt_logprobs

        ids = torch.tensor([request.prompt])
        model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
        with torch.no_grad():
            computed = torch.log_softmax(model(ids).logits[0], dim=-1)
        ours = scoring.portal.call(told)
        assert ours[0] is None
        assert len(ours) == 16
        for place in range(1, 16):
            token = request.prompt[place]
            assert ours[place][token].logprob == pytest.approx(computed[place - 1, token].item(), abs=1e-3)

    def test_what_leaves_no_room_for_the_one_token_is_too_long(self, scoring):
        assert scoring.answer(scoring.session, to_score(CONTEXT - 5, 5)).failure == "too_long"
        assert scoring.answer(scoring.session, to_score(CONTEXT - 6, 5)).failure is None

    def test_scores_that_are_in_flight_as_the_engine_ends_fail_as_such(self, scoring):
        exchanges = answers_of_an_ended_engine(
            scoring, [msgspec.structs.replace(to_score(500, 500), index=i) for i in range(64)]
        )
        assert {exchange.failure for exchange in exchanges} <= {None, "engine_dead"}
        assert exchanges[-1].failure == "engine_dead"
        assert exchanges[-1].target_gone


class TestAnEngineThatPools:
    """The last test ends the engine that the others share."""

    def test_a_kind_that_needs_generation_is_refused(self, embedding):
        told = r'kind = "chat" needs an engine that can generate; the model ".*" can embed, token_embed here'
        with pytest.raises(TargetError, match=told):
            embedding.portal.call(check_task, embedding.session._engine, Workload())

    def test_each_text_has_a_vector(self, embedding):
        exchange = embedding.answer(embedding.session, to_embed("one", "two and three", (300, 301, 302, 303)))
        assert exchange.failure is None
        assert (exchange.items, exchange.dimensions) == (3, WIDTH)
        special = embedding.session.opening.tokenization.special_tokens
        tokenizer = embedding.session._tokenizer
        plain = [len(tokenizer.encode(text, add_special_tokens=False)) for text in ("one", "two and three")]
        assert exchange.prompt_tokens == sum(plain) + 2 * special + 4
        assert exchange.output_tokens is None
        assert not exchange.streamed

    def test_vectors_have_the_dimensions_asked_for(self, embedding):
        session = embedding.session.with_workload(Workload(kind="embed", dimensions=16))
        assert embedding.answer(session, to_embed("one", "two")).dimensions == 16

    def test_dimensions_that_a_model_has_not_are_told_in_its_words(self, embedding):
        session = embedding.session.with_workload(Workload(kind="embed", dimensions=WIDTH + 1))
        exchange = embedding.answer(session, to_embed("one"))
        assert exchange.failure == "request"
        assert "dimensions" in exchange.message

    def test_a_text_beyond_the_context_fails_its_request_and_no_other(self, embedding):
        long, short = embedding.all_answers(
            embedding.session, [to_embed("one", (300,) * (CONTEXT + 1)), to_embed("one", index=1)]
        )
        assert long.failure == "too_long"
        assert short.failure is None
        assert embedding.unfinished() == 0

    def test_what_is_cancelled_is_given_up_in_the_engine(self, embedding):
        exchange = Exchange()
        texts = to_embed(*[(300 + i,) * 1000 for i in range(64)])

        async def cancel_in_flight() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(embedding.session.send, embedding.session.prepare(texts), exchange)
                await until(lambda: embedding.unfinished() == 64)
                group.cancel_scope.cancel()

        embedding.portal.call(cancel_in_flight)
        assert embedding.unfinished() == 0
        assert exchange.end_ns is None
        assert embedding.answer(embedding.session, to_embed("one")).failure is None

    def test_vectors_that_are_in_flight_as_the_engine_ends_fail_as_such(self, embedding):
        texts = [tuple((300 + i,) * 1000 for i in range(8))] * 16
        exchanges = answers_of_an_ended_engine(embedding, [to_embed(*each, index=i) for i, each in enumerate(texts)])
        assert {exchange.failure for exchange in exchanges} <= {None, "engine_dead"}
        assert exchanges[-1].failure == "engine_dead"
        assert exchanges[-1].target_gone


# --- what an engine cannot do -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "trial", "told"),
    [
        (
            Workload(kind="embed", body={"use_activation": "yes"}),
            Request(0, inputs=("a",)),
            r"workload\.body\.use_activation = ",
        ),
        (
            Workload(kind="embed", body={"encoding_format": "base64"}),
            Request(0, inputs=("a",)),
            r"workload\.body\.encoding_format: no pooling parameter",
        ),
        (
            Workload(kind="choice", labels=LABELS, body={"guided_choice": ["a"]}),
            Request(0),
            r"workload\.body\.guided_choice: an engine does not take it",
        ),
    ],
    ids=["value", "name", "hint"],
)
def test_a_body_that_is_of_no_use_is_refused_before_a_model_is_loaded(tiny_model, workload, trial, told):
    with pytest.raises(LoadgenError, match=told), opened(tiny_model, workload, trial, engine_args={}):
        pass
