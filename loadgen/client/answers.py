"""The answer of a chat as the client's types have it. Pure: no I/O."""

from typing import Any, Final

import msgspec

from loadgen.client.connection import typed
from loadgen.client.types import ChatResponse, Token, TokenLogprob, Usage

_ID: Final = "token_id:"
"""What stands before the id where a server was asked for ids in the place of texts (`return_tokens_as_token_ids`)."""


class _Entry(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list["_Entry"] | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Entry] | None = None


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: Usage | None = None


def read_chat(raw: dict[str, Any], asked: str) -> ChatResponse:
    """The first choice of a chat's answer, without the log-probabilities of labels.

    Raises:
        RequestError: `protocol`: it is of another shape.
    """
    answer = typed(raw, _Answer, asked)
    choice = answer.choices[0]
    content = choice.message.content
    return ChatResponse(
        content=content,
        label=None if content is None else content.strip(),
        label_logprobs=None,
        logprobs=_logprobs(choice),
        usage=answer.usage,
        finish_reason=choice.finish_reason,
        raw=raw,
    )


def _logprobs(choice: _Choice) -> tuple[TokenLogprob, ...] | None:
    if choice.logprobs is None or choice.logprobs.content is None:
        return None
    entries = choice.logprobs.content
    ids = choice.token_ids or []
    aligned: list[int | None] = [*ids] if len(ids) == len(entries) else [None] * len(entries)
    return tuple(
        TokenLogprob(_token(entry, token), entry.logprob, tuple(map(_top, entry.top_logprobs or ())))
        for entry, token in zip(entries, aligned, strict=True)
    )


def _top(entry: _Entry) -> TokenLogprob:
    return TokenLogprob(_token(entry, None), entry.logprob)


def _token(entry: _Entry, token: int | None) -> Token:
    """A token by its text, or by its id with the text that its bytes are."""
    number = entry.token.removeprefix(_ID)
    if number == entry.token or not number.isdecimal():
        return Token(entry.token, token)
    return Token(bytes(entry.bytes or ()).decode(errors="replace"), int(number))
