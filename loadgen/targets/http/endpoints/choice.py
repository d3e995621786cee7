"""Choice: a chat whose answer is constrained to one of a few labels, bare, without JSON around it."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from loadgen import profile
from loadgen.measure.outcome import Exchange
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.chunks import decode_answer, fail, read_whole
from loadgen.targets.http.endpoints.constraint import fields_for, fields_of_version
from loadgen.targets.http.endpoints.endpoint import Endpoint, ReadWhole
from loadgen.workload.request import Request

NOT_A_LABEL: Final = "not_a_label"


class Message(msgspec.Struct):
    """What an answer says; None where it has no text, as one that was cut off before any."""

    content: str | None = None


class _Choice(msgspec.Struct):
    message: Message


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_DECODER: Final = msgspec.json.Decoder(_Answer)


def choice_endpoint(workload: profile.Workload, info: TargetInfo) -> Endpoint:
    """Chats that answer with one of the workload's labels, or of the request's own."""
    field = info.constraint or fields_of_version(info.version)[0]

    def asked(labels: tuple[str, ...]) -> dict[str, Any]:
        return {"max_tokens": longest_answer(labels), **fields_for(field, labels)}

    def reader(request: Request) -> ReadWhole:
        labels = by_text if request.labels is None else labels_by_text(request.labels)
        return partial(read_label, labels=labels)

    by_text, fields = labels_by_text(workload.labels), asked(workload.labels)
    return Endpoint(
        path="chat/completions",
        own_fields=lambda request: fields if request.labels is None else asked(request.labels),
        reader=reader,
    )


def longest_answer(labels: tuple[str, ...]) -> int:
    """Tokens that are enough for any of the labels and the end: no token is less than a byte."""
    return max((len(label.encode()) for label in labels), default=0) + 1


def read_label(body: bytes, exchange: Exchange, labels: Mapping[str, str]) -> None:
    """Read an answer that must be a label. `labels`: by their text without space around it."""
    message = read_message(body, exchange)
    if message is not None:
        note_label(message.content, exchange, labels)


def read_message(body: bytes, exchange: Exchange) -> Message | None:
    """Read the answer of a chat; None where it is none, its failure noted."""
    read_whole(body, exchange)
    answer = decode_answer(body, _DECODER, exchange) if exchange.failure is None else None
    return None if answer is None else answer.choices[0].message


def labels_by_text(labels: tuple[str, ...]) -> dict[str, str]:
    """Labels by their text without space around it."""
    return {label.strip(): label for label in labels}


def note_label(text: str | None, exchange: Exchange, labels: Mapping[str, str]) -> None:
    """Note which label an answer is; it fails where it is none."""
    exchange.label = labels.get((text or "").strip())
    if exchange.label is None:
        fail(exchange, NOT_A_LABEL, f"the answer is no label: {json.dumps(text)}")
