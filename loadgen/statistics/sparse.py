"""Sparse histograms of one metric by two keys: the interval of the intended start and the second of the end.

`SparseHistograms` is the form on the wire and in the journal, one for each metric of a worker's delta. `Table` is many
of them opened as numpy columns, so that merging costs no Python call for each key.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.statistics.histogram import BUCKETS, Delta, Ints, fold_groups

_GROUP: Final = np.dtype(
    [
        ("interval", "<i4"),
        ("second", "<i4"),
        ("buckets", "<u2"),
        ("count", "<u4"),
        ("min_ns", "<i8"),
        ("max_ns", "<i8"),
        ("sum_ns", "<i8"),
        ("sum_squares", "<f8"),
        ("clamped_low", "<u4"),
        ("clamped_high", "<u4"),
    ]
)
"""One pair of keys: how many of `SparseHistograms.indices` are its own, and what `Delta` keeps beside the buckets."""


class SparseHistograms(msgspec.Struct, frozen=True, array_like=True):
    """Samples of one metric, in ns.

    groups: one packed record for each (interval, second) that has samples.
    indices, counts: the buckets of all groups one after the other, as in `Delta`.
    """

    metric: str
    groups: bytes
    indices: bytes
    counts: bytes


class Samples(msgspec.Struct, frozen=True):
    """Values of one metric (ns), each with its keys: three int64 arrays of equal length."""

    metric: str
    values: Ints
    intervals: Ints
    seconds: Ints


def sparse_histograms(metrics: list[Samples]) -> list[SparseHistograms]:
    """Count the samples of several metrics in one vectorised pass. A metric without samples is absent.

    The metrics must be distinct, and the product of their number and of the spans of both keys below 2**63.
    """
    metrics = [samples for samples in metrics if samples.values.size]
    if not metrics:
        return []
    intervals = np.concatenate([samples.intervals for samples in metrics])
    seconds = np.concatenate([samples.seconds for samples in metrics])
    first_interval, first_second = int(intervals.min()), int(seconds.min())
    interval_span = int(intervals.max()) - first_interval + 1
    second_span = int(seconds.max()) - first_second + 1
    metric = np.repeat(np.arange(len(metrics)), [samples.values.size for samples in metrics])
    keys = (metric * interval_span + (intervals - first_interval)) * second_span + (seconds - first_second)
    groups: list[list[tuple[int, int, Delta]]] = [[] for _ in metrics]
    for key, delta in fold_groups(np.concatenate([samples.values for samples in metrics]), keys):
        rest, second = divmod(key, second_span)
        number, interval = divmod(rest, interval_span)
        groups[number].append((interval + first_interval, second + first_second, delta))
    return [_pack(samples.metric, found) for samples, found in zip(metrics, groups, strict=True)]


def _pack(metric: str, groups: list[tuple[int, int, Delta]]) -> SparseHistograms:
    rows = [
        (
            interval,
            second,
            len(delta.indices) // 2,
            delta.count,
            delta.min_ns,
            delta.max_ns,
            delta.sum_ns,
            delta.sum_squares,
            delta.clamped_low,
            delta.clamped_high,
        )
        for interval, second, delta in groups
    ]
    return SparseHistograms(
        metric,
        np.array(rows, _GROUP).tobytes(),
        b"".join(delta.indices for _, _, delta in groups),
        b"".join(delta.counts for _, _, delta in groups),  # one fold gives all its counts the same width
    )


class Table:
    """Samples of one metric by their keys as columns; `intervals` and `seconds` have one entry a group."""

    def __init__(self, groups: "NDArray[np.void]", indices: Ints, counts: Ints) -> None:
        self._groups = groups
        self._indices = indices
        self._counts = counts

    @classmethod
    def open(cls, pieces: Sequence[SparseHistograms]) -> "Table":
        """The columns of several pieces one after the other; the same keys may come more than once."""
        return cls(
            np.frombuffer(b"".join(piece.groups for piece in pieces), _GROUP),
            np.frombuffer(b"".join(piece.indices for piece in pieces), "<u2").astype(np.int64),
            _counts(pieces),
        )

    @property
    def intervals(self) -> Ints:
        return self._groups["interval"].astype(np.int64)

    @property
    def seconds(self) -> Ints:
        return self._groups["second"].astype(np.int64)

    def where(self, chosen: "NDArray[np.bool_]") -> "Table":
        """The groups for which `chosen` (one entry a group) is true."""
        if chosen.all():
            return self
        entries = np.repeat(chosen, self._groups["buckets"])
        return Table(self._groups[chosen], self._indices[entries], self._counts[entries])

    def merged(self, keys: Ints) -> list[tuple[int, Delta]]:
        """The sum of the groups of each key (one entry a group), ascending by key."""
        if not keys.size:
            return []
        order = np.argsort(keys, kind="stable")
        groups, ordered = self._groups[order], keys[order]
        starts = _run_starts(ordered)
        indices, counts, edges = self._merged_buckets(keys, ordered[starts])
        columns = zip(
            ordered[starts].tolist(),
            edges[:-1].tolist(),
            edges[1:].tolist(),
            np.add.reduceat(groups["count"], starts, dtype=np.int64).tolist(),
            np.minimum.reduceat(groups["min_ns"], starts).tolist(),
            np.maximum.reduceat(groups["max_ns"], starts).tolist(),
            np.add.reduceat(groups["sum_ns"], starts).tolist(),
            np.add.reduceat(groups["sum_squares"], starts).tolist(),
            np.add.reduceat(groups["clamped_low"], starts, dtype=np.int64).tolist(),
            np.add.reduceat(groups["clamped_high"], starts, dtype=np.int64).tolist(),
            strict=True,
        )
        return [
            (key, Delta(indices[first:last].tobytes(), counts[first:last].tobytes(), *exact))
            for key, first, last, *exact in columns
        ]

    def _merged_buckets(self, keys: Ints, distinct: Ints) -> "tuple[NDArray[np.uint16], NDArray[np.uint64], Ints]":
        """Buckets and counts of each distinct key one after the other, and where those of a key begin."""
        number = np.searchsorted(distinct, keys)
        places = np.repeat(number * BUCKETS, self._groups["buckets"]) + self._indices
        order = np.argsort(places)
        places = places[order]
        starts = _run_starts(places)
        counts = np.add.reduceat(self._counts[order], starts).astype("<u8")
        places = places[starts]
        edges = np.searchsorted(places, np.arange(distinct.size + 1) * BUCKETS)
        return (places % BUCKETS).astype("<u2"), counts, edges


def _counts(pieces: Sequence[SparseHistograms]) -> Ints:
    """The counts of all pieces; those that stand next to each other in one width are read at once."""
    runs = groupby(pieces, lambda piece: 2 * len(piece.counts) // len(piece.indices))
    read = [np.frombuffer(b"".join(piece.counts for piece in run), f"<u{width}") for width, run in runs]
    return np.concatenate(read).astype(np.int64) if read else np.zeros(0, np.int64)


def _run_starts(ordered: Ints) -> "NDArray[np.intp]":
    """Where each run of equal elements begins; there is at least one element."""
    return np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1))
