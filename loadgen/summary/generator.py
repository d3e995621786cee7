"""The generator's own error and cost over a run, from what its workers told."""

from collections.abc import Sequence

from loadgen.measure.journal import WorkerDeath, WorkerOpened, WorkerStats
from loadgen.measure.run_journal import RunJournal
from loadgen.statistics.histogram import Histogram
from loadgen.summary.latencies import latency_of
from loadgen.summary.stage import Measured
from loadgen.summary.summary import Generator, TargetStart, WorkerReport
from loadgen.units import NS_PER_SECOND


def generator_of(run: RunJournal, measured: Sequence[Measured]) -> Generator:
    """The report on the generator. In virtual time its workers cost nothing that could be told."""
    stats: dict[int, WorkerStats] = {}
    for stage in measured:
        stats.update(stage.stats)
    stats.update(run.stats)
    known: list[WorkerStats | WorkerOpened | WorkerDeath] = [*stats.values(), *run.opened, *run.deaths]
    lateness, loop_lag = Histogram(), Histogram()
    for stage in measured:
        if stage.lateness is not None and stage.finding.judged:
            lateness.merge(stage.lateness)
        if stage.loop_lag is not None:
            loop_lag.merge(stage.loop_lag)
    return Generator(
        workers=[
            _worker(worker, list(stats.values()), run.opened, run.deaths)
            for worker in sorted({one.worker for one in known if not run.header.simulated})
        ],
        parent_cpu=None if run.end is None or run.header.simulated else run.end.parent_cpu,
        credits_exhausted_seconds=None if run.end is None else run.end.credits_exhausted_ns / NS_PER_SECOND,
        lateness=latency_of(lateness) if lateness.count else None,
        loop_lag=latency_of(loop_lag) if loop_lag.count else None,
    )


def _worker(
    worker: int, stats: list[WorkerStats], opened: list[WorkerOpened], deaths: list[WorkerDeath]
) -> WorkerReport:
    """One worker over all of its processes."""
    processes = [one for one in stats if one.worker == worker]
    starts = [one for one in opened if one.worker == worker]
    died = [death for death in deaths if death.worker == worker]
    unmeasured: list[WorkerOpened | WorkerDeath] = [*reversed(starts), *reversed(died)]
    dead = {death.pid for death in died}
    # A process that died is followed by another, unless no restart was left; the last has the longest word.
    alive = [one for one in processes if one.pid not in dead]
    last = alive[-1] if alive else processes[-1] if processes else None
    wall_ns = sum(one.wall_ns for one in processes)
    return WorkerReport(
        worker=worker,
        pid=last.pid if last is not None else next((one.pid for one in unmeasured if one.pid), None),
        cpu=sum(one.cpu_ns for one in processes) / wall_ns if wall_ns else 0.0,
        rss_bytes=max((one.rss_bytes for one in processes), default=0),
        # A stage with another target, or a run that is gone on with, has other processes, and none of them died.
        restarts=min(len({one.pid for one in processes} | {one.pid for one in starts} | dead) - 1, len(died)),
        deaths=[death.reason for death in died],
        gc_seconds=sum(one.gc_ns for one in processes) / NS_PER_SECOND,
        gc_max_seconds=max((one.gc_max_ns for one in processes), default=0) / NS_PER_SECOND,
        target=TargetStart(starts[-1].start_ns / NS_PER_SECOND, starts[-1].memory_bytes) if starts else None,
    )
