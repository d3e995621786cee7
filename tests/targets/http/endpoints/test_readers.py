"""What whole answers of the kinds beyond chat and completion mean, and when they are none."""

import base64
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measure.outcome import Exchange
from loadgen.targets.http.endpoints.choice import longest_answer, read_label
from loadgen.targets.http.endpoints.embed import dimensions_of, read_vectors
from loadgen.targets.http.endpoints.messages import read_message
from loadgen.targets.http.endpoints.pooling import read_pooled, read_ranking
from loadgen.targets.http.endpoints.responses import read_response
from loadgen.targets.http.endpoints.score import read_score
from loadgen.targets.http.endpoints.tokenize import read_tokens
from loadgen.targets.http.endpoints.transcribe import read_transcript

LABELS = {"yes": "yes", "no way": "no way"}


def body(answer: Any) -> bytes:
    return json.dumps(answer).encode()


def said(content: str | None, finish_reason: str = "stop") -> bytes:
    """A chat's answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    return body({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})


def echoed(logprobs: list[float | None], prompt_tokens: int) -> bytes:
    """A completion's answer that echoes its prompt."""
    choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": {"token_logprobs": logprobs}}
    return body({"choices": [choice], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 1}})


def vectors(*embeddings: Any) -> bytes:
    data = [{"index": index, "embedding": embedding} for index, embedding in enumerate(embeddings)]
    return body({"object": "list", "data": data, "usage": {"prompt_tokens": 12, "total_tokens": 12}})


# --- choice -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["no way", " no way\n"])
def test_an_answer_that_is_a_label_is_noted_as_the_profile_writes_it(content: str) -> None:
    exchange = Exchange()
    read_label(said(content), exchange, LABELS)
    assert (exchange.failure, exchange.label) == (None, "no way")
    assert (exchange.prompt_tokens, exchange.output_tokens, exchange.finish_reason) == (9, 2, "stop")


@pytest.mark.parametrize("content", ["no", '"yes"', "yes, of course", "", None])
def test_an_answer_that_is_no_label_fails_and_is_shown(content: str | None) -> None:
    exchange = Exchange()
    read_label(said(content, "length"), exchange, LABELS)
    assert (exchange.failure, exchange.label) == ("not_a_label", None)
    assert exchange.message == f"the answer is no label: {json.dumps(content)}"


def test_an_aborted_answer_is_an_abort_and_not_a_wrong_label() -> None:
    exchange = Exchange()
    read_label(said("y", "abort"), exchange, LABELS)
    assert exchange.failure == "abort"


def test_the_longest_answer_leaves_a_token_for_each_byte_and_the_end() -> None:
    # é is two bytes of UTF-8, which a byte-level vocabulary may need two tokens for.
    assert longest_answer(("no", "épée")) == 6 + 1


# --- score ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generated", [[], [-9.0]], ids=["nothing generated", "a token generated"])
def test_the_tokens_of_the_completion_are_scored_and_not_what_was_generated(generated: list[float]) -> None:
    exchange = Exchange()
    read_score(echoed([None, -1.0, -2.0, -3.0, *generated], prompt_tokens=4), exchange, scored_tokens=2)
    assert (exchange.failure, exchange.items, exchange.prompt_tokens) == (None, 2, 4)


@pytest.mark.parametrize(
    "answer",
    [echoed([-1.0], prompt_tokens=4), echoed([None, -1.0, None, -3.0], prompt_tokens=4), said("a")],
    ids=["the prompt is not echoed", "a token has none", "no log-probabilities at all"],
)
def test_an_answer_without_the_scores_of_the_completion_is_none(answer: bytes) -> None:
    exchange = Exchange()
    read_score(answer, exchange, scored_tokens=2)
    assert exchange.failure == "protocol"


# --- tokenize ---------------------------------------------------------------------------------------------------------


def test_the_count_of_a_text_stands_as_the_prompt_s_tokens() -> None:
    exchange = Exchange()
    read_tokens(body({"count": 3, "max_model_len": 99, "tokens": [1, 2, 3]}), exchange)
    assert (exchange.failure, exchange.prompt_tokens, exchange.output_tokens) == (None, 3, None)


@pytest.mark.parametrize("answer", [{"count": 3, "tokens": [1, 2]}, {"count": -1, "tokens": []}, {"tokens": [1]}, []])
def test_an_answer_that_miscounts_is_none(answer: Any) -> None:
    exchange = Exchange()
    read_tokens(body(answer), exchange)
    assert exchange.failure == "protocol"


# --- embed ------------------------------------------------------------------------------------------------------------


def test_there_is_a_vector_for_each_input() -> None:
    exchange = Exchange()
    read_vectors(vectors([0.1, 0.2, 0.3], [1, 2, 3]), exchange, inputs=2, dimensions=None)
    assert (exchange.failure, exchange.items, exchange.dimensions, exchange.prompt_tokens) == (None, 2, 3, 12)


