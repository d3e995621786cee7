"""Messages: Anthropic's API for chats, as vLLM speaks it."""

from typing import Any, Final

import msgspec

from loadgen import profile
from loadgen.measure.outcome import Exchange
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.chunks import PROTOCOL, SERVER_ERROR, decode_answer, fail, shown
from loadgen.targets.http.endpoints.endpoint import Endpoint
from loadgen.targets.http.endpoints.stream import TypedReader, bear, count, end, objects_of
from loadgen.targets.http.error_body import words_of
from loadgen.targets.http.texts import keep_text
from loadgen.workload.request import Message, text_of

_DECODER: Final = msgspec.json.Decoder(dict[str, Any])
_VISIBLE: Final = "text_delta"
_TOKENS: Final = (_VISIBLE, "thinking_delta", "input_json_delta")
_FINISH_REASONS: Final = {"end_turn": "stop", "max_tokens": "length"}
"""Why a message stopped, in the words of the other APIs; the rest is told as it is."""


def messages_endpoint(workload: profile.Workload, info: TargetInfo) -> Endpoint:
    """Chats over `/v1/messages`. It cannot ask the model to go on: `output_tokens` is a maximum there."""
    return Endpoint(
        path="messages",
        streams=True,
        stream_fields={"stream": True},
        length_fields=("max_tokens",),
        conversation=_conversation,
        reader=lambda request: read_message,
        follow=lambda exchange: TypedReader(exchange, _read_event),
    )


def _conversation(messages: tuple[Message, ...]) -> dict[str, Any]:
    """The system message has a field of its own."""
    system = " ".join(text_of(message) for message in messages if message.role == "system")
    turns = [message for message in messages if message.role != "system"]
    return {"system": system, "messages": turns} if system else {"messages": turns}


def read_message(body: bytes, exchange: Exchange) -> None:
    """Read a message that was not streamed: usage, why it ended, failure."""
    told = decode_answer(body, _DECODER, exchange)
    if told is None:
        return
    if told.get("error"):
        fail(exchange, SERVER_ERROR, words_of(told) or "an error without a message")
    elif told.get("type") != "message":
        fail(exchange, PROTOCOL, f"no message: {shown(body)}")
    else:
        count(exchange, told.get("usage"))
        _end(exchange, told.get("stop_reason"))
        for block in objects_of(told.get("content")):
            if block.get("type") == "text":
                keep_text(exchange, block.get("text"))


def _read_event(exchange: Exchange, told: dict[str, Any], instant_ns: int) -> bool:
    """Whether this was the last event."""
    kind, delta = told.get("type"), told.get("delta")
    if kind == "content_block_delta" and isinstance(delta, dict) and delta.get("type") in _TOKENS:
        bear(exchange, instant_ns, delta.get("text"), visible=delta["type"] == _VISIBLE)
    elif kind == "message_start" and isinstance(told.get("message"), dict):
        usage = told["message"].get("usage")
        # Its output is none yet, or a first guess.
        count(exchange, {"input_tokens": usage.get("input_tokens")} if isinstance(usage, dict) else None)
    elif kind == "message_delta" and isinstance(delta, dict):
        count(exchange, told.get("usage"))
        exchange.finish_reason = delta.get("stop_reason")
    elif kind == "message_stop":
        _end(exchange, exchange.finish_reason)
        return True
    return False


def _end(exchange: Exchange, reason: Any) -> None:
    end(exchange, _FINISH_REASONS.get(reason, reason) if isinstance(reason, str) else None)
