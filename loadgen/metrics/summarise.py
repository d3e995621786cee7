"""From the journal of a run to its summary; the same path for a run that just ended, one of last year, a killed one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from loadgen.metrics.delta import COMPLETIONS, GOOD, ITEMS, OUTPUT_TOKENS, PROMPT_TOKENS, TokenTotals
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.journal import (
    NoJournal,
    Record,
    RunEnd,
    RunHeader,
    StageEnd,
    StageMeta,
    WorkerDeath,
    WorkerOpened,
    WorkerStats,
    read_run,
    read_stage,
)
from loadgen.metrics.latencies import LOOP_LAG, StageLatencies, latency_of
from loadgen.metrics.running import books_of
from loadgen.metrics.slo import Slo, check
from loadgen.metrics.summary import (
    Generator,
    Items,
    Stage,
    Stationary,
    Summary,
    TargetStart,
    Throughput,
    Tokens,
    Window,
    WorkerReport,
)
from loadgen.metrics.survey import Survey
from loadgen.metrics.timeline import series_of
from loadgen.metrics.verdict import Finding, judge
from loadgen.metrics.window import Span, choose_window, concurrency, stationarity
from loadgen.units import NS_PER_SECOND, Duration, parse_duration

KILLED: Final = "killed"
"""How a stage ended that has no end in the journal."""


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

    @property
    def slo(self) -> Slo | None:
        """As the profile promises it."""
        promised = self.header.profile.get("slo")
        return None if promised is None else msgspec.convert(promised, Slo, dec_hook=_duration)


class Measured(msgspec.Struct, frozen=True):
    """A stage's summary with what only the verdict and the generator's report need."""

    finding: Finding
    service_seconds: float | None
    lateness: Histogram | None
    loop_lag: Histogram | None
    stats: dict[int, WorkerStats]


def summarise(directory: Path) -> Summary:
    """The summary of the run in `directory`, from its journal alone.

    A run that was killed is summarised as far as it came; its verdict says so.

    Raises:
        NoJournal: the directory holds no run.
    """
    run = read_overview(directory)
    measured: list[Measured] = []
    lowest: float | None = None
    for meta in run.metas:
        stage = measure(directory, run, meta, lowest)
        lowest = _lower(lowest, stage.service_seconds)
        measured.append(stage)
    findings = [stage.finding for stage in measured]
    stages = [finding.stage for finding in findings]
    slo = run.slo
    end = run.end
    return Summary(
        name=run.header.name,
        started_at=run.header.started_at,
        verdict=judge(
            findings,
            end,
            [f"Worker {death.worker} (pid {death.pid}) died: {death.reason}." for death in run.deaths],
            _told(run),
            None if slo is None else check(slo, stages),
        ),
        stages=stages,
        generator=_generator(run, measured),
        environment=_environment(run),
        profile=run.header.profile,
        interrupted=end is not None and end.interrupted,
        failure=None if end is None else end.failure,
    )


def summarise_stage(directory: Path, number: int) -> Stage:
    """The summary of one stage, at the cost of reading that stage only.

    Raises:
        NoJournal: the directory holds no run, or its run no such stage.
    """
    run = read_overview(directory)
    for meta in run.metas:
        if meta.stage == number:
            return measure(directory, run, meta, None).finding.stage
    raise NoJournal(f"{directory}: the run has no stage {number}")


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
        if isinstance(record, StageMeta):
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


def measure(directory: Path, run: RunJournal, meta: StageMeta, service_seconds: float | None) -> Measured:
    """One stage. `service_seconds`: the lowest mean service time of other stages, which tells how long is long."""

    def read() -> Iterator[Record]:
        return read_stage(directory, meta.stage)

    survey = Survey(meta, read())
    end = run.ends.get(meta.stage)
    # Killed: the arrivals reached at least to the last thing that happened.
    stop_ns = end.stop_ns if end is not None else meta.grid.window_ns + survey.bins.end * meta.grid.bin_ns
    span = choose_window(meta, stop_ns, survey.bins)
    latencies = StageLatencies(read, span, ttft_bounded=run.header.streamed)
    latency_seconds, loop_lag = latencies.summarised()
    service = _lower(service_seconds, latencies.mean_seconds("service"))
    steady = stationarity(span, survey.bins, service)
    stage = Stage(
        name=meta.name,
        kind=meta.kind,
        books=books_of(survey.accounts(), None if end is None else end.intended),
        window=_window(span, survey),
        throughput=_throughput(span, survey, run),
        concurrency=concurrency(span, survey.bins),
        latency_seconds=latency_seconds,
        tokens=_tokens(survey.token_totals(span.holds)),
        stationary=Stationary(str(steady.stability), steady.reason),
        short=survey.token_totals().short,
        ended_by=KILLED if end is None else end.ended_by,
        offered_rate=meta.offered_rate,
        intended_concurrency=meta.concurrency,
        failure_messages=survey.messages,
        items=_items(run.header, survey.token_totals(span.holds), latencies.mean_seconds("service")),
        labels=dict(sorted(survey.labels(span.holds).items())),
        retries=survey.retries,
        series=series_of(meta.grid, survey, read()),
        curves=latencies.curves(),
    )
    finding = Finding(
        stage=stage,
        loop_lag=loop_lag,
        excused=survey.excused(span.first_interval, span.end_interval),
        worker_cpu={cost.last.worker: cost.cpu for cost in survey.processes.values() if cost.cpu is not None},
        parent_cpu=_parent_cpu(run, end),
        ended=end is not None,
        judged=meta.judged,
        unsettled=span.unsettled,
        more_than_prompts=run.header.more_than_prompts,
    )
    stats = {pid: cost.last for pid, cost in survey.processes.items()}
    merged = latencies.merged
    mean_service = latencies.mean_seconds("service")
    return Measured(finding, mean_service, merged.get("lateness"), merged.get(LOOP_LAG), stats)


def _told(run: RunJournal) -> list[str]:
    """The warnings of the check, of the targets that workers started, and of the run's end; each once."""
    opened = [warning for record in run.opened for warning in record.warnings]
    return list(dict.fromkeys([*run.header.warnings, *opened, *(run.end.warnings if run.end is not None else ())]))