@pytest.mark.parametrize(
    ("answer", "inputs", "dimensions", "message"),
    [
        (vectors([0.1]), 2, None, "1 vectors came for 2 inputs"),
        (vectors([0.1], [0.1, 0.2]), 2, None, "vectors of 1, 2 dimensions came"),
        (vectors([0.1, 0.2]), 1, 3, "vectors of 2 dimensions came for 3"),
        (vectors([]), 1, None, "vectors of 0 dimensions came"),
        (vectors(None), 1, None, "vectors of 0 dimensions came"),
        (body({"data": None}), 1, None, "Expected `array`, got `null` - at `$.data`"),
    ],
)
def test_vectors_that_are_not_those_asked_for_are_none(
    answer: bytes, inputs: int, dimensions: int | None, message: str
) -> None:
    exchange = Exchange()
    read_vectors(answer, exchange, inputs=inputs, dimensions=dimensions)
    assert exchange.failure == "protocol"
    assert exchange.message.startswith(message)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1))
def test_the_dimensions_are_the_same_as_numbers_and_as_base64(numbers: list[float]) -> None:
    packed = base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
    assert dimensions_of(body(numbers)) == dimensions_of(body(packed)) == len(numbers)


# --- rerank and pooling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [[0], [0, 1, 2], [0, 0], [1, 2]])
def test_a_ranking_has_each_document_once(places: list[int]) -> None:
    exchange = Exchange()
    results = [{"index": place, "relevance_score": 0.5} for place in places]
    read_ranking(body({"results": results}), exchange, documents=2)
    assert (exchange.failure, exchange.message) == ("protocol", f"{len(places)} results came for 2 documents")


@pytest.mark.parametrize("places", [[], [1], [0, 0]])
def test_what_is_pooled_is_there_for_each_input(places: list[int]) -> None:
    exchange = Exchange()
    read_pooled(body({"data": [{"index": place, "data": [0.5]} for place in places]}), exchange, inputs=2)
    assert (exchange.failure, exchange.message) == ("protocol", f"{len(places)} results came for 2 inputs")


# --- responses and messages, whole ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "finish_reason", "failure"),
    [
        ("completed", "stop", None),
        ("incomplete", "length", None),
        ("cancelled", "abort", "abort"),
        ("in_progress", "abort", "abort"),
        ("failed", None, "server_error"),
        (None, None, "protocol"),
    ],
)
def test_a_response_ends_by_its_status(status: str | None, finish_reason: str | None, failure: str | None) -> None:
    exchange = Exchange()
    usage = {"input_tokens": 7, "output_tokens": 2}
    read_response(body({"status": status, "error": None, "usage": usage}), exchange)
    assert (exchange.finish_reason, exchange.failure) == (finish_reason, failure)
    if status is not None:
        assert (exchange.prompt_tokens, exchange.output_tokens) == (7, 2)


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason", "failure"),
    [
        ("end_turn", "stop", None),
        ("max_tokens", "length", None),
        ("tool_use", "tool_use", None),
        (None, "abort", "abort"),
    ],
)
def test_a_message_ends_by_its_stop_reason(stop_reason: str | None, finish_reason: str, failure: str | None) -> None:
    exchange = Exchange()
    usage = {"input_tokens": 7, "output_tokens": 2}
    read_message(body({"type": "message", "stop_reason": stop_reason, "usage": usage}), exchange)
    assert (exchange.finish_reason, exchange.failure) == (finish_reason, failure)
    assert (exchange.prompt_tokens, exchange.output_tokens) == (7, 2)


@pytest.mark.parametrize("count", [-1, 2**31 + 1, 10**20, True, "7", None])
def test_a_count_that_is_none_is_left_out(count: Any) -> None:
    exchange = Exchange()
    read_response(body({"status": "completed", "usage": {"input_tokens": count, "output_tokens": count}}), exchange)
    assert (exchange.prompt_tokens, exchange.output_tokens) == (None, None)


# --- transcripts, whole -----------------------------------------------------------------------------------------------


def test_a_whole_transcript_says_neither_how_long_it_is_nor_why_it_ended() -> None:
    exchange = Exchange()
    read_transcript(body({"text": "so be it", "usage": {"type": "duration", "seconds": 2}}), exchange)
    assert exchange.failure is None
    assert (exchange.prompt_tokens, exchange.output_tokens, exchange.finish_reason) == (None, None, None)


# --- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        lambda answer, exchange: read_label(answer, exchange, LABELS),
        lambda answer, exchange: read_score(answer, exchange, 1),
        read_tokens,
        lambda answer, exchange: read_vectors(answer, exchange, 1, None),
        lambda answer, exchange: read_ranking(answer, exchange, 1),
        lambda answer, exchange: read_pooled(answer, exchange, 1),
        read_response,
        read_message,
        read_transcript,
    ],
    ids=["choice", "score", "tokenize", "embed", "rerank", "pooling", "responses", "messages", "transcribe"],
)
@pytest.mark.parametrize(
    ("answer", "failure", "message"),
    [
        (b"", "protocol", "Input data was truncated"),
        (b"[]", "protocol", "Expected `object`, got `array`"),
        (b'{"error": {"message": "it died"}}', "server_error", "it died"),
    ],
)
def test_what_is_no_answer_of_any_kind_has_its_kind_of_failure(
    read: Any, answer: bytes, failure: str, message: str
) -> None:
    exchange = Exchange()
    read(answer, exchange)
    assert exchange.failure == failure
    assert exchange.message.startswith(message)
