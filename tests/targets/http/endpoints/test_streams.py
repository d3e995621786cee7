"""The streams of `/v1/responses` and `/v1/messages`: which events bear tokens, and how a stream ends."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measure.outcome import Exchange
from loadgen.profile import Workload
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.endpoints.table import endpoint_of
from loadgen.targets.http.sse import EventParser

USAGE = {"input_tokens": 7, "output_tokens": 3}


def named(event: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event).encode())


def response(kind: str, **fields: Any) -> bytes:
    return named({"type": f"response.{kind}", **fields})


def delta(text: str, kind: str = "text_delta", field: str = "text") -> bytes:
    return named({"type": "content_block_delta", "index": 0, "delta": {"type": kind, field: text}})


def message(kind: str, **fields: Any) -> bytes:
    return named({"type": kind, **fields})


RESPONSES = [
    response("created", response={"status": "in_progress"}),
    response("reasoning_text.delta", delta="hm"),
    response("output_text.delta", delta="a"),
    response("output_text.delta", delta="b"),
    response("output_text.done", text="ab"),
    response("completed", response={"status": "incomplete", "usage": USAGE}),
]
MESSAGES = [
    message("message_start", message={"usage": {"input_tokens": 7, "output_tokens": 0}}),
    message("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    delta("hm", "thinking_delta", "thinking"),
    delta("a"),
    message("ping"),
    delta("b"),
    message("content_block_stop", index=0),
    message("message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 3}),
    message("message_stop"),
]
STREAMS = [pytest.param("responses", RESPONSES, id="responses"), pytest.param("messages", MESSAGES, id="messages")]


def followed(kind: Any, *reads: bytes, texts: list[str] | None = None) -> Exchange:
    """The exchange of a stream that came in these reads, at the instants 1, 2, ... ns."""
    exchange, parser = Exchange(texts=texts), EventParser()
    reader = endpoint_of(Workload(kind=kind), TargetInfo(kind="http")).follow(exchange)
    for instant, read in enumerate(reads, 1):
        reader.take(parser.feed(read, instant))
    reader.finish(parser.mid_event)
    return exchange


@pytest.mark.parametrize(("kind", "events"), STREAMS)
def test_a_stream_has_the_instants_of_its_tokens_and_the_servers_counts(kind: str, events: list[bytes]) -> None:
    exchange = followed(kind, *events)
    tokens = [at for at, event in enumerate(events, 1) if b".delta" in event or b"content_block_delta" in event]
    assert list(exchange.chunks_ns) == tokens
    assert exchange.first_content_ns == tokens[1]  # the first was reasoning
    assert (exchange.failure, exchange.finish_reason) == (None, "length")
    assert (exchange.prompt_tokens, exchange.output_tokens, exchange.events) == (7, 3, len(events))


@pytest.mark.parametrize(("kind", "events"), STREAMS)
@given(data=st.data())
def test_any_split_of_the_bytes_is_the_same_stream(kind: str, events: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    split, whole = followed(kind, *pieces), followed(kind, stream)
    told = ("failure", "finish_reason", "prompt_tokens", "output_tokens", "events")
    assert [getattr(split, name) for name in told] == [getattr(whole, name) for name in told]
    assert len(split.chunks_ns) == len(whole.chunks_ns) == 3


@pytest.mark.parametrize(("kind", "events"), STREAMS)
@pytest.mark.parametrize(("tail", "where"), [(b"", "before its last event"), (b"data: {", "in the middle of an event")])
def test_a_stream_without_its_end_is_a_disconnect(kind: str, events: list[bytes], tail: bytes, where: str) -> None:
    exchange = followed(kind, *events[:-1], tail)
    assert exchange.failure == "disconnect"
    assert exchange.message == f"the stream ended {where}, after {len(events) - 1} events"
    assert len(exchange.chunks_ns) == 3


@pytest.mark.parametrize(("kind", "events"), STREAMS)
@pytest.mark.parametrize(
    "error",
    [
        named({"type": "error", "error": {"type": "api_error", "message": "it died"}}),
        named({"type": "error", "message": "it died", "code": None}),
        b'data: {"error": {"message": "it died", "code": 500}}\n\n',
    ],
)
def test_an_error_within_a_stream_is_the_servers(kind: str, events: list[bytes], error: bytes) -> None:
    exchange = followed(kind, *events[:3], error, *events[3:])
    assert (exchange.failure, exchange.message) == ("server_error", "it died")


@pytest.mark.parametrize("kind", ["responses", "messages"])
@pytest.mark.parametrize("data", [b"{]", b"[]", b"7"])
def test_an_event_that_is_no_object_is_no_answer(kind: str, data: bytes) -> None:
    assert followed(kind, b"data: " + data + b"\n\n").failure == "protocol"


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        ("responses", [*RESPONSES[:4], response("completed", response={"status": "cancelled", "usage": USAGE})]),
        ("messages", [*MESSAGES[:-2], message("message_delta", delta={"stop_reason": None}), MESSAGES[-1]]),
    ],
)
def test_an_answer_that_the_server_gave_up_is_an_abort(kind: str, events: list[bytes]) -> None:
    assert followed(kind, *events).failure == "abort"


def test_a_response_that_failed_says_why() -> None:
    failed = response("failed", response={"status": "failed", "error": {"message": "no room"}})
    exchange = followed("responses", *RESPONSES[:3], failed)
    assert (exchange.failure, exchange.message) == ("server_error", "no room")


@pytest.mark.parametrize(("kind", "events"), STREAMS)
def test_what_comes_after_the_end_is_counted_and_ignored(kind: str, events: list[bytes]) -> None:
    exchange = followed(kind, b"".join(events) + b"data: [DONE]\n\n" + b"data: {]\n\n")
    assert (exchange.failure, exchange.events) == (None, len(events) + 2)


@pytest.mark.parametrize(("kind", "events"), STREAMS)
def test_what_a_stream_says_is_kept_without_its_reasoning_as_far_as_it_came(kind: str, events: list[bytes]) -> None:
    assert followed(kind, *events, texts=[]).texts == ["a", "b"]
    said = events.index(next(event for event in events if b'"a"' in event))
    assert followed(kind, *events[: said + 1], texts=[]).texts == ["a"]
    assert followed(kind, *events).texts is None
