"""`/v1/messages`: Anthropic's API as vLLM speaks it; its bodies, its answers and its errors."""

from typing import Annotated, Any, Final, Literal

import msgspec

from loadgen.sim.api.generation import Generation, Wish, settle
from loadgen.sim.api.protocol import ApiError, check_model, decode_body, named_event
from loadgen.sim.config import SimConfig
from loadgen.sim.model.conversation import Message, Prompt, TextBlock, prompt_of_chat
from loadgen.sim.model.language import Words

_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens"}


class _Turn(msgspec.Struct):
    role: Literal["user", "assistant"]
    content: str | list[TextBlock]


class _CountBody(msgspec.Struct, kw_only=True):
    model: str
    messages: Annotated[list[_Turn], msgspec.Meta(min_length=1)]
    system: str | list[TextBlock] | None = None


class _MessagesBody(_CountBody, kw_only=True):
    max_tokens: int
    stream: bool | None = None


_COUNT: Final = msgspec.json.Decoder(_CountBody)
_MESSAGES: Final = msgspec.json.Decoder(_MessagesBody)


def read_message(body: bytes, config: SimConfig) -> Generation:
    """The generation that a body asks for. It cannot ask for an answer of a given length.

    Raises:
        ApiError: 404 for another model, 400 for anything else that cannot be answered.
    """
    asked = decode_body(body, _MESSAGES)
    check_model(config, asked.model)
    prompt = _prompt(asked, config)
    output_tokens, finish_reason, _, _ = settle(prompt, config, Wish(max_tokens=asked.max_tokens))
    return Generation(
        kind="message",
        prompt=prompt,
        output_tokens=output_tokens,
        finish_reason=finish_reason,
        stream=bool(asked.stream),
    )


def count_tokens(body: bytes, config: SimConfig) -> dict[str, Any]:
    """The answer of `/v1/messages/count_tokens`.

    Raises:
        ApiError: 404 for another model, 400 for a body that means nothing.
    """
    asked = decode_body(body, _COUNT)
    check_model(config, asked.model)
    tokens = _prompt(asked, config).tokens
    return {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


def message_error(error: ApiError) -> bytes:
    """The error in Anthropic's shape."""
    return msgspec.json.encode({"type": "error", "error": {"type": error.kind, "message": error.message}})


class MessageAnswer:
    """One message, from its first byte to its last."""

    def __init__(self, generation: Generation, answer_id: str, model: str) -> None:
        self._id = answer_id
        self._model = model
        self._prompt_tokens = generation.prompt.tokens
        self._words = Words(generation.prompt.context)

    @property
    def given(self) -> int:
        """Tokens that were told so far."""
        return self._words.given

    def event(self, tokens: int, finish_reason: str | None) -> bytes:
        """The events of the next tokens: before the first those that open the message, after the last those that
        close it."""
        opening = [] if self._words.given else self._opening()
        text, _ = self._words.take(tokens)
        delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}, "index": 0}
        closing = [] if finish_reason is None else self._closing(finish_reason)
        return b"".join(named_event(event["type"], event) for event in (*opening, delta, *closing))

    def whole(self, tokens: int, finish_reason: str) -> bytes:
        """The body of an answer that is not streamed."""
        text, _ = self._words.take(tokens)
        message = self._message([{"type": "text", "text": text}], _STOP_REASONS.get(finish_reason))
        return msgspec.json.encode(message | {"usage": self._usage()})

    def _opening(self) -> list[dict[str, Any]]:
        message = self._message([], None) | {"stop_sequence": None, "usage": self._usage()}
        return [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0},
        ]

    def _closing(self, finish_reason: str) -> list[dict[str, Any]]:
        delta = {"stop_reason": _STOP_REASONS.get(finish_reason), "stop_sequence": None}
        return [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": delta, "usage": self._usage()},
            {"type": "message_stop"},
        ]

    def _message(self, content: list[dict[str, str]], stop_reason: str | None) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model,
            "stop_reason": stop_reason,
        }

    def _usage(self) -> dict[str, int]:
        return {"input_tokens": self._prompt_tokens, "output_tokens": self._words.given}


def _prompt(body: _CountBody, config: SimConfig) -> Prompt:
    messages = [Message(turn.role, _text(turn.content)) for turn in body.messages]
    if body.system is not None:
        messages.insert(0, Message("system", _text(body.system)))
    return prompt_of_chat(messages, config.seed)


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)
