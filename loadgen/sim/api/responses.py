"""`/v1/responses`: its bodies, its answers and its event stream."""

import time
from typing import Any, Final, Literal

import msgspec

from loadgen.sim.api.generation import Generation, StructuredOutputs, Wish, settle
from loadgen.sim.api.protocol import ApiError, check_model, decode_body, named_event
from loadgen.sim.config import SimConfig
from loadgen.sim.model.conversation import Message, prompt_of_chat
from loadgen.sim.model.language import Words


class _Part(msgspec.Struct):
    text: str
    type: Literal["text", "input_text", "output_text"] = "text"


class _Item(msgspec.Struct):
    role: str
    content: str | list[_Part]


class _ResponseBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    input: str | list[_Item]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None


_RESPONSE: Final = msgspec.json.Decoder(_ResponseBody)


class AskedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The generation that a body asks for, and what its answer repeats of the body."""

    generation: Generation
    instructions: str | None
    max_output_tokens: int
    temperature: float
    top_p: float


def read_response(body: bytes, config: SimConfig) -> AskedResponse:
    """What a body asks for.

    Raises:
        ApiError: 404 for another model, 400 for anything else that cannot be answered.
    """
    asked = decode_body(body, _RESPONSE)
    check_model(config, asked.model)
    items = [_Item("user", asked.input)] if isinstance(asked.input, str) else asked.input
    if not items:
        raise ApiError(400, "1 validation error: input: at least one item", "Bad Request", "body.input")
    messages = [Message(item.role, _text(item.content)) for item in items]
    if asked.instructions is not None:
        messages.insert(0, Message("system", asked.instructions))
    prompt = prompt_of_chat(messages, config.seed)
    wish = Wish(
        max_tokens=asked.max_output_tokens,
        ignore_eos=asked.ignore_eos,
        structured_outputs=asked.structured_outputs,
        temperature=asked.temperature,
        seed=asked.seed,
    )
    output_tokens, finish_reason, labels, script = settle(prompt, config, wish)
    generation = Generation(
        kind="response",
        prompt=prompt,
        output_tokens=output_tokens,
        finish_reason=finish_reason,
        labels=labels,
        script=script,
        stream=bool(asked.stream),
    )
    return AskedResponse(
        generation=generation,
        instructions=asked.instructions,
        max_output_tokens=asked.max_output_tokens or config.max_model_len - prompt.tokens,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
    )


class ResponseAnswer:
    """One response, from its first byte to its last."""

    def __init__(self, asked: AskedResponse, generation: Generation, answer_id: str, model: str) -> None:
        self._asked = asked
        self._id = answer_id
        self._item_id = f"msg_{answer_id.removeprefix('resp_')}"
        self._model = model
        self._created = int(time.time())
        self._prompt_tokens = generation.prompt.tokens
        self._words = Words(generation.prompt.context, generation.script)
        self._texts: list[str] = []
        self._events = 0

    @property
    def given(self) -> int:
        """Tokens that were told so far."""
        return self._words.given

    def event(self, tokens: int, finish_reason: str | None) -> bytes:
        """The events of the next tokens: before the first those that open the response, after the last those that
        close it."""
        parts = [] if self._words.given else self._opening()
        text, _ = self._words.take(tokens)
        self._texts.append(text)
        if text:
            parts.append(self._told("output_text.delta", self._place() | {"delta": text, "logprobs": []}))
        if finish_reason is not None:
            parts += self._closing(finish_reason)
        return b"".join(parts)

    def whole(self, tokens: int, finish_reason: str) -> bytes:
        """The body of an answer that is not streamed."""
        text, _ = self._words.take(tokens)
        return msgspec.json.encode(self._finished(text, finish_reason))

    def _opening(self) -> list[bytes]:
        response = self._response("in_progress")
        item = self._item("in_progress", [])
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return [
            self._told("created", {"response": response}),
            self._told("in_progress", {"response": response}),
            self._told("output_item.added", {"item": item, "output_index": 0}),
            self._told("content_part.added", self._place() | {"part": part}),
        ]

    def _closing(self, finish_reason: str) -> list[bytes]:
        text = "".join(self._texts)
        item = self._item("completed", [_part(text)])
        return [
            self._told("output_text.done", self._place() | {"text": text, "logprobs": []}),
            self._told("content_part.done", self._place() | {"part": _part(text)}),
            self._told("output_item.done", {"item": item, "output_index": 0}),
            self._told("completed", {"response": self._finished(text, finish_reason)}),
        ]

    def _told(self, name: str, fields: dict[str, Any]) -> bytes:
        kind = f"response.{name}"
        event = named_event(kind, fields | {"sequence_number": self._events, "type": kind})
        self._events += 1
        return event

    def _place(self) -> dict[str, Any]:
        return {"content_index": 0, "item_id": self._item_id, "output_index": 0}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }

    def _finished(self, text: str, finish_reason: str) -> dict[str, Any]:
        # vLLM's stream ends with `response.completed` even where the status in it is another.
        status = {"length": "incomplete", "abort": "cancelled"}.get(finish_reason, "completed")
        output = [self._item("completed", [_part(text)])]
        return self._response(status, output, self._usage())

    def _response(
        self, status: str, output: list[dict[str, Any]] | None = None, usage: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "created_at": self._created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self._asked.instructions,
            "metadata": None,
            "model": self._model,
            "object": "response",
            "output": output or [],
            "parallel_tool_calls": True,
            "temperature": self._asked.temperature,
            "tool_choice": "none",
            "tools": [],
            "top_p": self._asked.top_p,
            "background": False,
            "max_output_tokens": self._asked.max_output_tokens,
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "usage": usage,
        }

    def _usage(self) -> dict[str, Any]:
        output = self._words.given
        return {
            "input_tokens": self._prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._prompt_tokens + output,
        }


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def _text(content: str | list[_Part]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
