"""Which requests are good: completed, and within every limit by their own values; and how far each was from them."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from loadgen.measure.batch import Batch, Mask
from loadgen.measure.delta import RATIO_ONE
from loadgen.profile.slo import RequestLimit
from loadgen.statistics.histogram import HIGHEST_NS, Ints, as_decimal
from loadgen.statistics.sparse import Samples

_GAP_BITS: Final = 42
"""Gaps of up to 2**42 ns, more than an hour, are told apart: room for two million requests in one flush."""


def good(limits: Sequence[RequestLimit], batch: Batch) -> Mask:
    """The completed requests that met each of the limits.

    A request's own value must be at most the limit. Of its gaps (`itl`), at most a share of 1 - fraction may be longer.
    What a request does not have (a gap, where it has one chunk; a TTFT, where it is not streamed) it does not miss.
    """
    met = batch.completed.copy()
    latencies = batch.latencies
    for limit in limits:
        if limit.metric == "itl":
            met &= _gaps_within(limit, batch)
        else:
            values, there = latencies[limit.metric]
            met &= ~there | (values <= limit.limit_ns)
    return met


def _gaps_within(limit: RequestLimit, batch: Batch) -> Mask:
    """By counting, which costs a tenth of putting the gaps in order."""
    gaps = np.bincount(batch.gap_owner, minlength=batch.size)
    over = np.bincount(batch.gap_owner[batch.gaps > limit.limit_ns], minlength=batch.size)
    share = 1 - as_decimal(limit.fraction)
    within: Mask = over * share.denominator <= gaps * share.numerator
    return within


def ratios(limits: Sequence[RequestLimit], batch: Batch) -> Samples:
    """For each completed request its largest value by limit, where `RATIO_ONE` stands for 1: good are those up to it.

    A request that has none of the values has a ratio of 0.
    """
    latencies = batch.latencies
    largest = np.zeros(batch.size, np.int64)
    for limit in limits:
        values, there = _gaps_at(limit.fraction, batch) if limit.metric == "itl" else latencies[limit.metric]
        ratio = np.minimum(values / max(1, limit.limit_ns) * RATIO_ONE, HIGHEST_NS).astype(np.int64)
        # Rounding must not move a request over its limit, nor back.
        good_ones = values <= limit.limit_ns
        exact = np.where(good_ones, np.minimum(ratio, RATIO_ONE), np.maximum(ratio, RATIO_ONE + 1))
        np.maximum(largest, exact, out=largest, where=there)
    chosen = batch.completed
    return Samples("ratio", largest[chosen], batch.interval[chosen], batch.second[chosen])


def _gaps_at(fraction: float, batch: Batch) -> tuple[Ints, Mask]:
    """The percentile of each request's own gaps, by ceiling rank; the largest at 1. And which requests have gaps.

    At most a share of 1 - fraction of n gaps is longer than a limit where that of rank ceil(n fraction) is not.
    """
    count = np.bincount(batch.gap_owner, minlength=batch.size)
    there = count > 0
    first = (np.cumsum(count) - count)[there]
    values = np.zeros(batch.size, np.int64)
    if fraction == 1:  # the gaps of a request stand together
        values[there] = np.maximum.reduceat(batch.gaps, first) if first.size else 0
        return values, there
    exact = as_decimal(fraction)
    rank = np.maximum(1, -(-count[there] * exact.numerator // exact.denominator))
    highest = (1 << _GAP_BITS) - 1
    # One number for owner and gap sorts much faster than two.
    ordered = np.sort((batch.gap_owner << _GAP_BITS) | np.minimum(batch.gaps, highest)) & highest
    values[there] = ordered[first + rank - 1]
    return values, there
