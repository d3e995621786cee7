"""Histograms of durations: HdrHistogram's buckets, folded and summed with numpy instead of a call a sample.

`Delta` is the sparse form that travels and is journalled; `Histogram` is the dense sum of many. Both keep,
beside the bucket counts, what buckets lose: the exact minimum, maximum, sum and sum of squares.
All values are in ns.
"""

from fractions import Fraction
from functools import lru_cache
from math import sqrt
from typing import Final, TypeAlias

import msgspec
import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

LOWEST_NS: Final = 1_000
HIGHEST_NS: Final = 3_600_000_000_000
SIGNIFICANT_DIGITS: Final = 3

# The lowest value is rounded down to a power of two: the narrowest bucket is 2**9 = 512 ns wide.
_UNIT_MAGNITUDE: Final = 9
# Three digits need 2 * 10**3 sub-buckets, 2**11 when rounded up; half of them are new in each octave.
_HALF_MAGNITUDE: Final = 10
_HALF: Final = 1 << _HALF_MAGNITUDE
# The first octave ends at 2**(9 + 11) ns; 22 doublings reach 2**42 ns, the first power above an hour:
# 23 octaves of 1,024 buckets, and the lower half of the first.
BUCKETS: Final = 24 * _HALF
"""How many counters a histogram has: those of the hdrh library for the same range and digits."""

_LINEAR_BELOW: Final = 1 << (_UNIT_MAGNITUDE + _HALF_MAGNITUDE)
_DOUBLE_MANTISSA_BITS: Final = 52
_DOUBLE_EXPONENT_BIAS: Final = 1023


def bucket_indices(values: Ints) -> Ints:
    """The bucket of each value; the counts index of the hdrh library for the same range and digits.

    Values must lie in 0 .. 2**42 - 1; clamp them first.

    Below 2**19 ns buckets are linear, 512 ns wide. From there each octave is cut into 1,024: just what the
    exponent and the first 10 mantissa bits of a double say, so these bits, read as an integer, count buckets.
    """
    leading = values.astype(np.float64).view(np.int64) >> (_DOUBLE_MANTISSA_BITS - _HALF_MAGNITUDE)
    before_first = (_DOUBLE_EXPONENT_BIAS + _UNIT_MAGNITUDE + _HALF_MAGNITUDE - 1) << _HALF_MAGNITUDE
    linear = values >> _UNIT_MAGNITUDE
    indices: Ints = np.where(values < _LINEAR_BELOW, linear, leading - before_first)
    return indices


def lowest_equivalent(indices: Ints) -> Ints:
    """The smallest value (ns) that falls into each bucket."""
    octave = _octave(indices)
    return (indices - (octave << _HALF_MAGNITUDE)) << (octave + _UNIT_MAGNITUDE)


def highest_equivalent(indices: Ints) -> Ints:
    """The largest value (ns) that falls into each bucket."""
    return lowest_equivalent(indices) + (np.int64(1) << (_octave(indices) + _UNIT_MAGNITUDE)) - 1


def _octave(indices: Ints) -> Ints:
    octaves: Ints = np.maximum((indices >> _HALF_MAGNITUDE) - 1, 0)
    return octaves


