"""Which requests are good: completed, and within every limit by their own values; and how far each was from them."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from loadgen.metrics.batch import Batch, Mask
from loadgen.metrics.delta import RATIO_ONE
from loadgen.metrics.histogram import HIGHEST_NS, Ints, as_decimal
from loadgen.metrics.keyed import Samples
from loadgen.metrics.slo_table import RequestLimit

_GAP_BITS: Final = 42
"""Gaps of up to 2**42 ns, more than an hour, are told apart: room for two million requests in one flush."""


def good(limits: Sequence[RequestLimit], batch: Batch) -> Mask:
    """The completed requests that met each of the limits.

    A request's own value must be at most the limit. Of its gaps (`itl`), at most a share of 1 - fraction may be longer.
    What a request does not have (a gap, where it has one chunk; a TTFT, where it is not streamed) it does not miss.
    """
    met = batch.completed.copy()
    for limit_ns, values, there in _own(limits, batch):
        met &= ~there | (values <= limit_ns)
    return met


def ratios(limits: Sequence[RequestLimit], batch: Batch) -> Samples:
    """For each completed request its largest value by limit, where `RATIO_ONE` stands for 1: good are those up to it.

    A request that has none of the values has a ratio of 0.
    """
    largest = np.zeros(batch.size, np.int64)
    for limit_ns, values, there in _own(limits, batch):
        ratio = np.minimum(values / max(1, limit_ns) * RATIO_ONE, HIGHEST_NS).astype(np.int64)
        # Rounding must not move a request over its limit, nor back.
        exact = np.where(values <= limit_ns, np.minimum(ratio, RATIO_ONE), np.maximum(ratio, RATIO_ONE + 1))
        np.maximum(largest, exact, out=largest, where=there)
    chosen = batch.completed
    return Samples("ratio", largest[chosen], batch.interval[chosen], batch.second[chosen])


def _own(limits: Sequence[RequestLimit], batch: Batch) -> Iterator[tuple[int, Ints, Mask]]:
    """Each limit (ns) with the requests' own values, and which requests have one."""
    latencies = batch.latencies()
    gaps = _Gaps(batch) if any(limit.metric == "itl" for limit in limits) else None
    for limit in limits:
        if limit.metric != "itl":
            yield limit.limit_ns, *latencies[limit.metric]
        elif gaps is not None:
            yield limit.limit_ns, *gaps.at(limit.fraction)


class _Gaps:
    """The gaps of each request, in ascending order."""

    def __init__(self, batch: Batch) -> None:
        count = np.bincount(batch.gap_owner, minlength=batch.size)
        highest = (1 << _GAP_BITS) - 1
        # One number for owner and gap sorts much faster than two.
        self._sorted = np.sort((batch.gap_owner << _GAP_BITS) | np.minimum(batch.gaps, highest)) & highest
        self._first = np.cumsum(count) - count
        self._count = count

    def at(self, fraction: float) -> tuple[Ints, Mask]:
        """The percentile of each request's own gaps, by ceiling rank; the largest at 1. And which requests have gaps.

        At most a share of 1 - fraction of n gaps is longer than a limit where that of rank ceil(n fraction) is not.
        """
        exact = as_decimal(fraction)
        rank = np.maximum(1, -(-self._count * exact.numerator // exact.denominator))
        values = np.zeros(self._count.size, np.int64)
        there = self._count > 0
        values[there] = self._sorted[(self._first + rank - 1)[there]]
        return values, there
