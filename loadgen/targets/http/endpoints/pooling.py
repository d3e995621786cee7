"""Rerank and pooling: models that give a text, or a query and a text, a number or several, and generate nothing."""

from functools import partial
from typing import Final

import msgspec

from loadgen import profile
from loadgen.measure.outcome import Exchange
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.chunks import PROTOCOL, decode_answer, fail, read_other
from loadgen.targets.http.endpoints.endpoint import Endpoint, ReadWhole
from loadgen.workload.request import Request


class _Result(msgspec.Struct):
    index: int
    relevance_score: float


class _Ranking(msgspec.Struct):
    results: list[_Result]


class _Pooled(msgspec.Struct):
    index: int
    data: msgspec.Raw


class _Pooling(msgspec.Struct):
    data: list[_Pooled]


_RANKING: Final = msgspec.json.Decoder(_Ranking)
_POOLING: Final = msgspec.json.Decoder(_Pooling)


def rerank_endpoint(workload: profile.Workload, info: TargetInfo) -> Endpoint:
    """A query, and documents to be put in order by it."""

    def reader(request: Request) -> ReadWhole:
        return partial(read_ranking, documents=len(request.inputs or ()))

    return Endpoint(path="rerank", prompt_field="query", inputs_field="documents", generates=False, reader=reader)


def pooling_endpoint(workload: profile.Workload, info: TargetInfo) -> Endpoint:
    """Texts to be pooled, at the server's root."""

    def reader(request: Request) -> ReadWhole:
        return partial(read_pooled, inputs=len(request.inputs or ()))

    return Endpoint(path="pooling", at_root=True, generates=False, reader=reader)


def read_ranking(body: bytes, exchange: Exchange, documents: int) -> None:
    """Read an answer that must have a score for each of the documents."""
    read_other(body, exchange)
    answer = decode_answer(body, _RANKING, exchange) if exchange.failure is None else None
    if answer is not None:
        _expect(exchange, [result.index for result in answer.results], documents, "documents")


def read_pooled(body: bytes, exchange: Exchange, inputs: int) -> None:
    """Read an answer that must have something for each of the inputs; what, is the model's affair."""
    read_other(body, exchange)
    answer = decode_answer(body, _POOLING, exchange) if exchange.failure is None else None
    if answer is not None:
        _expect(exchange, [one.index for one in answer.data], inputs, "inputs")


def _expect(exchange: Exchange, places: list[int], asked: int, what: str) -> None:
    """Each of what was asked for has to be among what came, once."""
    exchange.items = len(places)
    if sorted(places) != list(range(asked)):
        fail(exchange, PROTOCOL, f"{len(places)} results came for {asked} {what}")
