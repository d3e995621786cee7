"""How surely a stage attained its goodput: intervals of the share of good requests, and of their rate.

Of good and bad alone nothing can be told of bursts that a short run has not seen. So workers tell how far each request
was from its limits: its ratio is the largest of its values, each divided by its limit, and it is good at most at 1
(`goodput.ratios`). Two readings of the journal, as for latencies.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.measure.delta import RATIO_ONE, StageDelta
from loadgen.measure.journal import Record
from loadgen.profile.slo import Slo
from loadgen.statistics.histogram import Histogram, Ints, bucket_indices, ceiling_rank
from loadgen.statistics.proportion import product_interval, rate_interval, share_interval
from loadgen.statistics.sparse import SparseHistograms, Table
from loadgen.summary.counts import StageCounts
from loadgen.summary.summary import Estimate
from loadgen.summary.window import Span
from loadgen.units import NS_PER_SECOND

_BATCH: Final = 4096
"""Sparse histograms that are opened in one go."""

Read = Callable[[], Iterable[Record]]
"""Reads the journal of the stage from its beginning."""


class Attained(msgspec.Struct, frozen=True):
    """The share of a window's requests that were good, where one is promised; the interval of goodput, likewise."""

    attainment: Estimate | None = None
    goodput_ci: tuple[float, float] | None = None


def attained(read: Read, counts: StageCounts, span: Span, slo: Slo | None, goodput: float | None) -> Attained:
    """What can be said of the promises `attainment` and `goodput` of `slo`, of which either may be absent.

    The share is of the requests of the window that the target had to answer (`StageCounts.answerable`); those that did
    not complete were not good. Its interval is `proportion.share_interval`, for which the share up to the promised
    percentile of the ratios is looked at too: while all are good, it alone shows the bursts.

    Goodput is the rate of requests times that share, and so is its interval (`proportion.product_interval`), about the
    measured `goodput`; the share that is promised is then the promised goodput over the rate of requests. Intervals
    from the counts of good requests alone say "met" wrongly in up to a quarter of short runs close to saturation.
    """
    if slo is None or (slo.attainment is None and slo.goodput is None):
        return Attained()
    requests = np.zeros(span.intervals, np.int64)
    for interval, count in counts.answerable(span.holds).items():
        requests[min(interval - span.first_interval, span.intervals - 1)] += count
    total = int(requests.sum())
    if not total:
        return Attained()
    rate = total / span.seconds if span.seconds else None
    needed = None if slo.goodput is None or rate is None else min(1.0, slo.goodput / rate)
    ranks = [None if least is None else ceiling_rank(least, total) for least in (slo.attainment, needed)]
    good, *near = _counts(read, span, ranks)
    share = int(good.sum()) / total
    ci, for_goodput = (share_interval(requests, good, counts) for counts in near)
    goodput_ci = None
    if rate is not None and needed is not None and goodput is not None and for_goodput is not None:
        rate_ci = rate_interval(requests, _lengths(span))
        goodput_ci = None if rate_ci is None else product_interval(goodput, (rate, rate_ci), (share, for_goodput))
    return Attained(None if slo.attainment is None else Estimate(share, ci), goodput_ci)


def _lengths(span: Span) -> NDArray[np.float64]:
    """The lengths of the window's intervals, of which the last takes what is left."""
    each = span.grid.interval_ns / NS_PER_SECOND
    seconds = np.full(span.intervals, each)
    seconds[-1] = span.seconds - each * (span.intervals - 1)
    return seconds


def _counts(read: Read, span: Span, ranks: list[int | None]) -> list[Ints]:
    """By interval the good requests, and for each rank those with a ratio up to its own; for None the good again."""
    ratios = Histogram()
    for table in _tables(read(), span):
        for _, delta in table.merged(np.zeros_like(table.intervals)):
            ratios.add(delta)
    counted = np.zeros((1 + len(ranks), span.intervals), np.int64)
    if ratios.count:
        one = int(bucket_indices(np.array([RATIO_ONE]))[0])
        # What did not complete lies beyond every ratio.
        at = [one if rank is None else ratios.bucket_at_rank(min(rank, ratios.count)) for rank in ranks]
        buckets = np.array([one, *at])
        for table in _tables(read(), span):
            for interval, delta in table.merged(np.minimum(table.intervals - span.first_interval, span.intervals - 1)):
                counted[:, interval] += delta.counts_up_to(buckets)
    return list(counted)


def _tables(records: Iterable[Record], span: Span) -> Iterator[Table]:
    """The ratios of the window's requests, as large tables."""
    pending: list[SparseHistograms] = []
    for record in records:
        if isinstance(record, StageDelta):
            pending += record.ratios
        if len(pending) >= _BATCH:
            yield _from(pending, span)
            pending.clear()
    if pending:
        yield _from(pending, span)


def _from(pieces: list[SparseHistograms], span: Span) -> Table:
    table = Table.open(pieces)
    chosen = table.intervals >= span.first_interval
    return table.where(chosen & (table.intervals < span.end_interval) if span.cut else chosen)