def _environment(run: RunJournal) -> dict[str, Any]:
    """As the run began, completed by what the first target that a worker started told of itself."""
    if not run.opened:
        return run.header.environment
    facts = run.opened[0].facts.items()
    told = {name: value for name, value in facts if name != "warnings" and value not in (None, "", [], {})}
    return {**run.header.environment, "target": {**run.header.environment.get("target", {}), **told}}


# --- the parts of a stage ---------------------------------------------------------------------------------------------


def _window(span: Span, survey: Survey) -> Window:
    grid = span.grid
    return Window(
        start=(span.start_ns - grid.origin_ns) / NS_PER_SECOND,
        seconds=span.seconds,
        books=books_of(survey.accounts(span.holds)),
        sent=survey.sent(span.first_interval, span.end_interval),
    )


def _throughput(span: Span, survey: Survey, run: RunJournal) -> Throughput:
    bins, seconds = survey.bins, run.header.sound_seconds
    requests = span.rate(bins, COMPLETIONS)
    items = span.rate(bins, ITEMS) if seconds is None else requests * seconds
    return Throughput(
        requests=requests,
        output_tokens=span.rate(bins, OUTPUT_TOKENS),
        prompt_tokens=span.rate(bins, PROMPT_TOKENS),
        goodput=span.rate(bins, GOOD) if run.slo is not None else None,
        items=None if run.header.items is None else items,
    )


def _items(header: RunHeader, totals: TokenTotals, service_seconds: float | None) -> Items | None:
    if header.items is None:
        return None
    if header.sound_seconds is not None:
        factor = None if service_seconds is None else service_seconds / header.sound_seconds
        return Items(what=header.items, mean=header.sound_seconds, real_time_factor=factor)
    return Items(
        what=header.items,
        mean=_mean(totals.items, totals.items_n),
        dimensions=_mean(totals.dimensions, totals.dimensions_n),
    )


def _tokens(totals: TokenTotals) -> Tokens:
    sources = {"chunks": totals.by_chunks, "token_ids": totals.by_token_ids, "usage": totals.by_usage}
    return Tokens(
        counted_by=next((source for source, requests in sources.items() if requests), "none"),
        prompt_asked=_mean(totals.prompt_asked, totals.prompt_asked_n),
        prompt=_mean(totals.prompt, totals.prompt_n),
        output_asked=_mean(totals.output_asked, totals.output_asked_n),
        output=_mean(totals.output, totals.output_n),
        per_chunk=_mean(totals.chunked_output, totals.chunks),
        events_per_read=_mean(totals.events, totals.reads) if totals.events else None,
    )


def _parent_cpu(run: RunJournal, end: StageEnd | None) -> float | None:
    if end is not None and end.parent_cpu is not None:
        return end.parent_cpu
    return None if run.end is None else run.end.parent_cpu


def _mean(total: int, count: int) -> float | None:
    return total / count if count else None


def _lower(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)


# --- the generator ----------------------------------------------------------------------------------------------------


def _generator(run: RunJournal, measured: list[Measured]) -> Generator:
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
            for worker in sorted({one.worker for one in known})
        ],
        parent_cpu=None if run.end is None else run.end.parent_cpu,
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
        restarts=len({one.pid for one in processes} | {one.pid for one in starts} | dead) - 1,
        deaths=[death.reason for death in died],
        gc_seconds=sum(one.gc_ns for one in processes) / NS_PER_SECOND,
        gc_max_seconds=max((one.gc_max_ns for one in processes), default=0) / NS_PER_SECOND,
        target=TargetStart(starts[-1].start_ns / NS_PER_SECOND, starts[-1].memory_bytes) if starts else None,
    )


def _duration(kind: type, value: Any) -> Any:
    """Read a duration as profiles write it, text or ns."""
    if kind is not Duration:
        raise NotImplementedError(kind)
    return parse_duration(value) if isinstance(value, str) else Duration(value)
