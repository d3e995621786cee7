"""Tokens of texts and conversations, counted by the server itself: alone, and after a context."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec

from loadgen.client.connection import Connection, typed
from loadgen.client.pieces import texts_of
from loadgen.client.types import Token, Tokenized
from loadgen.targets.http.preflight import TokenizeAnswer
from loadgen.workload.request import Message, Request

RENDERING: Final = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "mm_processor_kwargs",
    "reasoning_effort",
    "tools",
)
"""Fields of a chat's body that decide how its messages become a prompt."""
_FOR_TEMPLATE: Final = ("documents", "reasoning_effort")
"""Which of them `/tokenize` takes among `chat_template_kwargs` alone, where a chat puts them by itself."""


class _Detokenized(msgspec.Struct):
    prompt: str


async def tokenize(
    connection: Connection, text: str, context: str | None = None, add_special_tokens: bool = True
) -> Tokenized:
    """The tokens of a text, or those that it adds after a context (`VLLMClient.atokenize`)."""
    after = await _tokens(connection, (context or "") + text, add_special_tokens)
    if context is None:
        return Tokenized(after)
    before = await _tokens(connection, context, add_special_tokens)
    same = common_prefix([token.id for token in before], [token.id for token in after])
    return Tokenized(after[same:], merged=same < len(before), replaced=before[same:])


async def detokenize(connection: Connection, ids: Sequence[int]) -> str:
    """The text of token ids; raises RequestError."""
    url = connection.server.at("detokenize")
    raw = await connection.post(url, {"tokens": list(ids)})
    return typed(raw, _Detokenized, f"POST {url}").prompt


async def ids_of_text(connection: Connection, text: str, add_special_tokens: bool) -> tuple[int, ...]:
    """The token ids of a text; raises RequestError."""
    fields = {"add_special_tokens": add_special_tokens}
    return (await _answer(connection, fields, Request(index=0, prompt=text))).tokens


async def ids_of_chat(
    connection: Connection, messages: tuple[Message, ...], body: Mapping[str, Any]
) -> tuple[int, ...]:
    """The token ids of a conversation as the server's own chat template renders it for these fields of a chat's body.

    Raises:
        ValueError: there is more in it than text, whose tokens `/tokenize` does not tell as the model sees them.
        RequestError: there is no good answer.
    """
    check_text(messages)
    fields: dict[str, Any] = {name: body[name] for name in RENDERING if name in body and name not in _FOR_TEMPLATE}
    if values := {name: body[name] for name in _FOR_TEMPLATE if name in body}:
        fields["chat_template_kwargs"] = dict(fields.get("chat_template_kwargs") or {}) | values
    return (await _answer(connection, fields, Request(index=0, messages=messages))).tokens


def check_text(messages: tuple[Message, ...]) -> None:
    """Raise ValueError where there is more in messages than text."""
    if not all(isinstance(message.content, str) for message in messages):
        raise ValueError("only messages of text can be scored, and labels after them")


def common_prefix(one: Sequence[int | None], other: Sequence[int | None]) -> int:
    """How many of the first items of both are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


async def _tokens(connection: Connection, text: str, add_special_tokens: bool) -> tuple[Token, ...]:
    fields = {"add_special_tokens": add_special_tokens, "return_token_strs": True}
    answer = await _answer(connection, fields, Request(index=0, prompt=text))
    if not answer.tokens:
        return ()
    strings = answer.token_strs
    if strings is None or len(strings) != len(answer.tokens):
        # An older server: what each token stands for is asked one by one.
        strings = tuple([await detokenize(connection, [token]) for token in answer.tokens])
        return tuple(map(Token, strings, answer.tokens))
    return tuple(map(Token, texts_of(strings, text), answer.tokens))


async def _answer(connection: Connection, fields: dict[str, Any], request: Request) -> TokenizeAnswer:
    url = connection.server.at("tokenize")  # not under /v1: vLLM has it at its root
    raw = await connection.post(url, fields, request)
    return typed(raw, TokenizeAnswer, f"POST {url}")
