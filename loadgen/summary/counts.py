"""The first reading of a stage's journal: its books, its series by bin, its token sums. No latencies yet.

What is gathered is kept by interval or bin, so that the window can be chosen from it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.measure.delta import ARRIVALS, COLUMNS, MESSAGE_KINDS, Column, StageDelta, TokenTotals
from loadgen.measure.journal import Booking, Record, StageMeta, WorkerStats
from loadgen.measure.outcome import BINS_PER_INTERVAL, CANCELLED, LOST, UNFINISHED, Grid
from loadgen.statistics.histogram import Ints

T = TypeVar("T")
Floats = NDArray[np.float64]

_BATCH: Final = 4096
_TOKEN_SUMS: Final = TokenTotals.__struct_fields__[1:]


class Bins:
    """The series of a stage, dense, from the bin in which its arrivals begin."""

    def __init__(self, grid: Grid) -> None:
        self.first = grid.bin_of(grid.origin_ns)
        self.end = self.first
        """One beyond the last bin that holds anything."""
        self._columns: dict[str, Floats] = {name: np.zeros(1024) for name in COLUMNS}
        self._pending: defaultdict[str, list[Column]] = defaultdict(list)
        self._waiting = 0

    def add(self, column: Column) -> None:
        """Add a column; many are added up in one go."""
        self._pending[column.name].append(column)
        self._waiting += 1
        if self._waiting >= _BATCH:
            self.settle()

    def settle(self) -> None:
        """Add up what waits; what is read afterwards holds it."""
        for name, columns in self._pending.items():
            bins = b"".join(column.bins for column in columns)
            values = b"".join(column.values for column in columns)
            joined = Column(name, bins, values)
            self.add_at(name, joined.numbers(), joined.amounts())
        self._pending.clear()
        self._waiting = 0

    def add_at(self, name: str, bins: Ints, amounts: "Floats | float") -> None:
        """Add amounts to bins; what lies before the first bin goes into it."""
        if not bins.size:
            return
        self.end = max(self.end, int(bins.max()) + 1)
        places = np.maximum(bins - self.first, 0)
        dense = self._columns[name]
        if places.max() >= dense.size:
            dense = self._columns[name] = np.concatenate((dense, np.zeros(int(places.max()) + 1)))
        np.add.at(dense, places, amounts)

    def slice(self, name: str, first: int, end: int) -> Floats:
        """The values of the bins `first` to `end - 1`, zero where nothing came."""
        dense = np.zeros(max(0, end - first))
        held = self._columns[name][max(0, first - self.first) : max(0, end - self.first)]
        begin = max(0, self.first - first)
        dense[begin : begin + held.size] = held
        return dense

    def rows(self, name: str, first: int, bins_each: int, count: int) -> Floats:
        """Sums over `count` rows of so many bins, from bin `first` on."""
        sums: Floats = self.slice(name, first, first + count * bins_each).reshape(count, -1).sum(axis=1)
        return sums


class ProcessCost(msgspec.Struct):
    """A worker process as its stats in one file told it, about one a second."""

    last: WorkerStats
    cpu: float | None = None
    """Its share of one core between two stats, at its busiest: over a whole stage the idle drain would hide that it
    could not keep up. None where there are no two."""

    def add(self, stats: WorkerStats) -> None:
        """Take in the next stats."""
        wall_ns = stats.wall_ns - self.last.wall_ns
        if wall_ns > 0:
            self.cpu = max(self.cpu or 0.0, (stats.cpu_ns - self.last.cpu_ns) / wall_ns)
        self.last = stats


class StageCounts:
    """Everything but latencies that the journal tells of one stage."""

    def __init__(self, meta: StageMeta, records: Iterable[Record]) -> None:
        self.bins = Bins(meta.grid)
        self.processes: dict[int, ProcessCost] = {}
        """By pid."""
        self.messages: dict[str, str] = {}
        """By kind of failure, the words of the first that came with any."""
        self.retries = 0
        self._accounts: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.rows_again = 0
        self._labels: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._judged: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._sends: Counter[tuple[int, int, int]] = Counter()
        self._excused: Counter[int] = Counter()
        self._tokens: defaultdict[int, Ints] = defaultdict(lambda: np.zeros(len(_TOKEN_SUMS), np.int64))
        for record in records:
            if isinstance(record, StageDelta):
                self._add_delta(record)
            elif isinstance(record, Booking):
                self._add_booking(record)
            elif isinstance(record, WorkerStats):
                self.processes.setdefault(record.pid, ProcessCost(record)).add(record)
        self.bins.settle()

    def _add_delta(self, delta: StageDelta) -> None:
        for interval, account, requests in delta.accounts:
            self._accounts[interval][account] += requests
        for interval, label, requests in delta.labels:
            self._labels[interval][label] += requests
        for interval, right, requests in delta.judged:
            self._judged[interval][right] += requests
        self.retries += delta.retries
        self.rows_again += delta.rows_again
        for interval, admitted_in, sent_in, requests in delta.sent:
            self._sends[interval, admitted_in, sent_in] += requests
        for interval, requests in delta.excused:
            self._excused[interval] += requests
        for totals in delta.tokens:
            self._tokens[totals.interval] += msgspec.structs.astuple(totals)[1:]
        for column in delta.series:
            self.bins.add(column)
        for kind, message in delta.messages.items():
            if len(self.messages) < MESSAGE_KINDS:
                self.messages.setdefault(kind, message)

    def _add_booking(self, booking: Booking) -> None:
        """Only what is unfinished came to stay; of its start no more than the interval is known: its middle will do."""
        for interval in booking.intervals:
            self._accounts[interval][booking.account] += 1
            self._excused[interval] += booking.queued
        if booking.account == UNFINISHED:
            middle = np.array(booking.intervals, np.int64) * BINS_PER_INTERVAL + BINS_PER_INTERVAL // 2
            self.bins.add_at(ARRIVALS, middle, 1.0)

    @property
    def worker_cpu(self) -> dict[int, float]:
        """By worker, its share of one core at its busiest, where known."""
        return {cost.last.worker: cost.cpu for cost in self.processes.values() if cost.cpu is not None}

    @property
    def intended(self) -> dict[int, int]:
        """Requests by interval of their intended start, where there are any."""
        return {interval: accounts.total() for interval, accounts in self._accounts.items()}

    def accounts(self, chosen: Callable[[int], bool] = lambda interval: True) -> Counter[str]:
        """The accounts of the requests intended in the chosen intervals."""
        return _sum(self._accounts, chosen)

    def labels(self, chosen: Callable[[int], bool]) -> Counter[str]:
        """The labels of the completed requests intended in the chosen intervals, where answers are labels."""
        return _sum(self._labels, chosen)

    def judged(self, chosen: Callable[[int], bool]) -> Counter[int]:
        """The completed requests intended in the chosen intervals whose right label is known: under 1 those that had
        it, under 0 the others."""
        return _sum(self._judged, chosen)

    def sent(self, first: int, end: int) -> int:
        """Requests intended from interval `first` on that were sent before interval `end`."""
        return sum(n for (at, _, sent_in), n in self._sends.items() if at >= first and sent_in < end)

    def excused(self, first: int, end: int) -> int:
        """Requests intended from interval `first` on that were not sent before `end`, not by the generator's fault."""
        queued = sum(n for (at, admitted_in, _), n in self._sends.items() if at >= first and admitted_in >= end)
        return queued + sum(n for at, n in self._excused.items() if at >= first)

    def answerable(self, chosen: Callable[[int], bool] = lambda interval: True) -> dict[int, int]:
        """Requests that the target had to answer, by the interval of their intended start.

        What a worker of ours lost and what a person cancelled is left out.
        """
        return {
            interval: accounts.total() - accounts[LOST] - accounts[CANCELLED]
            for interval, accounts in self._accounts.items()
            if chosen(interval)
        }

    def token_totals(self, chosen: Callable[[int], bool] = lambda interval: True) -> TokenTotals:
        """The sums over the completed requests intended in the chosen intervals; their interval stands as 0."""
        sums = np.zeros(len(_TOKEN_SUMS), np.int64)
        for interval, row in self._tokens.items():
            if chosen(interval):
                sums += row
        return TokenTotals(0, *sums.tolist())


def _sum(counts: Mapping[int, Counter[T]], chosen: Callable[[int], bool]) -> Counter[T]:
    total: Counter[T] = Counter()
    for interval, own in counts.items():
        if chosen(interval):
            total.update(own)
    return total
