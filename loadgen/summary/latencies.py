"""The second and third reading of a stage's journal: the latencies of its window, with confidence and curves."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import takewhile
from typing import Final

import numpy as np

from loadgen.measure.delta import StageDelta
from loadgen.measure.journal import Booking, Record
from loadgen.measure.outcome import FAILED
from loadgen.profile.slo import PERCENTILES
from loadgen.statistics.confidence import PercentileIntervals, sufficient
from loadgen.statistics.histogram import Delta, Histogram
from loadgen.statistics.sparse import SparseHistograms, Table
from loadgen.summary.summary import Latencies, Latency
from loadgen.summary.window import Span
from loadgen.units import NS_PER_SECOND

BOUNDS: Final = {"response_at_least": "response", "ttft_at_least": "ttft"}
"""Histograms of lower bounds, and the latency that each belongs to."""
LOOP_LAG: Final = "loop_lag"

_BATCH: Final = 4096
"""Sparse histograms that are merged in one go; numpy's cost for each call is spread over them."""
_CURVE: Final = tuple(round(1 - 10 ** (-step / 20), 7) for step in range(101))
"""Fractions of a percentile curve: 20 a decade of what lies beyond, to 1 in 100,000."""

Read = Callable[[], Iterable[Record]]
"""Reads the journal of the stage from its beginning."""


class StageLatencies:
    """All samples of a window by metric, merged in one reading; `latency` needs a second one for the intervals.

    ttft_bounded: whether requests that had not ended bound TTFT, which they do not where nothing is streamed.
    """

    def __init__(self, read: Read, span: Span, *, ttft_bounded: bool) -> None:
        self._read = read
        self._span = span
        self._ttft_bounded = ttft_bounded
        self.merged: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.bounds: dict[str, Histogram] = {}
        """The lower bounds in each latency that has any; they are among its samples too."""
        for metric, table in self._tables():
            for _, delta in table.merged(np.zeros_like(table.intervals)):
                self._add(metric, delta)
        for metric, histogram in self.bounds.items():
            self.merged[metric].merge(histogram)

    def _add(self, metric: str, delta: Delta) -> None:
        if metric in BOUNDS:
            self.bounds.setdefault(BOUNDS[metric], Histogram()).add(delta)
        else:
            self.merged[metric].add(delta)

    def _tables(self) -> Iterator[tuple[str, Table]]:
        """The samples of the window, a batch of the journal at a time."""
        for metric, table in batches(self._read()):
            if metric == "ttft_at_least" and not self._ttft_bounded:
                continue
            chosen = table.intervals >= self._span.first_interval
            # The lag is of its own instant, and goes on while the target drains; a stage that is looked at goes on too.
            if metric == LOOP_LAG or self._span.cut:
                chosen &= table.intervals < self._span.end_interval
            within = table.where(chosen)
            if within.intervals.size:
                yield metric, within

    def mean_seconds(self, metric: str) -> float | None:
        mean_ns = self.merged[metric].mean_ns if metric in self.merged else None
        return None if mean_ns is None else mean_ns / NS_PER_SECOND

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """For each latency that a report names the points (fraction, seconds) that its samples suffice for."""
        return {
            metric: [
                (fraction, (histogram.value_at(fraction) or 0) / NS_PER_SECOND)
                for fraction in takewhile(partial(sufficient, histogram.count), _CURVE)
            ]
            for metric, histogram in self.merged.items()
            if metric in Latencies.__struct_fields__
        }

    def summarised(self) -> tuple[Latencies, Latency | None]:
        """Every latency that has samples, with its confidence intervals; and the event loop's lag."""
        counted = {
            metric: PercentileIntervals(histogram, list(PERCENTILES.values()), self._span.intervals)
            for metric, histogram in self.merged.items()
        }
        last = self._span.intervals - 1
        for metric, table in self._tables():
            counter = counted[BOUNDS.get(metric, metric)]
            for interval, delta in table.merged(np.minimum(table.intervals - self._span.first_interval, last)):
                counter.add(interval, delta)
        named = {
            metric: latency_of(histogram, counted[metric], self.bounds.get(metric))
            for metric, histogram in self.merged.items()
        }
        failed = {
            metric.removeprefix(FAILED): latency
            for metric, latency in sorted(named.items())
            if metric.startswith(FAILED)
        }
        known = {metric: latency for metric, latency in named.items() if metric in Latencies.__struct_fields__}
        return Latencies(**known, failed=failed), named.get(LOOP_LAG)


def batches(records: Iterable[Record], only: Collection[str] | None = None) -> Iterator[tuple[str, Table]]:
    """The keyed samples of a journal by metric, as large tables; each metric comes as often as there are batches.

    only: the metrics to read, by default all.
    """
    pending: defaultdict[str, list[SparseHistograms]] = defaultdict(list)
    waiting = 0
    for record in records:
        pieces = _keyed(record)
        waiting += len(pieces)
        for piece in pieces:
            if only is None or piece.metric in only:
                pending[piece.metric].append(piece)
        if waiting >= _BATCH:
            yield from ((metric, Table.open(found)) for metric, found in pending.items())
            pending.clear()
            waiting = 0
    yield from ((metric, Table.open(found)) for metric, found in pending.items())


def _keyed(record: Record) -> list[SparseHistograms]:
    if isinstance(record, StageDelta):
        return record.histograms
    return record.bounds if isinstance(record, Booking) else []


def latency_of(
    histogram: Histogram, intervals: PercentileIntervals | None = None, bounds: Histogram | None = None
) -> Latency:
    """A latency as reports show it, from a histogram that has samples. `bounds` are those of them that are ages."""
    values = {name: (histogram.value_at(fraction) or 0) / NS_PER_SECOND for name, fraction in PERCENTILES.items()}
    ci: dict[str, tuple[float, float | None]] = {}
    at_least: dict[str, bool] = {}
    for name, fraction in PERCENTILES.items() if intervals is not None else ():
        estimate = intervals.estimate(fraction, None if bounds is None else bounds.min_ns) if intervals else None
        if estimate is not None:
            high = None if estimate.high_ns is None else estimate.high_ns / NS_PER_SECOND
            ci[name] = (estimate.low_ns / NS_PER_SECOND, high)
            if bounds is not None:
                at_least[name] = estimate.at_least
    return Latency(
        count=histogram.count,
        mean=(histogram.mean_ns or 0) / NS_PER_SECOND,
        stddev=(histogram.stddev_ns or 0) / NS_PER_SECOND,
        min=(histogram.min_ns or 0) / NS_PER_SECOND,
        max=(histogram.max_ns or 0) / NS_PER_SECOND,
        p50=values["p50"],
        p90=values["p90"],
        p95=values["p95"],
        p99=values["p99"],
        p99_9=values["p99.9"],
        ci=ci,
        sufficient={name: sufficient(histogram.count, fraction) for name, fraction in PERCENTILES.items()},
        at_least=at_least,
        lower_bounds=0 if bounds is None else bounds.count,
        clamped=histogram.clamped,
    )
