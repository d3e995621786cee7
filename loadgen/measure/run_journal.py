"""The run's own file of the journal, read as a whole: what was run, by whom, and how it ended."""

from pathlib import Path

import msgspec

from loadgen.measure.journal import (
    NoJournal,
    RunEnd,
    RunHeader,
    RunResumed,
    StageEnd,
    StageMeta,
    WorkerDeath,
    WorkerOpened,
    WorkerStats,
    read_run,
)
from loadgen.profile.slo import Slo, slo_of


class RunJournal(msgspec.Struct):
    """What the run's own file of the journal holds."""

    header: RunHeader
    metas: list[StageMeta] = []
    ends: dict[int, StageEnd] = {}
    opened: list[WorkerOpened] = []
    deaths: list[WorkerDeath] = []
    stats: dict[int, WorkerStats] = {}
    """The last of each process, by pid."""
    end: RunEnd | None = None

    def slo(self, meta: StageMeta) -> Slo | None:
        """As the profile of a stage promises it."""
        promised = self.header.of_stage(meta).profile.get("slo")
        return None if promised is None else slo_of(promised)


def read_overview(directory: Path) -> RunJournal:
    """The run's own file of the journal.

    Raises:
        NoJournal: the directory holds no run.
    """
    records = read_run(directory)
    header = next(records, None)
    if not isinstance(header, RunHeader):
        raise NoJournal(f"{directory} holds no run: its journal is empty")
    run = RunJournal(header)
    for record in records:
        if isinstance(record, RunResumed):
            run.end = None
        elif isinstance(record, StageMeta):
            run.metas.append(record)
        elif isinstance(record, StageEnd):
            run.ends[record.stage] = record
        elif isinstance(record, WorkerOpened):
            run.opened.append(record)
        elif isinstance(record, WorkerDeath):
            run.deaths.append(record)
        elif isinstance(record, WorkerStats):
            run.stats[record.pid] = record
        elif isinstance(record, RunEnd):
            run.end = record
    return run
