"""`/v1/audio/transcriptions`: its form, its answers and its event stream. A longer sound has a longer text."""

import math
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from loadgen.sim.api.answers import DONE
from loadgen.sim.api.generation import Generation, Wish, settle
from loadgen.sim.api.protocol import ApiError, check_model
from loadgen.sim.config import SimConfig
from loadgen.sim.model import tokenizer
from loadgen.sim.model.conversation import Prompt
from loadgen.sim.model.language import Words, begin
from loadgen.sim.model.sound import sound_seconds

Form = Mapping[str, str | bytearray | bytes | web.FileField]

AUDIO_TOKENS_PER_SECOND: Final = 25
"""Prompt tokens of a second of sound."""
WORDS_PER_SECOND: Final = 2.5
"""Tokens of the text for a second of sound: people speak at about this speed."""


class AskedTranscription(msgspec.Struct, frozen=True):
    """The generation that a form asks for, and how long its sound is."""

    generation: Generation
    seconds: float


def read_transcription(form: Form, config: SimConfig) -> AskedTranscription:
    """What a form asks for.

    Raises:
        ApiError: 404 for another model, 400 for anything else that cannot be answered.
    """
    check_model(config, _field(form, "model"))
    sound = form.get("file")
    if not isinstance(sound, web.FileField):
        raise ApiError(400, "1 validation error: file: Field required", "Bad Request", "body.file")
    if _field(form, "response_format") not in (None, "text", "json"):
        raise ApiError(400, "Currently only support response_format: `text` or `json`")
    stream, include_usage = _flag(form, "stream"), _flag(form, "stream_include_usage")
    continuous_usage = _flag(form, "stream_continuous_usage_stats")
    if not stream and (include_usage or continuous_usage):
        param = "stream_include_usage" if include_usage else "stream_continuous_usage_stats"
        words = f"Stream options can only be defined when `stream=True`. (parameter={param})"
        raise ApiError(400, words, param=param)
    data = sound.file.read()
    try:
        seconds = sound_seconds(data)
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    prompt = _prompt(data, seconds, _field(form, "prompt") or "", config.seed)
    spoken = max(1, round(seconds * WORDS_PER_SECOND))
    output_tokens, finish_reason, _, _ = settle(prompt, config, _wish(form, spoken))
    generation = Generation(
        kind="transcription",
        prompt=prompt,
        output_tokens=output_tokens,
        finish_reason="stop" if output_tokens == spoken else finish_reason,
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and continuous_usage,
    )
    return AskedTranscription(generation, seconds)


class TranscriptionAnswer:
    """One transcription, from its first byte to its last."""

    def __init__(self, asked: AskedTranscription, generation: Generation, answer_id: str, model: str) -> None:
        self._generation = generation
        self._seconds = asked.seconds
        self._words = Words(generation.prompt.context)
        head = {"id": answer_id, "object": "transcription.chunk", "created": int(time.time())}
        self._head = head
        self._model = model

    @property
    def given(self) -> int:
        """Tokens that were told so far."""
        return self._words.given

    def event(self, tokens: int, finish_reason: str | None) -> bytes:
        """The events of the next tokens, with the end marker after the last (which has the finish reason)."""
        text, _ = self._words.take(tokens)
        choice: dict[str, Any] = {"delta": {"content": text}}
        if finish_reason is not None:
            choice |= {"finish_reason": finish_reason, "stop_reason": None}
        chunk = self._head | {"choices": [choice], "model": self._model}
        if self._generation.continuous_usage:
            chunk["usage"] = self._usage()
        parts = [_event(chunk)]
        if finish_reason is not None:
            if self._generation.include_usage:
                parts.append(_event(self._head | {"choices": [], "model": self._model, "usage": self._usage()}))
            parts.append(DONE)
        return b"".join(parts)

    def whole(self, tokens: int, finish_reason: str) -> bytes:
        """The body of an answer that is not streamed. It does not tell why it ends."""
        text, _ = self._words.take(tokens)
        return msgspec.json.encode({"text": text, "usage": {"type": "duration", "seconds": math.ceil(self._seconds)}})

    def _usage(self) -> dict[str, int]:
        prompt, output = self._generation.prompt.tokens, self._words.given
        return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}


def _prompt(data: bytes, seconds: float, text: str, seed: int) -> Prompt:
    """What the model hears, then what it is told of it."""
    heard = max(1, math.ceil(seconds * AUDIO_TOKENS_PER_SECOND))
    before = begin(seed, data)
    context = begin(before.state, text.encode() + b"\n")
    told = tokenizer.encode(text)
    return Prompt(heard + len(told), before, context, lambda: [tokenizer.AUDIO] * heard + told)


def _wish(form: Form, spoken: int) -> Wish:
    most = _field(form, "max_completion_tokens")
    try:
        limit = spoken if most is None else min(spoken, int(most))
    except ValueError:
        words = "1 validation error: max_completion_tokens: a valid integer is needed"
        raise ApiError(400, words, "Bad Request", "body.max_completion_tokens") from None
    return Wish(max_tokens=limit, ignore_eos=True)


def _field(form: Form, name: str) -> str | None:
    value = form.get(name)
    return value if isinstance(value, str) else None


def _flag(form: Form, name: str) -> bool:
    return (_field(form, name) or "").lower() in ("true", "1", "on", "yes")


def _event(value: Any) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(value)
