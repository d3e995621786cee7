"""Responses: OpenAI's newer API for chats, whose stream has typed events."""

from typing import Any, Final

import msgspec

from loadgen import profile
from loadgen.measure.outcome import Exchange
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.chunks import ABORT, PROTOCOL, SERVER_ERROR, decode_answer, fail, shown
from loadgen.targets.http.endpoints.endpoint import Endpoint
from loadgen.targets.http.endpoints.stream import TypedReader, bear, count, end, objects_of
from loadgen.targets.http.error_body import words_of
from loadgen.targets.http.texts import keep_text
from loadgen.workload.request import Message

_DECODER: Final = msgspec.json.Decoder(dict[str, Any])
_VISIBLE: Final = "response.output_text.delta"
_LAST: Final = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_FINISH_REASONS: Final = {"completed": "stop", "incomplete": "length", "cancelled": ABORT}
"""A response's status, in the words of the other APIs."""


def responses_endpoint(workload: profile.Workload, info: TargetInfo) -> Endpoint:
    """Chats over `/v1/responses`. It takes no least number of output tokens."""
    return Endpoint(
        path="responses",
        streams=True,
        stream_fields={"stream": True},
        length_fields=("max_output_tokens", "ignore_eos"),
        conversation=_conversation,
        reader=lambda request: read_response,
        follow=lambda exchange: TypedReader(exchange, _read_event),
    )


def _conversation(messages: tuple[Message, ...]) -> dict[str, Any]:
    return {"input": messages}


def read_response(body: bytes, exchange: Exchange) -> None:
    """Read a response that was not streamed: usage, why it ended, failure."""
    told = decode_answer(body, _DECODER, exchange)
    if told is None:
        return
    if told.get("error"):
        fail(exchange, SERVER_ERROR, words_of(told["error"]) or "an error without a message")
    elif told.get("status") is None:
        fail(exchange, PROTOCOL, f"a response without a status: {shown(body)}")
    else:
        _close(exchange, told)
        for item in objects_of(told.get("output")):
            for part in objects_of(item.get("content")):
                if part.get("type") == "output_text":
                    keep_text(exchange, part.get("text"))


def _read_event(exchange: Exchange, told: dict[str, Any], instant_ns: int) -> bool:
    """Whether this was the last event."""
    kind = str(told.get("type", ""))
    if kind.endswith(".delta") and told.get("delta"):
        bear(exchange, instant_ns, told["delta"], visible=kind == _VISIBLE)
    if kind not in _LAST:
        return False
    response = told.get("response")
    _close(exchange, response if isinstance(response, dict) else {})
    return True


def _close(exchange: Exchange, response: dict[str, Any]) -> None:
    count(exchange, response.get("usage"))
    status = response.get("status")
    if status == "failed":
        fail(exchange, SERVER_ERROR, words_of(response.get("error")) or 'the response has the status "failed"')
        return
    end(exchange, _FINISH_REASONS.get(str(status)))
