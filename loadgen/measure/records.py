"""One line of `requests.jsonl`: what became of one request, for people who want every one of them."""

import msgspec

from loadgen.measure.outcome import COMPLETED, Grid, Outcome
from loadgen.units import NS_PER_SECOND


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request as the file shows it. Instants in seconds from the stage's origin; what is not known is absent."""

    stage: int
    index: int
    account: str
    intended: float
    admitted: float | None = None
    sent: float | None = None
    headers: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    end: float | None = None
    prompt_tokens_asked: int | None = None
    prompt_tokens: int | None = None
    output_tokens_asked: int | None = None
    output_tokens: int | None = None
    chunks: int = 0
    request_id: str | None = None
    """By which the target's own log names the request."""
    label: str | None = None
    expected: str | None = None
    items: int | None = None
    dimensions: int | None = None
    retries: int = 0
    status: int | None = None
    finish_reason: str | None = None
    message: str = ""
    text: str | None = None
    """What the answer says, as far as it came; absent where texts are not kept, or none came of an answer cut short."""


def record_of(outcome: Outcome, grid: Grid) -> Record:
    """The record of one outcome."""
    exchange = outcome.exchange
    chunks = exchange.chunks_ns if exchange.streamed else ()

    def seconds(instant_ns: int | None) -> float | None:
        return None if instant_ns is None else (instant_ns - grid.origin_ns) / NS_PER_SECOND

    return Record(
        stage=outcome.stage,
        index=outcome.index,
        account=outcome.account,
        intended=(outcome.intended_ns - grid.origin_ns) / NS_PER_SECOND,
        admitted=seconds(outcome.admitted_ns),
        sent=seconds(outcome.sent_ns),
        headers=seconds(exchange.headers_ns),
        first_token=seconds(chunks[0]) if chunks else None,
        last_token=seconds(chunks[-1]) if chunks else None,
        end=seconds(exchange.end_ns if exchange.end_ns is not None else outcome.end_ns),
        prompt_tokens_asked=outcome.prompt_tokens_asked,
        prompt_tokens=exchange.prompt_tokens,
        output_tokens_asked=outcome.output_tokens_asked,
        output_tokens=exchange.output_tokens,
        chunks=len(chunks),
        request_id=exchange.request_id,
        label=exchange.label,
        expected=outcome.expected,
        items=exchange.items,
        dimensions=exchange.dimensions,
        retries=exchange.retries,
        status=exchange.status,
        finish_reason=exchange.finish_reason,
        message=exchange.message,
        text=_text_of(outcome),
    )


def _text_of(outcome: Outcome) -> str | None:
    texts = outcome.exchange.texts
    if texts is None or not (texts or outcome.account == COMPLETED):
        return None
    return "".join(texts)


def encode_lines(outcomes: list[Outcome], grid: Grid) -> bytes:
    """JSON lines, each with its line break."""
    return _ENCODER.encode_lines([record_of(outcome, grid) for outcome in outcomes])


_ENCODER = msgspec.json.Encoder()
