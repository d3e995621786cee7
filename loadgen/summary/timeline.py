"""A stage over time: one row an interval, the warm-up and the drain included."""

from collections import defaultdict
from collections.abc import Iterable
from math import ceil
from typing import Final

from loadgen.measure.delta import COMPLETIONS, FAILURES, IN_FLIGHT_INTEGRAL, OUTPUT_TOKENS
from loadgen.measure.journal import Record
from loadgen.measure.outcome import BINS_PER_INTERVAL, Grid
from loadgen.statistics.histogram import Delta, Histogram
from loadgen.summary.counts import Floats, StageCounts
from loadgen.summary.latencies import batches
from loadgen.summary.summary import Series
from loadgen.units import NS_PER_SECOND

_MOST_ROWS: Final = 2000
"""Longer stages have several intervals to a row, so that a report stays small."""
_METRICS: Final = ("ttft", "response")
_PIECES: Final = 8
"""So many deltas of one row and metric are summed into one, which bounds the memory."""


def series_of(grid: Grid, counts: StageCounts, records: Iterable[Record]) -> Series | None:
    """The series of a stage; None where nothing happened. `records` is one more reading of its journal."""
    intended = counts.intended
    first = min([grid.interval_of(grid.origin_ns), *intended])
    end = max([-(-counts.bins.end // BINS_PER_INTERVAL), *(interval + 1 for interval in intended)])
    if end <= first:
        return None
    step = ceil((end - first) / _MOST_ROWS)
    rows = ceil((end - first) / step)
    seconds = step * grid.interval_ns / NS_PER_SECOND
    arrivals = [0] * rows
    for interval, requests in intended.items():
        arrivals[(interval - first) // step] += requests

    def column(name: str) -> Floats:
        return counts.bins.rows(name, first * BINS_PER_INTERVAL, step * BINS_PER_INTERVAL, rows)

    percentiles = _percentiles(records, first, step, rows)
    origin = (grid.window_ns + first * grid.interval_ns - grid.origin_ns) / NS_PER_SECOND
    return Series(
        interval=seconds,
        start=[origin + row * seconds for row in range(rows)],
        arrivals=arrivals,
        completed=[round(n) for n in column(COMPLETIONS).tolist()],
        failed=[round(n) for n in column(FAILURES).tolist()],
        output_tokens=(column(OUTPUT_TOKENS) / seconds).tolist(),
        in_flight=(column(IN_FLIGHT_INTEGRAL) / (seconds * NS_PER_SECOND)).tolist(),
        ttft_p50=percentiles["ttft", 0.5],
        ttft_p99=percentiles["ttft", 0.99],
        response_p50=percentiles["response", 0.5],
        response_p99=percentiles["response", 0.99],
    )


def _percentiles(
    records: Iterable[Record], first: int, step: int, rows: int
) -> dict[tuple[str, float], list[float | None]]:
    """By metric and fraction the percentile of each row, in seconds; None where the row has no sample."""
    sums: defaultdict[tuple[str, int], list[Delta]] = defaultdict(list)
    for metric, table in batches(records, _METRICS):
        for row, delta in table.merged((table.intervals - first) // step):
            pieces = sums[metric, row]
            pieces.append(delta)
            if len(pieces) >= _PIECES:
                pieces[:] = [_sum(pieces).to_delta()]
    columns: dict[tuple[str, float], list[float | None]] = {
        (metric, fraction): [None] * rows for metric in _METRICS for fraction in (0.5, 0.99)
    }
    for (metric, row), pieces in sums.items():
        histogram = _sum(pieces)
        for fraction in (0.5, 0.99):
            columns[metric, fraction][row] = (histogram.value_at(fraction) or 0) / NS_PER_SECOND
    return columns


def _sum(pieces: list[Delta]) -> Histogram:
    histogram = Histogram()
    for piece in pieces:
        histogram.add(piece)
    return histogram
