"""One chat: its fields, its answer, and where its labels are wanted, their constraint and their log-probabilities."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from loadgen.client.answers import read_chat
from loadgen.client.arguments import Way
from loadgen.client.connection import Connection
from loadgen.client.label_logprobs import label_logprobs
from loadgen.client.labels import check_answer, check_labels, usable_constraint
from loadgen.client.scoring import prompt_of
from loadgen.client.tokens import check_text
from loadgen.client.types import ChatResponse, Messages, RequestError, messages_of
from loadgen.targets.http.endpoints.constraint import fields_for, without_unwanted

_LIKELIEST: Final = 0.0
"""The temperature of a choice that nobody gave one: the server's own default, mostly 1, would draw the label by lot."""
_MAXIMA: Final = ("max_tokens", "max_completion_tokens")


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """How a chat is to be answered; None: as the server does by default."""

    max_tokens: int | None = None
    """None: as the client was made."""
    temperature: float | None = None
    logprobs: bool = False
    top_logprobs: int = 5
    label_logprobs: Way | None = None
    extra_body: Mapping[str, Any] | None = None


async def chat(
    connection: Connection, messages: Messages, labels: Sequence[str] | None, wishes: Wishes
) -> ChatResponse:
    """What `VLLMClient.achat` promises."""
    turns = messages_of(messages)
    fields = _fields(connection, wishes)
    if labels is None:
        if wishes.label_logprobs not in (None, "none"):
            raise ValueError("label_logprobs needs constrain_labels")
        return read_chat(await connection.chat(turns, fields), _asked(connection))
    labels = check_labels(labels)
    way = wishes.label_logprobs or ("auto" if wishes.logprobs else "none")
    if way != "none":
        check_text(turns)
    fields = {"temperature": _LIKELIEST} | fields
    field, constraint = await usable_constraint(connection)
    raw = await connection.chat(turns, without_unwanted(fields) | fields_for(field, labels))
    response = read_chat(raw, _asked(connection))
    check_answer(connection, response, labels)
    if way == "none":
        return response
    told = response.logprobs if way == "auto" else None
    try:
        prompt = await prompt_of(connection, turns, fields)
        found = await label_logprobs(connection, prompt, labels, constraint, told, fields)
    except RequestError as failure:  # the answer has come, and may have cost minutes
        return msgspec.structs.replace(response, label_logprobs_failure=failure)
    return msgspec.structs.replace(response, label_logprobs=found)


def _fields(connection: Connection, wishes: Wishes) -> dict[str, Any]:
    """The body's fields: the client's own first, then those of the call, whichever of its names a maximum has."""
    settings = connection.settings
    theirs: dict[str, Any] = {"max_tokens": settings.max_tokens} | settings.extra_body
    own = _of_call(wishes)
    if not own.keys().isdisjoint(_MAXIMA):
        theirs = {name: value for name, value in theirs.items() if name not in _MAXIMA}
    fields = theirs | own
    if "max_completion_tokens" in fields:
        fields.pop("max_tokens", None)
    return fields


def _of_call(wishes: Wishes) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if wishes.max_tokens is not None:
        fields["max_tokens"] = wishes.max_tokens
    if wishes.temperature is not None:
        fields["temperature"] = wishes.temperature
    if wishes.logprobs:
        # The ids of the tokens come beside their texts only when they are asked for.
        fields |= {"logprobs": True, "top_logprobs": wishes.top_logprobs, "return_token_ids": True}
    return fields | dict(wishes.extra_body or {})


def _asked(connection: Connection) -> str:
    return f"POST {connection.server.api('chat/completions')}"
