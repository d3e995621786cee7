"""What answers say is kept where it is wanted: of each kind that says anything, streamed and whole."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measure.outcome import Exchange
from loadgen.profile import Audio, Workload
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.chunks import ChunkReader
from loadgen.targets.http.endpoints.table import endpoint_of
from loadgen.targets.http.sse import Event
from loadgen.workload.request import Request

THINKING = {"type": "thinking", "thinking": "hm"}
REASONING = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
WHOLE = {
    "chat": {"choices": [{"index": 0, "message": {"content": "yes", "reasoning": "hm"}, "finish_reason": "stop"}]},
    "completion": {"choices": [{"index": 0, "text": "yes", "finish_reason": "stop"}]},
    "choice": {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]},
    "transcribe": {"text": "yes"},
    "messages": {
        "type": "message",
        "stop_reason": "end_turn",
        "content": [THINKING, {"type": "text", "text": "y"}, {"type": "text", "text": "es"}],
    },
    "responses": {
        "status": "completed",
        "output": [REASONING, {"type": "message", "content": [{"type": "output_text", "text": "yes"}]}],
    },
}
ASKED: dict[str, dict[str, Any]] = {"choice": {"labels": ("yes", "no")}, "transcribe": {"audio": Audio()}}


def whole(kind: Any, answer: Any, texts: list[str] | None) -> Exchange:
    exchange = Exchange(texts=texts)
    endpoint = endpoint_of(Workload(kind=kind, **ASKED.get(kind, {})), TargetInfo(kind="http"))
    endpoint.reader(Request(0))(json.dumps(answer).encode(), exchange)
    return exchange


def streamed(deltas: list[dict[str, Any]], index: int = 0) -> list[str]:
    exchange = Exchange(texts=[])
    reader = ChunkReader(exchange)
    for instant, delta in enumerate(deltas):
        chunk = {"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": None}]}
        reader.take([Event(json.dumps(chunk, separators=(",", ":")).encode(), instant)])
    assert len(exchange.chunks_ns) == len(deltas)
    assert exchange.texts is not None
    return exchange.texts


@pytest.mark.parametrize(("kind", "answer"), WHOLE.items())
def test_what_a_whole_answer_says_is_kept_without_its_reasoning(kind: str, answer: Any) -> None:
    exchange = whole(kind, answer, [])
    assert exchange.failure is None
    assert "".join(exchange.texts or ()) == "yes"


@pytest.mark.parametrize(("kind", "answer"), WHOLE.items())
def test_what_nobody_wants_is_not_kept(kind: str, answer: Any) -> None:
    assert whole(kind, answer, None).texts is None


@pytest.mark.parametrize("message", [None, {"content": None}, {"content": [1]}, {}])
def test_an_answer_that_says_nothing_has_no_text(message: Any) -> None:
    exchange = whole("chat", {"choices": [{"message": message, "finish_reason": "stop"}]}, [])
    assert (exchange.texts, exchange.failure) == ([], None)


def test_of_several_choices_the_first_is_kept() -> None:
    choices = [{"index": 1, "text": "no"}, {"index": 0, "text": "yes"}]
    assert whole("completion", {"choices": choices}, []).texts == ["yes"]
    assert streamed([{"content": "no"}], index=1) == []


# Of tokens that differ in nothing but their text, later ones would not be decoded where no text is wanted.
@given(st.lists(st.text(min_size=1), min_size=5, max_size=20))
def test_every_piece_of_a_stream_is_kept_as_it_was_said(pieces: list[str]) -> None:
    assert streamed([{"content": piece} for piece in pieces]) == pieces


def test_the_reasoning_of_a_stream_is_not_kept() -> None:
    assert streamed([{"reasoning": "hm"}, {"reasoning_content": "hm"}, {"content": "yes"}]) == ["yes"]
