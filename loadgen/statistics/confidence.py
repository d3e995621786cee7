"""Confidence intervals of percentiles, from the samples counted by intervals of time.

Latencies that follow each other resemble each other, so n samples tell less than n independent ones would. How much
less is estimated from how the share of samples at or below the percentile varies between blocks of time; the ranks of
the interval's ends are widened by it (docs/metrics.md).

Two passes, so that nothing but counts is kept: merge all samples into one `Histogram`, then show every `Delta` with
its interval to `PercentileIntervals`.
"""

from collections.abc import Sequence
from math import ceil, floor, sqrt
from typing import Final

import msgspec
import numpy as np

from loadgen.statistics.histogram import Delta, Histogram, Ints, as_decimal, ceiling_rank

_T_975: Final = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
"""The .975 quantiles of Student's t with 1, 2, ... 20 degrees of freedom (any table of t)."""


def student_t_975(degrees: int) -> float:
    """The .975 quantile of Student's t; beyond 20 degrees of freedom a little wider than it is.

    z + (z³ + z) / (4 df) with z = 1.95996 is the beginning of its expansion in 1/df (Fisher and Cornish, 1960) and is
    short by less than 0.3 % there; 1 % is added to be on the safe side.
    """
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = 1.959964
    return min(_T_975[-1], 1.01 * (z + (z**3 + z) / (4 * degrees)))


T_975: Final = {8: 2.364624, 10: 2.262157, 12: 2.200985, 16: 2.131450, 20: 2.093024}
"""By number of blocks m, the .975 quantile of Student's t with m - 1 degrees of freedom (any table of t)."""

SAMPLES_BEYOND: Final = 10


class Ranks(msgspec.Struct, frozen=True):
    """The 1-based ranks of an interval's ends among the samples; `upper` is None where it lies beyond the last."""

    lower: int
    upper: int | None


class PercentileEstimate(msgspec.Struct, frozen=True):
    """A percentile of a run with its 95 % confidence interval, in ns.

    high_ns: None where the interval is open: the run is too short to bound this percentile from above, or samples
        that are only lower bounds lie there.
    sufficient: at least 10 samples lie beyond the percentile; otherwise the value is hardly more than a maximum.
    at_least: the value itself is a lower bound, since it lies among samples that had not ended.
    """

    value_ns: int
    low_ns: int
    high_ns: int | None
    sufficient: bool
    at_least: bool = False


def sufficient(count: int, fraction: float) -> bool:
    """Whether at least 10 of `count` samples lie beyond the percentile at this fraction."""
    return count * (1 - as_decimal(fraction)) >= SAMPLES_BEYOND


def widened_ranks(samples: Ints, at_or_below: Ints, fraction: float) -> Ranks:
    """The ranks of the ends of the 95 % confidence interval of the percentile at `fraction`.

    With q the sample percentile, `samples[j]` are the samples of the j-th interval of time and `at_or_below[j]` those
    of them up to q (its ties included). Intervals are of equal length, in order, empty ones included: at least 8, and
    24 or more for the stated coverage.

    For every m of 8, 10, 12, 16, 20 that there are intervals for, these are grouped into m blocks of equal time (to
    within an interval) with n_j samples, k_j of them up to q. With p = `fraction`, n = sum n_j and p' = sum k_j / n:

        v_m = max(1, m/(m-1) * sum (k_j - p' n_j)² / (n p' (1-p')))
        h   = sqrt(n p (1-p) * max over m of t(m-1, .975)² v_m)
        lower = floor(np - h), at least 1;  upper = ceil(np + h) + 1, None beyond n

    v is the variance of the share up to q, relative to independent samples. p' and not p stands in v because of
    ties. The largest over several m, since no single m suits both long and short correlation: by simulation, m = 20
    alone covers 78-89 % where this covers 91-98 %. Samples that are all up to q have v = 1.

    With fewer than 8 intervals that hold a sample, v cannot be told: the ranks are 1 and None, which bounds nothing.
    """
    count = int(samples.sum())
    if np.count_nonzero(samples) < min(T_975):
        return Ranks(1, None)
    widest = max(t * t * relative_variance(samples, at_or_below, m) for m, t in T_975.items() if m <= samples.size)
    half = sqrt(count * fraction * (1 - fraction) * widest)
    upper = ceil(count * fraction + half) + 1
    return Ranks(max(1, floor(count * fraction - half)), upper if upper <= count else None)


def relative_variance(samples: Ints, at_or_below: Ints, blocks: int) -> float:
    """v_m of `widened_ranks`; 1 also where no sample is at or below."""
    edges = np.arange(blocks) * samples.size // blocks
    n, k = np.add.reduceat(samples, edges), np.add.reduceat(at_or_below, edges)
    share = float(k.sum() / n.sum())
    if share in (0, 1):
        return 1.0
    deviations = float(np.square(k - share * n).sum())
    return max(1.0, blocks / (blocks - 1) * deviations / (float(n.sum()) * share * (1 - share)))


class PercentileIntervals:
    """The second pass: counts, by interval of time, of the samples at or below each percentile of their sum.

    `merged` is the sum of all samples and must not change any more. `intervals` is how many intervals of equal length
    the measured time has; `fractions` are the percentiles that will be asked for, in 0 .. 1.
    """

    def __init__(self, merged: Histogram, fractions: Sequence[float], intervals: int) -> None:
        self._merged = merged
        self._rows = {fraction: row for row, fraction in enumerate(fractions)}
        ranks = [ceiling_rank(fraction, merged.count) for fraction in fractions] if merged.count else []
        self._buckets = np.array([merged.bucket_at_rank(rank) for rank in ranks], np.int64)
        self._samples = np.zeros(intervals, np.int64)
        self._at_or_below = np.zeros((len(fractions), intervals), np.int64)

    def add(self, interval: int, delta: Delta) -> None:
        """Count the samples of a delta into an interval, 0 the first. Deltas of one interval add up.

        Raises:
            ValueError: there is no such interval.
        """
        if not 0 <= interval < self._samples.size:
            raise ValueError(f"interval {interval} of {self._samples.size}")
        if delta.count:
            self._samples[interval] += delta.count
            self._at_or_below[:, interval] += delta.counts_up_to(self._buckets)

    def estimate(self, fraction: float, smallest_bound_ns: int | None = None) -> PercentileEstimate | None:
        """The percentile at one of the fractions, with its interval; None without samples.

        Some samples may be lower bounds, the ages of requests that had not ended: `smallest_bound_ns` is the smallest
        of them. A percentile at or above it is one too, and no upper end at or above it bounds anything.

        Raises:
            KeyError: the fraction is none of those that were counted.
        """
        row = self._rows[fraction]
        merged = self._merged
        if not merged.count:
            return None
        value_ns = merged.value_at_rank(ceiling_rank(fraction, merged.count))
        ranks = widened_ranks(self._samples, self._at_or_below[row], fraction)
        high_ns = merged.value_at_rank(ranks.upper) if ranks.upper is not None else None
        if high_ns is not None and smallest_bound_ns is not None and high_ns >= smallest_bound_ns:
            high_ns = None
        return PercentileEstimate(
            value_ns=value_ns,
            low_ns=merged.span_at_rank(ranks.lower)[0],
            high_ns=high_ns,
            sufficient=sufficient(merged.count, fraction),
            at_least=smallest_bound_ns is not None and value_ns >= smallest_bound_ns,
        )
