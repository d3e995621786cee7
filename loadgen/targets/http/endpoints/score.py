"""Score: the log-probability of each token of a completion, given the prompt, by echoing both without going on.

Prompt and completion are sent as token ids, so that the place where the completion begins is exact.
"""

from functools import partial
from typing import Final

import msgspec

from loadgen import profile
from loadgen.measure.outcome import Exchange
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.chunks import PROTOCOL, decode_answer, fail, read_whole
from loadgen.targets.http.endpoints.endpoint import Endpoint, ReadWhole
from loadgen.workload.request import Request

_FIELDS: Final = {"echo": True, "logprobs": 0, "max_tokens": 1, "temperature": 0}
"""One token is generated, since servers differ in whether they take none; it is no part of the score. `logprobs = 0`
asks for the tokens' own, without those of others in their places."""


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None]


class _Choice(msgspec.Struct):
    logprobs: _Logprobs


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage


_DECODER: Final = msgspec.json.Decoder(_Answer)


def score_endpoint(workload: profile.Workload, info: TargetInfo) -> Endpoint:
    """Completions that are scored."""
    return Endpoint(path="completions", fields=_FIELDS, reader=_reader)


def _reader(request: Request) -> ReadWhole:
    return partial(read_score, scored_tokens=request.scored_tokens or 0)


def read_score(body: bytes, exchange: Exchange, scored_tokens: int) -> None:
    """Read an answer that must have the log-probability of each of the last `scored_tokens` of what was sent."""
    read_whole(body, exchange)
    if exchange.failure is not None:
        return
    answer = decode_answer(body, _DECODER, exchange)
    if answer is None:
        return
    sent = answer.usage.prompt_tokens
    scores = answer.choices[0].logprobs.token_logprobs[max(0, sent - scored_tokens) : sent]
    note_scores(sum(score is not None for score in scores), exchange, scored_tokens)


def note_scores(scores: int, exchange: Exchange, scored_tokens: int) -> None:
    """Note how many tokens of a completion have a log-probability; the answer fails where not all of them have."""
    exchange.items = scores
    if scores < scored_tokens:
        fail(exchange, PROTOCOL, f"{scores} of {scored_tokens} tokens of the completion have a log-probability")