def ceiling_rank(fraction: float, count: int) -> int:
    """The 1-based rank of a percentile among `count` samples: the smallest with that fraction at or below it.

    The fraction is taken as the decimal that it is written as: .07 of 100 is rank 7 (8 in floating point).
    """
    exact = as_decimal(fraction)
    return max(1, -(-count * exact.numerator // exact.denominator))


@lru_cache(maxsize=64)
def as_decimal(fraction: float) -> Fraction:
    """A fraction in 0 .. 1 as the exact number that its decimal form says.

    Raises:
        ValueError: it lies outside 0 .. 1 or is not a number.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"a percentile's fraction lies in 0 .. 1, not {fraction}")
    return Fraction(repr(float(fraction)))


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """Samples as sparse bucket counts; the form on the wire and in the journal. Sums of deltas lose nothing.

    indices: the non-empty buckets in ascending order, little-endian uint16.
    counts: samples in each of them, little-endian unsigned integers, as wide (1, 2, 4 or 8 bytes) as needed:
        `2 * len(counts) / len(indices)`. A quarter second of samples takes about 3 bytes a bucket.
    count: how many samples.
    min_ns, max_ns: the true extremes, also where they were clamped; None without samples.
    sum_ns, sum_squares: the sums of the values (exact) and of their squares (ns²), not clamped either.
    clamped_low, clamped_high: samples outside LOWEST_NS .. HIGHEST_NS, counted in the bucket of that bound.
        Low ones are ordinary where a wait can be zero; high ones mean that the range was too small.
    """

    indices: bytes
    counts: bytes
    count: int
    min_ns: int | None
    max_ns: int | None
    sum_ns: int
    sum_squares: float
    clamped_low: int = 0
    clamped_high: int = 0

    @property
    def clamped(self) -> int:
        """Samples outside of the histogram's range, at either end."""
        return self.clamped_low + self.clamped_high

    def buckets(self) -> tuple[NDArray[np.uint16], NDArray[np.unsignedinteger]]:
        """The non-empty buckets, ascending, and their counts: read-only views of the two byte strings."""
        width = 2 * len(self.counts) // len(self.indices) if self.indices else 1
        return np.frombuffer(self.indices, "<u2"), np.frombuffer(self.counts, f"<u{width}")

    def counts_up_to(self, buckets: Ints) -> Ints:
        """For each of the given buckets, how many samples lie in it or below it."""
        indices, counts = self.buckets()
        cumulative = np.zeros(counts.size + 1, np.int64)
        np.cumsum(counts, dtype=np.int64, out=cumulative[1:])
        return cumulative[np.searchsorted(indices, buckets, side="right")]


def fold(values: Ints) -> Delta:
    """Count samples (ns) into one delta. Its sum must fit into 63 bits: 2.5 million samples of an hour do."""
    groups = fold_groups(values, np.zeros(values.size, np.int64))
    return groups[0][1] if groups else _EMPTY


_EMPTY: Final = Delta(b"", b"", 0, None, None, 0, 0.0)


def fold_groups(values: Ints, keys: Ints) -> list[tuple[int, Delta]]:
    """Count samples (ns) into one delta for each distinct key, ascending by key, in one vectorised pass.

    `keys` are any int64, one for each value. Sums as in `fold`.
    """
    if not values.size:
        return []
    keys, values = _grouped(keys, values)
    starts = _run_starts(keys)
    sizes = np.diff(starts, append=values.size)
    clamped = np.clip(values, LOWEST_NS, HIGHEST_NS)
    buckets, counts, edges = _count_buckets(bucket_indices(clamped), sizes)
    as_floats = values.astype(np.float64)
    columns = zip(
        keys[starts].tolist(),
        edges[:-1].tolist(),
        edges[1:].tolist(),
        sizes.tolist(),
        np.minimum.reduceat(values, starts).tolist(),
        np.maximum.reduceat(values, starts).tolist(),
        np.add.reduceat(values, starts).tolist(),
        np.add.reduceat(as_floats * as_floats, starts).tolist(),
        np.add.reduceat(values < LOWEST_NS, starts, dtype=np.int64).tolist(),
        np.add.reduceat(values > HIGHEST_NS, starts, dtype=np.int64).tolist(),
        strict=True,
    )
    return [
        (key, Delta(buckets[first:last].tobytes(), counts[first:last].tobytes(), *exact))
        for key, first, last, *exact in columns
    ]


def _grouped(keys: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Both arrays in ascending order of key."""
    if (keys[1:] >= keys[:-1]).all():
        return keys, values
    order = np.argsort(keys)
    return keys[order], values[order]


def _count_buckets(
    indices: Ints, sizes: Ints
) -> tuple[NDArray[np.uint16], NDArray[np.unsignedinteger], NDArray[np.intp]]:
    """The non-empty buckets of consecutive groups of these sizes, their counts, and where a group begins."""
    group_bases = np.arange(sizes.size + 1, dtype=np.int64) * BUCKETS
    places = np.sort(indices + np.repeat(group_bases[:-1], sizes))
    runs = _run_starts(places)
    counts = np.diff(runs, append=places.size)
    places = places[runs]
    return (places % BUCKETS).astype("<u2"), _narrowest(counts), np.searchsorted(places, group_bases)


def _narrowest(counts: Ints) -> NDArray[np.unsignedinteger]:
    """The counts in the narrowest little-endian unsigned type that holds the largest."""
    return counts.astype(np.min_scalar_type(int(counts.max())).newbyteorder("<"))


def _run_starts(ordered: Ints) -> NDArray[np.intp]:
    """Where each run of equal elements begins."""
    changes = np.empty(ordered.size, np.bool_)
    changes[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=changes[1:])
    return np.flatnonzero(changes)


def _smaller(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _larger(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


class Histogram:
    """The sum of deltas and of other histograms; 196 kB each. Values are ns, accurate to 3 digits.

    Beside the counts stand the exact extremes and moments; what none was recorded for is None, never 0.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(BUCKETS, np.int64)
        self._cumulative: Ints | None = None
        self.count = 0
        self.min_ns: int | None = None
        self.max_ns: int | None = None
        self.sum_ns = 0
        self.sum_squares = 0.0
        self.clamped_low = 0
        self.clamped_high = 0

    @property
    def clamped(self) -> int:
        """Samples outside of the histogram's range, at either end."""
        return self.clamped_low + self.clamped_high

    @property
    def mean_ns(self) -> float | None:
        """The exact mean; None without samples."""
        return self.sum_ns / self.count if self.count else None

    @property
    def stddev_ns(self) -> float | None:
        """The standard deviation of the samples themselves (divided by n); None without samples."""
        if not self.count:
            return None
        mean = self.sum_ns / self.count
        return sqrt(max(0.0, self.sum_squares / self.count - mean * mean))

    def add(self, delta: Delta) -> None:
        """Add the samples of a delta."""
        indices, counts = delta.buckets()
        self._counts[indices] += counts.astype(np.int64)
        self._add_exact(delta)

    def merge(self, other: "Histogram") -> None:
        """Add the samples of another histogram, which stays as it is."""
        self._counts += other._counts
        self._add_exact(other)

    def _add_exact(self, other: "Delta | Histogram") -> None:
        self._cumulative = None
        self.count += other.count
        self.min_ns = _smaller(self.min_ns, other.min_ns)
        self.max_ns = _larger(self.max_ns, other.max_ns)
        self.sum_ns += other.sum_ns
        self.sum_squares += other.sum_squares
        self.clamped_low += other.clamped_low
        self.clamped_high += other.clamped_high

    def value_at(self, fraction: float) -> int | None:
        """The percentile at a fraction in 0 .. 1, by ceiling rank; None without samples."""
        return self.value_at_rank(ceiling_rank(fraction, self.count)) if self.count else None

    def value_at_rank(self, rank: int) -> int:
        """The value of the sample of this 1-based rank: the highest of its bucket, within the true extremes.

        Raises:
            ValueError: there is no such rank.
        """
        return self.span_at_rank(rank)[1]

    def span_at_rank(self, rank: int) -> tuple[int, int]:
        """The lowest and highest value that the sample of this 1-based rank can have had.

        Raises:
            ValueError: there is no such rank.
        """
        bucket = np.array([self.bucket_at_rank(rank)])
        low, high = np.concatenate((lowest_equivalent(bucket), highest_equivalent(bucket))).tolist()
        if self.min_ns is None or self.max_ns is None:
            return low, high
        return min(max(low, self.min_ns), self.max_ns), min(max(high, self.min_ns), self.max_ns)

    def bucket_at_rank(self, rank: int) -> int:
        """The bucket that holds the sample of this 1-based rank.

        Raises:
            ValueError: there is no such rank.
        """
        if not 1 <= rank <= self.count:
            raise ValueError(f"rank {rank} of {self.count} samples")
        return int(np.searchsorted(self._running_counts(), rank))

    def count_at_or_below(self, value_ns: int) -> int:
        """How many samples lie in the bucket of this value or in a lower one."""
        clamped = np.clip(np.array([value_ns]), LOWEST_NS, HIGHEST_NS)
        return int(self._running_counts()[bucket_indices(clamped)[0]])

    def _running_counts(self) -> Ints:
        if self._cumulative is None:
            self._cumulative = np.cumsum(self._counts)
        return self._cumulative

    def to_delta(self) -> Delta:
        """The same samples in the sparse form."""
        if not self.count:
            return _EMPTY
        indices = np.flatnonzero(self._counts)
        counts = self._counts[indices]
        return Delta(
            indices.astype("<u2").tobytes(),
            _narrowest(counts).tobytes(),
            self.count,
            self.min_ns,
            self.max_ns,
            self.sum_ns,
            self.sum_squares,
            self.clamped_low,
            self.clamped_high,
        )

    def to_hdr(self) -> HdrHistogram:
        """The same counts in the type of the hdrh library, for its iterators and its encoding."""
        hdr = HdrHistogram(LOWEST_NS, HIGHEST_NS, SIGNIFICANT_DIGITS)
        np.frombuffer(hdr.counts, np.uint64)[:] = self._counts
        # The library encodes up to the bucket of its max_value, and nothing at all when total_count is 0.
        hdr.total_count = self.count
        if self.min_ns is not None and self.max_ns is not None:
            hdr.min_value = min(max(self.min_ns, LOWEST_NS), HIGHEST_NS)
            hdr.max_value = min(max(self.max_ns, LOWEST_NS), HIGHEST_NS)
        return hdr

    def encode(self) -> str:
        """The counts as a compressed V2 histogram in base64 (`HISTFAAA...`), for any port of HdrHistogram."""
        hdr = self.to_hdr()
        blob: bytes = hdr.encode()
        # The library's histogram and its encoder hold each other: 200 kB that would wait for the garbage collector.
        hdr.encoder.histogram = None
        return blob.decode("ascii")
