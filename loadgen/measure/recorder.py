"""The parent's side of measurement: all goes into the journal at once, and a little is kept for the live view."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from msgspec.structs import replace

from loadgen.clock import Clock
from loadgen.errors import RunFailure
from loadgen.measure.delta import COMPLETIONS, OUTPUT_TOKENS, SENT, StageDelta
from loadgen.measure.journal import (
    Booking,
    JournalWriter,
    RunEnd,
    RunHeader,
    RunResumed,
    StageEnd,
    StageMeta,
    WorkerDeath,
    WorkerOpened,
    WorkerStats,
)
from loadgen.measure.latency_log import HLOG, LatencyLog, by_second, write_hlog
from loadgen.measure.outcome import UNFINISHED, Books
from loadgen.measure.running import Live, RunningStage
from loadgen.statistics.histogram import Ints
from loadgen.statistics.sparse import Samples, SparseHistograms, sparse_histograms
from loadgen.units import NS_PER_SECOND

RECORDS: Final = "requests.jsonl"
_STATS_EVERY_NS: Final = NS_PER_SECOND
"""How often the cost of a worker goes into the journal."""
_SETTLE_EVERY_NS: Final = NS_PER_SECOND
_SETTLE_AT: Final = 4096
"""How many keyed histograms wait to be summed at most; summing many at once costs little more than one."""


class Recorder:
    """Records a run in `directory`. Made for one task; nothing in it waits, and each call takes well under 1 ms.

    Memory grows with the stages only, not with requests or time. The run that it writes is whole after every call.

    hlog: write `latency.hlog` as the run goes.
    records: write the lines that come with the deltas to `requests.jsonl`.
    resumed: the run has a journal already and goes on; its latency log is then made from it at the end.

    Raises RunFailure from any method where the disk does not take it.
    """

    def __init__(
        self,
        directory: Path,
        header: RunHeader,
        *,
        hlog: bool,
        records: bool,
        clock: Clock,
        resumed: RunResumed | None = None,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._header = header
        self._journal = JournalWriter(directory, resumed=resumed is not None)
        self._journal.append(header if resumed is None else resumed)
        self._stages: dict[int, RunningStage] = {}
        self._stats: dict[int, WorkerStats] = {}
        self._stats_written_ns: dict[int, int] = {}
        self._warnings: list[str] = list(header.warnings)
        self._pending: dict[int, list[SparseHistograms]] = {}
        self._settled_ns = clock.now_ns()
        with self._writing():
            self._make_log = hlog and resumed is not None
            log = (directory / HLOG).open("w", encoding="ascii") if hlog and resumed is None else None
            self._log = None if log is None else LatencyLog(log, header)
            self._records: BinaryIO | None = (directory / RECORDS).open("ab") if records else None

    # --- what happens -------------------------------------------------------------------------------------------------

    def stage_started(self, meta: StageMeta) -> None:
        """A stage is about to begin."""
        self._journal.append(meta)
        for running in self._stages.values():
            if running.ended:
                running.release()
        self._stages[meta.stage] = RunningStage(meta, self._clock.now_ns())
        self._write_stats(meta.stage)

    def apply(self, delta: StageDelta, worker: int, now_ns: int) -> None:
        """Take in what a worker measured of a stage that has started."""
        if delta.records:
            if self._records is not None:
                with self._writing():
                    self._records.write(delta.records)
                    self._records.flush()
            delta = replace(delta, records=b"")
        self._journal.append(delta, delta.stage)
        self._stages[delta.stage].count(delta, now_ns)
        self._pending.setdefault(delta.stage, []).extend(delta.histograms)
        waiting = sum(len(pieces) for pieces in self._pending.values())
        if waiting >= _SETTLE_AT or now_ns - self._settled_ns >= _SETTLE_EVERY_NS:
            self._settle(now_ns)

    def book(
        self,
        stage: int,
        account: str,
        intended_ns: Sequence[int],
        *,
        at_ns: int | None = None,
        queued: bool = True,
    ) -> None:
        """Put requests into an account that no worker decided: `lost`, `dropped`, `unfinished`.

        intended_ns: their intended starts.
        at_ns: the instant of the decision, by default now; what is unfinished has an age by it.
        queued: they waited for a slot; False where the generator is to blame that they were not sent.
        """
        if not intended_ns:
            return
        running = self._stages[stage]
        grid = running.meta.grid
        instants = np.array(intended_ns, np.int64)
        intervals = (instants - grid.window_ns) // grid.interval_ns
        bounds: list[SparseHistograms] = []
        if account == UNFINISHED:
            now_ns = self._clock.now_ns() if at_ns is None else at_ns
            bounds = self._bounds(running.meta, instants, intervals, now_ns)
        self._journal.append(Booking(stage, account, intervals.tolist(), bounds, queued), stage)
        running.accounts[account] += len(intended_ns)

    def _bounds(self, meta: StageMeta, instants: Ints, intervals: Ints, now_ns: int) -> list[SparseHistograms]:
        seconds = np.full_like(instants, (now_ns - meta.grid.window_ns) // NS_PER_SECOND)
        streamed = self._header.of_stage(meta).streamed
        names = ("response_at_least", "ttft_at_least") if streamed else ("response_at_least",)
        return sparse_histograms([Samples(name, now_ns - instants, intervals, seconds) for name in names])

    def worker(self, stats: WorkerStats) -> None:
        """Note what a worker costs."""
        self._stats[stats.worker] = stats
        now_ns = self._clock.now_ns()
        if now_ns - self._stats_written_ns.get(stats.worker, now_ns - _STATS_EVERY_NS) < _STATS_EVERY_NS:
            return
        running = self._current(now_ns)
        if running is not None and not running.ended:
            self._journal.append(stats, running.meta.stage)
            self._stats_written_ns[stats.worker] = now_ns

    def worker_opened(self, record: WorkerOpened) -> None:
        """Note that a worker has started a target of its own."""
        self._journal.append(record)
        self._warnings += [warning for warning in record.warnings if warning not in self._warnings]

    def worker_died(self, death: WorkerDeath) -> None:
        """Note that a worker process died."""
        self._journal.append(death)
        self._warnings.append(f"Worker {death.worker} (pid {death.pid}) died: {death.reason}")

    def stage_ended(self, end: StageEnd) -> None:
        """A stage has drained and all its deltas have been applied."""
        self._write_stats(end.stage)
        self._settle(self._clock.now_ns())
        self._journal.append(end)
        self._journal.close_stage(end.stage)
        self._stages[end.stage].end(end.intended)

    def run_ended(self, end: RunEnd) -> None:
        """The run is over, one way or another."""
        for stats in self._stats.values():
            self._journal.append(stats)
        self._journal.append(end)

    def close(self) -> None:
        """Finish and close the files. The journal alone could rebuild all of them but `requests.jsonl`."""
        self._settle(self._clock.now_ns())
        self._journal.close()
        with self._writing():
            if self._records is not None:
                self._records.close()
            if self._log is not None:
                self._log.close()
            if self._make_log or (self._log is not None and self._log.incomplete):
                write_hlog(self._directory)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunFailure(f"cannot write in {self._directory}: {error.strerror}") from None

    def _write_stats(self, stage: int) -> None:
        for stats in self._stats.values():
            self._journal.append(stats, stage)

    def _settle(self, now_ns: int) -> None:
        """Sum the histograms that came since the last time, for the live view and the log."""
        pending, self._pending = self._pending, {}
        self._settled_ns = now_ns
        for stage, pieces in pending.items():
            running = self._stages[stage]
            for metric, sums in by_second(pieces).items():
                for second, delta in sums:
                    running.add(metric, delta)
                    if self._log is not None:
                        self._log.add(running.meta.grid, second, metric, delta)
        if self._log is not None:
            with self._writing():
                self._log.write_until(now_ns)

    # --- what is known ------------------------------------------------------------------------------------------------

    def books(self, stage: int) -> Books:
        """The books of a stage so far; `intended` is the sum of the accounts until the stage has ended."""
        return self._stages[stage].books

    def error_rate(self, stage: int) -> tuple[int, int]:
        """How many requests of a stage have completed or failed, and how many of these failed."""
        books = self._stages[stage].books
        return books.completed + books.failures, books.failures

    def live(self) -> Live | None:
        """The stage that is running as far as it is known; None before the first. Takes a few ms at most."""
        now_ns = self._clock.now_ns()
        running = self._current(now_ns)
        if running is None:
            return None
        self._settle(now_ns)
        meta, books = running.meta, running.books
        in_flight = sum(stats.in_flight for stats in self._stats.values())
        if not running.ended:
            queued = sum(stats.queued for stats in self._stats.values())
            books = replace(books, intended=books.ended + in_flight + queued)
        elapsed_ns = now_ns - meta.grid.origin_ns
        over = meta.duration_ns is not None and elapsed_ns >= meta.duration_ns
        return Live(
            stage=meta.name,
            stage_number=meta.stage + 1,
            stages=max(meta.stages, meta.stage + 1) if meta.stages else 0,
            elapsed_seconds=elapsed_ns / NS_PER_SECOND,
            duration_seconds=None if meta.duration_ns is None else meta.duration_ns / NS_PER_SECOND,
            requests=meta.requests,
            offered_rate=meta.offered_rate,
            concurrency=meta.concurrency,
            draining=over or (meta.requests is not None and books.intended >= meta.requests),
            books=books,
            in_flight=in_flight,
            achieved_rate=running.rate(SENT, now_ns),
            completed_rate=running.rate(COMPLETIONS, now_ns),
            output_token_rate=running.rate(OUTPUT_TOKENS, now_ns),
            lateness_p99=running.lateness_p99(),
            percentiles=running.percentiles(),
            warnings=list(self._warnings),
            purpose=meta.purpose,
        )

    def _current(self, now_ns: int) -> RunningStage | None:
        """The last stage whose arrivals have begun; before there is one, the first."""
        begun = [running for running in self._stages.values() if running.meta.grid.origin_ns <= now_ns]
        return begun[-1] if begun else next(iter(self._stages.values()), None)
