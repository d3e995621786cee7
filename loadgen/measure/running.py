"""What is known of a stage while it runs: its books so far, rates of the last seconds, running percentiles."""

from collections import Counter, deque
from typing import Final

import msgspec

from loadgen.measure.delta import COMPLETIONS, OUTPUT_TOKENS, SENT, StageDelta
from loadgen.measure.journal import StageMeta
from loadgen.measure.outcome import Books, books_of
from loadgen.statistics.histogram import Delta, Histogram
from loadgen.units import NS_PER_MS, NS_PER_SECOND

WATCHED: Final = ("ttft", "itl", "response")
"""The latencies of the live view."""
_RATE_SPAN_NS: Final = 3 * NS_PER_SECOND
_RATE_STEP_NS: Final = 100 * NS_PER_MS
_SHOWN: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class RunningStage:
    """One stage as far as it is known. Its size does not grow with requests or time."""

    def __init__(self, meta: StageMeta, now_ns: int) -> None:
        self.meta = meta
        self.accounts: Counter[str] = Counter()
        self.intended: int | None = None
        """Known once the stage has ended."""
        self._histograms = {name: Histogram() for name in (*WATCHED, "lateness")}
        self._counted: Counter[str] = Counter()
        self._marks: deque[tuple[int, Counter[str]]] = deque([(now_ns, Counter())])

    @property
    def books(self) -> Books:
        return books_of(self.accounts, self.intended)

    @property
    def ended(self) -> bool:
        return self.intended is not None

    def end(self, intended: int) -> None:
        """The stage is over."""
        self.intended = intended

    def release(self) -> None:
        """Let go of the latencies; only the books are kept."""
        self._histograms = {}

    def count(self, delta: StageDelta, now_ns: int) -> None:
        """Take in the books and the events of a delta."""
        for _, account, requests in delta.accounts:
            self.accounts[account] += requests
        for column in delta.series:
            if column.name in (SENT, COMPLETIONS, OUTPUT_TOKENS):
                self._counted[column.name] += round(float(column.amounts().sum()))
        if now_ns - self._marks[-1][0] >= _RATE_STEP_NS:
            self._marks.append((now_ns, self._counted.copy()))

    def add(self, metric: str, delta: Delta) -> None:
        """Take in samples; those of metrics that nobody watches are let go."""
        histogram = self._histograms.get(metric)
        if histogram is not None:
            histogram.add(delta)

    def rate(self, column: str, now_ns: int) -> float:
        """Events per second over the last 3 s, or since the stage was announced."""
        while len(self._marks) > 1 and self._marks[1][0] <= now_ns - _RATE_SPAN_NS:
            self._marks.popleft()
        since_ns, before = self._marks[0]
        since_ns = max(since_ns, min(self.meta.grid.origin_ns, now_ns))
        return (self._counted[column] - before[column]) * NS_PER_SECOND / max(now_ns - since_ns, _RATE_STEP_NS)

    def percentiles(self) -> dict[str, dict[str, float]]:
        """In seconds, of the watched latencies that have samples."""
        return {
            name: {label: _seconds(histogram, fraction) for label, fraction in _SHOWN.items()}
            for name in WATCHED
            if (histogram := self._histograms.get(name)) is not None and histogram.count
        }

    def lateness_p99(self) -> float | None:
        histogram = self._histograms.get("lateness")
        return _seconds(histogram, 0.99) if histogram is not None and histogram.count else None


def _seconds(histogram: Histogram, fraction: float) -> float:
    return (histogram.value_at(fraction) or 0) / NS_PER_SECOND


class Live(msgspec.Struct, frozen=True):
    """What is known while the run goes on; made for people to look at, not to be reported."""

    stage: str
    stage_number: int
    stages: int
    """How many are planned; 0 where that is decided as the run goes."""
    elapsed_seconds: float
    """Of this stage's arrivals; negative before the first."""
    duration_seconds: float | None
    requests: int | None
    offered_rate: float | None
    concurrency: int | None
    draining: bool
    books: Books
    in_flight: int
    achieved_rate: float
    """Requests sent per second over the last few seconds."""
    completed_rate: float
    output_token_rate: float
    lateness_p99: float | None
    percentiles: dict[str, dict[str, float]]
    """By latency (`ttft`, `itl`, `response`) and percentile (`p50`, `p90`, `p99`), in seconds, of the stage so far."""
    warnings: list[str]
    purpose: str | None = None
    """What a search asked the stage for."""
