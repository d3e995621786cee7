"""Tokenize: counting the tokens of a text, which a server does without its model."""

from typing import Annotated, Final

import msgspec

from loadgen import profile
from loadgen.measure.outcome import Exchange
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.chunks import PROTOCOL, decode_answer, fail, read_other
from loadgen.targets.http.endpoints.endpoint import Endpoint


class _Answer(msgspec.Struct):
    count: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    tokens: list[int]


_DECODER: Final = msgspec.json.Decoder(_Answer)


def tokenize_endpoint(workload: profile.Workload, info: TargetInfo) -> Endpoint:
    """Texts to be tokenized, at the server's root."""
    return Endpoint(path="tokenize", at_root=True, generates=False, reader=lambda request: read_tokens)


def read_tokens(body: bytes, exchange: Exchange) -> None:
    """Read the tokens of a text; their number stands as the prompt's."""
    read_other(body, exchange)
    if exchange.failure is not None:
        return
    answer = decode_answer(body, _DECODER, exchange)
    if answer is None:
        return
    exchange.prompt_tokens = answer.count
    if len(answer.tokens) != answer.count:
        fail(exchange, PROTOCOL, f"{len(answer.tokens)} tokens came, and a count of {answer.count}")
