"""Embed: a vector for each of several texts."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from loadgen import profile
from loadgen.measure.outcome import Exchange
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.chunks import PROTOCOL, decode_answer, fail, read_other
from loadgen.targets.http.endpoints.endpoint import Endpoint, ReadWhole
from loadgen.workload.request import Request

_FLOAT_BYTES: Final = 4


class _Vector(msgspec.Struct):
    embedding: msgspec.Raw


class _Answer(msgspec.Struct):
    data: list[_Vector]


_DECODER: Final = msgspec.json.Decoder(_Answer)


def embed_endpoint(workload: profile.Workload, info: TargetInfo) -> Endpoint:
    """Texts to be made into vectors."""

    def reader(request: Request) -> ReadWhole:
        return partial(read_vectors, inputs=len(request.inputs or ()), dimensions=workload.dimensions)

    fields = {} if workload.dimensions is None else {"dimensions": workload.dimensions}
    return Endpoint(path="embeddings", fields=fields, generates=False, reader=reader)


def read_vectors(body: bytes, exchange: Exchange, inputs: int, dimensions: int | None) -> None:
    """Read an answer that must have a vector for each of the inputs, all of one length: `dimensions`, where given.

    The numbers themselves are counted and not read: that would cost the generator more than all else of the answer.
    """
    read_other(body, exchange)
    if exchange.failure is not None:
        return
    answer = decode_answer(body, _DECODER, exchange)
    if answer is None:
        return
    note_vectors([dimensions_of(bytes(vector.embedding)) for vector in answer.data], exchange, inputs, dimensions)


def note_vectors(each: Sequence[int], exchange: Exchange, inputs: int, dimensions: int | None) -> None:
    """Note the vectors that came, given the length of each; the answer fails where they are not what was asked for."""
    lengths = set(each)
    exchange.items = len(each)
    if len(each) != inputs:
        fail(exchange, PROTOCOL, f"{len(each)} vectors came for {inputs} inputs")
    elif len(lengths) != 1 or 0 in lengths or (dimensions is not None and lengths != {dimensions}):
        told = ", ".join(map(str, sorted(lengths)))
        fail(exchange, PROTOCOL, f"vectors of {told} dimensions came" + (f" for {dimensions}" if dimensions else ""))
    else:
        exchange.dimensions = lengths.pop()


def dimensions_of(vector: bytes) -> int:
    """How many numbers a vector has: a JSON list of numbers, or JSON text that is base64 of 4-byte floats; else 0."""
    if vector.startswith(b"["):
        return vector.count(b",") + 1 if vector.strip(b"[] \t\r\n") else 0
    text = vector.strip(b'"')
    return (len(text) * 3 // 4 - text.count(b"=")) // _FLOAT_BYTES if vector.startswith(b'"') else 0
