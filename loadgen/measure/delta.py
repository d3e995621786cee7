"""What a worker tells of a stage since it last told: sums only, so that deltas of any workers merge by addition."""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.statistics.histogram import Ints
from loadgen.statistics.sparse import SparseHistograms

ARRIVALS: Final = "arrivals"
SENT: Final = "sent"
COMPLETIONS: Final = "completed"
FAILURES: Final = "failed"
GOOD: Final = "good"
OUTPUT_TOKENS: Final = "output_tokens"
PROMPT_TOKENS: Final = "prompt_tokens"
ITEMS: Final = "items"
TTFT_SUM: Final = "ttft_sum_ns"
TTFT_COUNT: Final = "ttft_count"
IN_FLIGHT_INTEGRAL: Final = "inflight_integral_ns"
IN_FLIGHT_MAX: Final = "inflight_max"

COLUMNS: Final = (
    ARRIVALS,
    SENT,
    COMPLETIONS,
    FAILURES,
    GOOD,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    ITEMS,
    TTFT_SUM,
    TTFT_COUNT,
    IN_FLIGHT_INTEGRAL,
    IN_FLIGHT_MAX,
)
"""The series by bin: events by their own instant; arrivals and TTFT by the intended start of their request.

Arrivals are those that came to stay: dropped requests are left out.

The maximum in flight is told as increases over what was told of the same bin before, so that it sums like the others:
over the deltas of a worker to the worker's maximum, over workers to the sum of their maxima in that bin.
"""


RATIO_ONE: Final = (1 << 30) - 1
"""How a ratio of 1 is written in histograms of ratios; the highest value of its bucket, so that none mixes good and
bad requests."""

MESSAGE_KINDS: Final = 32
"""Of how many kinds of failure a stage has an example of their words."""
MESSAGE_CHARACTERS: Final = 2000
"""Such words are cut to this length."""


class Column(msgspec.Struct, frozen=True, array_like=True):
    """The non-zero values of one series: bin numbers of the stage's grid as `<i4`, values as `<f8`."""

    name: str
    bins: bytes
    values: bytes

    def numbers(self) -> Ints:
        return np.frombuffer(self.bins, "<i4").astype(np.int64)

    def amounts(self) -> "NDArray[np.float64]":
        return np.frombuffer(self.values, "<f8")


def column_of(name: str, first_bin: int, dense: "NDArray[np.float64] | Ints") -> Column:
    """A series whose value in bin `first_bin + i` is `dense[i]`."""
    there = np.flatnonzero(dense)
    return Column(name, (there + first_bin).astype("<i4").tobytes(), dense[there].astype("<f8").tobytes())


class TokenTotals(msgspec.Struct, frozen=True, array_like=True):
    """Sums over the completed requests whose intended start lies in one interval; `_n` counts those that knew it."""

    interval: int
    prompt_asked: int
    prompt_asked_n: int
    prompt: int
    prompt_n: int
    output_asked: int
    output_asked_n: int
    output: int
    output_n: int
    chunks: int
    chunked_output: int
    """Output tokens of the requests that had chunks."""
    events: int
    reads: int
    by_usage: int
    """Requests whose output tokens the server counted; the next two: token ids, and chunks, stand for them."""
    by_token_ids: int
    by_chunks: int
    short: int
    """Requests whose counted output is shorter than asked for."""
    items: int = 0
    """Journals of before there were any lack these four."""
    items_n: int = 0
    dimensions: int = 0
    dimensions_n: int = 0


class StageDelta(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One worker's news of one stage.

    ended: indices of the requests that this delta accounts for; what they measured is in the same message.
    accounts: (interval of the intended start, account, requests).
    sent: (interval of the intended start, of the slot's grant, of the send, requests), over requests that have ended.
    excused: (interval of the intended start, requests) of those that were not sent through no fault of the generator:
        no slot was free, or there was nothing to send.
    histograms: one entry a metric.
    series: one entry a column that has news (`COLUMNS`).
    records: JSON lines, one object a request, where records are kept; not journalled.
    messages: by kind of failure, the words of the first that the worker saw; told once, with the first delta after it.
        Journals of before there were any lack them, and so it is with all the next.
    labels: (interval of the intended start, label, completed requests).
    retries: how often requests, of any account, were sent again since the server asked them to wait.
    ratios: how far completed requests were from their limits (`attainment`); where attainment or goodput is promised.
    judged: (interval of the intended start, 1 where the label was the expected one and else 0, completed requests).
    rows_again: how many requests were sent, of any account, that said what an earlier one of the run had said.
    """

    stage: int
    ended: list[int]
    accounts: list[tuple[int, str, int]]
    sent: list[tuple[int, int, int, int]]
    excused: list[tuple[int, int]]
    histograms: list[SparseHistograms]
    series: list[Column]
    tokens: list[TokenTotals]
    records: bytes = b""
    messages: dict[str, str] = {}
    labels: list[tuple[int, str, int]] = []
    retries: int = 0
    ratios: list[SparseHistograms] = []
    judged: list[tuple[int, int, int]] = []
    rows_again: int = 0
