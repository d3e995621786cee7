"""Whole answers of the kinds that have a shape of their own: decoding them, and telling that they are none."""

from typing import TypeVar

import msgspec

from loadgen.measure.outcome import Exchange
from loadgen.targets.http.chunks import PROTOCOL
from loadgen.targets.http.error_body import one_line

T = TypeVar("T")

_SHOWN_BYTES = 200


def decode_answer(body: bytes, decoder: msgspec.json.Decoder[T], exchange: Exchange) -> T | None:
    """The answer; None, its failure noted as `protocol`, where it has another shape."""
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        fail(exchange, PROTOCOL, f"{error}: {shown(body)}")
        return None


def fail(exchange: Exchange, kind: str, message: str) -> None:
    """Note a failure, unless one is noted already."""
    if exchange.failure is None:
        exchange.failure = kind
        exchange.message = one_line(message)


def shown(body: bytes) -> str:
    """The beginning of a body, for a message."""
    return body[:_SHOWN_BYTES].decode(errors="replace")
