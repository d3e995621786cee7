"""Choice: a chat whose answer is constrained to one of a few labels, bare, without JSON around it."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from loadgen import profile
from loadgen.metrics.outcome import Exchange
from loadgen.targets.base import TargetInfo
from loadgen.targets.chunks import read_whole
from loadgen.targets.endpoints.answer import decode_answer, fail
from loadgen.targets.endpoints.endpoint import Endpoint

NOT_A_LABEL: Final = "not_a_label"

_FIRST_WITH_STRUCTURED: Final = (0, 11)
"""The release of vLLM from which `structured_outputs` is known; the next one ignores `guided_choice` in silence."""
_RELEASE: Final = re.compile(r"v?(\d+)\.(\d+)")


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_DECODER: Final = msgspec.json.Decoder(_Answer)


def choice_endpoint(workload: profile.Workload, info: TargetInfo) -> Endpoint:
    """Chats that answer with one of the workload's labels."""
    by_text = {label.strip(): label for label in workload.labels}
    fields = {"max_tokens": longest_answer(workload.labels), **choice_fields(workload.labels, info.version)}
    return Endpoint(
        path="chat/completions",
        fields=fields,
        reader=lambda request: lambda body, exchange: read_label(body, exchange, by_text),
    )


def choice_fields(labels: tuple[str, ...], version: str | None) -> dict[str, Any]:
    """The body field by which a server of this version constrains an answer to labels; an unknown version is new."""
    release = None if version is None else _RELEASE.match(version)
    if release is not None and (int(release[1]), int(release[2])) < _FIRST_WITH_STRUCTURED:
        return {"guided_choice": labels}
    return {"structured_outputs": {"choice": labels}}


def longest_answer(labels: tuple[str, ...]) -> int:
    """Tokens that are enough for any of the labels and the end: no token is less than a byte."""
    return max(len(label.encode()) for label in labels) + 1


def read_label(body: bytes, exchange: Exchange, labels: Mapping[str, str]) -> None:
    """Read an answer that must be a label. `labels`: by their text without space around it."""
    read_whole(body, exchange)
    if exchange.failure is not None:
        return
    answer = decode_answer(body, _DECODER, exchange)
    if answer is None:
        return
    exchange.label = labels.get((answer.choices[0].message.content or "").strip())
    if exchange.label is None:
        fail(exchange, NOT_A_LABEL, f"the answer is no label: {json.dumps(answer.choices[0].message.content)}")
