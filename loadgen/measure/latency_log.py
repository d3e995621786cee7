"""`latency.hlog`: for each metric and second of completion one histogram, written as the run goes.

Latencies that come after their second was written are missing from it until `write_hlog` makes it again.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from loadgen.measure.delta import StageDelta
from loadgen.measure.journal import RunHeader, RunResumed, StageMeta, read_run, read_stage
from loadgen.measure.outcome import Grid
from loadgen.statistics.histogram import Delta, Histogram
from loadgen.statistics.sparse import SparseHistograms, Table
from loadgen.units import NS_PER_MS, NS_PER_SECOND

HLOG: Final = "latency.hlog"
_PATIENCE_NS: Final = 2 * NS_PER_SECOND
"""How long after its end a second is waited for while the run goes."""
_REBUILD_PATIENCE_NS: Final = 60 * NS_PER_SECOND
_REBUILD_BATCH: Final = 4096
_PIECES: Final = 16
"""So many deltas of one second and metric are summed into one, which bounds the memory."""


class LatencyLog:
    """Collects latencies by second and writes the seconds that are over. Memory: that of the seconds that are not.

    late: where samples go that come after their second was written, by default nowhere.
    incomplete: whether any did.
    """

    def __init__(
        self, file: TextIO, run: RunHeader, *, patience_ns: int = _PATIENCE_NS, late: "Seconds | None" = None
    ) -> None:
        self._file = file
        self._base_wall_seconds = run.base_wall_seconds
        self._base_ns = run.base_monotonic_ns
        self._patience_ns = patience_ns
        self._open = Seconds()
        self._late = late
        self._written_to_ns: int | None = None
        self.incomplete = False
        file.write(header(datetime.fromtimestamp(run.base_wall_seconds, UTC)))

    def add(self, grid: Grid, second: int, metric: str, delta: Delta) -> None:
        """Add the samples that completed in a second of a stage, counted from the start of its window."""
        start_ns = grid.window_ns + second * NS_PER_SECOND
        if self._written_to_ns is None or start_ns >= self._written_to_ns:
            self._open.add((start_ns, metric), delta)
            return
        self.incomplete = True
        if self._late is not None:
            self._late.add((start_ns, metric), delta)

    def write_until(self, now_ns: int) -> None:
        """Write the seconds that ended long enough before `now_ns`, in order of time."""
        over_ns = now_ns - self._patience_ns - NS_PER_SECOND
        if written := self._write(self._open, over_ns):
            self._written_to_ns = written + 1
            self._file.flush()

    def rebase(self, resumed: RunResumed) -> None:
        """What follows was measured when the run was gone on with, perhaps by another monotonic clock."""
        self._write(self._open)
        self._written_to_ns = None
        since_seconds = resumed.base_wall_seconds - self._base_wall_seconds
        self._base_ns = resumed.base_monotonic_ns - round(since_seconds * NS_PER_SECOND)

    def close(self) -> None:
        """Write everything that is left, late samples in lines at the end, and close the file."""
        self._write(self._open)
        if self._late is not None:
            self._write(self._late)
        self._file.close()

    def _write(self, seconds: "Seconds", until_ns: int | None = None) -> int | None:
        """Write seconds in order of time; returns the last one."""
        last: int | None = None
        for start_ns, metric in seconds.until(until_ns):
            self._file.write(self._line(start_ns, metric, seconds.take((start_ns, metric))))
            last = start_ns
        return last

    def _line(self, start_ns: int, metric: str, histogram: Histogram) -> str:
        # The second in which a stage begins may reach back before the run.
        since_base = (start_ns - self._base_ns) / NS_PER_SECOND
        start = max(since_base, 0.0)
        return line(metric, start, max(since_base + 1 - start, 0.0), histogram)


class Seconds:
    """Samples by start of the second (ns) and metric, in the sparse form."""

    def __init__(self) -> None:
        self._pieces: defaultdict[tuple[int, str], list[Delta]] = defaultdict(list)

    def add(self, key: tuple[int, str], delta: Delta) -> None:
        pieces = self._pieces[key]
        pieces.append(delta)
        if len(pieces) >= _PIECES:
            pieces[:] = [_sum(pieces).to_delta()]

    def until(self, until_ns: int | None) -> list[tuple[int, str]]:
        """The keys of the seconds that start at an instant or before, in order; all of them for None."""
        return sorted(key for key in self._pieces if until_ns is None or key[0] <= until_ns)

    def take(self, key: tuple[int, str]) -> Histogram:
        """The sum of the samples of a key, which are forgotten."""
        return _sum(self._pieces.pop(key))


def _sum(pieces: list[Delta]) -> Histogram:
    histogram = Histogram()
    for piece in pieces:
        histogram.add(piece)
    return histogram


def by_second(pieces: Iterable[SparseHistograms]) -> dict[str, list[tuple[int, Delta]]]:
    """The sums of keyed samples by metric and second of completion."""
    metrics: defaultdict[str, list[SparseHistograms]] = defaultdict(list)
    for piece in pieces:
        metrics[piece.metric].append(piece)
    tables = {metric: Table.open(found) for metric, found in metrics.items()}
    return {metric: table.merged(table.seconds) for metric, table in tables.items()}


def write_hlog(directory: Path) -> None:
    """Make `latency.hlog` of a run again from its journal; the old file stays until the new one is whole.

    Raises:
        NoJournal: the directory holds no run.
    """
    path = directory / HLOG
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="ascii") as file:
        log: LatencyLog | None = None
        for record in read_run(directory):
            if isinstance(record, RunHeader):
                log = LatencyLog(file, record, patience_ns=_REBUILD_PATIENCE_NS, late=Seconds())
            elif isinstance(record, RunResumed) and log is not None:
                log.rebase(record)
            elif isinstance(record, StageMeta) and log is not None:
                _add_stage(log, directory, record)
        if log is not None:
            log.close()
    os.replace(partial, path)


def _add_stage(log: LatencyLog, directory: Path, meta: StageMeta) -> None:
    pending: list[SparseHistograms] = []
    for record in read_stage(directory, meta.stage):
        if isinstance(record, StageDelta):
            pending.extend(record.histograms)
        if len(pending) >= _REBUILD_BATCH:
            _settle(log, meta.grid, pending)
            pending = []
    _settle(log, meta.grid, pending)


def _settle(log: LatencyLog, grid: Grid, pending: list[SparseHistograms]) -> None:
    latest = grid.window_ns
    for metric, sums in by_second(pending).items():
        for second, delta in sums:
            log.add(grid, second, metric, delta)
            latest = max(latest, grid.window_ns + second * NS_PER_SECOND)
    log.write_until(latest)


# Readers end the tag at the first comma and split lines at white space.
_TAG: Final = re.compile(r"[^\s,]+")


def header(started_at: datetime) -> str:
    """The lines before the first interval. Intervals are timed from `started_at`, an aware wall-clock time."""
    epoch = started_at.timestamp()
    date = started_at.astimezone(UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
    return (
        "#[Histogram log format version 1.3]\n"
        f"#[StartTime: {epoch:.3f} (seconds since epoch), {date}]\n"
        f"#[BaseTime: {epoch:.3f} (seconds since epoch)]\n"
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
    )


def line(tag: str, start_seconds: float, length_seconds: float, histogram: Histogram) -> str:
    """The samples of one metric in one interval, which starts `start_seconds` after the header's start.

    Readers expect intervals in ascending order of start. An empty histogram is a valid line, with maximum 0.

    Raises:
        ValueError: the tag is empty or holds a comma or white space, or the start is negative.
    """
    if not _TAG.fullmatch(tag):
        raise ValueError(f"a tag without commas and white space, not {tag!r}")
    if start_seconds < 0:
        raise ValueError(f"an interval cannot start {start_seconds} s before the log")
    maximum_ms = (histogram.max_ns or 0) / NS_PER_MS
    return f"Tag={tag},{start_seconds:.3f},{length_seconds:.3f},{maximum_ms:.3f},{histogram.encode()}\n"
