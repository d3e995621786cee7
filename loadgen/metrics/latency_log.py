"""`latency.hlog`: for each metric and second of completion one histogram, written as the run goes.

Latencies that come after their second was written go into lines at the end of the file; `write_hlog` makes a file in
which they stand where they belong.
"""

import os
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from loadgen.metrics.delta import StageDelta
from loadgen.metrics.histogram import Delta, Histogram
from loadgen.metrics.hlog import header, line
from loadgen.metrics.journal import RunHeader, StageMeta, read_run, read_stage
from loadgen.metrics.keyed import Keyed, Table
from loadgen.metrics.outcome import Grid
from loadgen.units import NS_PER_SECOND

HLOG: Final = "latency.hlog"
_PATIENCE_NS: Final = 2 * NS_PER_SECOND
"""How long after its end a second is waited for while the run goes."""
_REBUILD_PATIENCE_NS: Final = 60 * NS_PER_SECOND
_REBUILD_BATCH: Final = 256


class LatencyLog:
    """Collects latencies by second and writes the seconds that are over. Memory: those of the seconds that are not.

    late: whether lines at the end of the file, or about to be, belong further up.
    """

    def __init__(self, file: TextIO, run: RunHeader, patience_ns: int = _PATIENCE_NS) -> None:
        self._file = file
        self._base_ns = run.base_monotonic_ns
        self._patience_ns = patience_ns
        self._open: defaultdict[tuple[int, str], list[Delta]] = defaultdict(list)
        self._late: defaultdict[tuple[int, str], list[Delta]] = defaultdict(list)
        self._written_to_ns: int | None = None
        file.write(header(datetime.fromtimestamp(run.base_wall_seconds, UTC)))

    @property
    def late(self) -> bool:
        return bool(self._late)

    def add(self, grid: Grid, second: int, metric: str, delta: Delta) -> None:
        """Add the samples that completed in a second of a stage, counted from the start of its window."""
        start_ns = grid.window_ns + second * NS_PER_SECOND
        written = self._written_to_ns is not None and start_ns < self._written_to_ns
        (self._late if written else self._open)[start_ns, metric].append(delta)

    def write_until(self, now_ns: int) -> None:
        """Write the seconds that ended long enough before `now_ns`, in order of time."""
        over_ns = now_ns - self._patience_ns - NS_PER_SECOND
        over = sorted(key for key in self._open if key[0] <= over_ns)
        for start_ns, metric in over:
            self._file.write(self._line(start_ns, metric, self._open.pop((start_ns, metric))))
        if over:
            self._written_to_ns = over[-1][0] + 1
            self._file.flush()

    def close(self) -> None:
        """Write everything that is left and close the file."""
        for waiting in (self._open, self._late):
            for start_ns, metric in sorted(waiting):
                self._file.write(self._line(start_ns, metric, waiting[start_ns, metric]))
        self._file.close()

    def _line(self, start_ns: int, metric: str, deltas: list[Delta]) -> str:
        histogram = Histogram()
        for delta in deltas:
            histogram.add(delta)
        # The second in which a stage begins may reach back before the run.
        since_base = (start_ns - self._base_ns) / NS_PER_SECOND
        start = max(since_base, 0.0)
        return line(metric, start, max(since_base + 1 - start, 0.0), histogram)


def by_second(pieces: Iterable[Keyed]) -> dict[str, list[tuple[int, Delta]]]:
    """The sums of keyed samples by metric and second of completion."""
    metrics: defaultdict[str, list[Keyed]] = defaultdict(list)
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
                log = LatencyLog(file, record, _REBUILD_PATIENCE_NS)
            elif isinstance(record, StageMeta) and log is not None:
                _add_stage(log, directory, record)
        if log is not None:
            log.close()
    os.replace(partial, path)


def _add_stage(log: LatencyLog, directory: Path, meta: StageMeta) -> None:
    pending: list[Keyed] = []
    for record in read_stage(directory, meta.stage):
        if isinstance(record, StageDelta):
            pending.extend(record.histograms)
        if len(pending) >= _REBUILD_BATCH:
            _settle(log, meta.grid, pending)
            pending = []
    _settle(log, meta.grid, pending)


def _settle(log: LatencyLog, grid: Grid, pending: list[Keyed]) -> None:
    latest = grid.window_ns
    for metric, sums in by_second(pending).items():
        for second, delta in sums:
            log.add(grid, second, metric, delta)
            latest = max(latest, grid.window_ns + second * NS_PER_SECOND)
    log.write_until(latest)
