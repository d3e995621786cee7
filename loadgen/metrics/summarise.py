"""From the journal of a run to its summary; the same path for a run that just ended, one of last year, a killed one."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, overload

import msgspec
from msgspec.structs import replace

from loadgen.metrics.accuracy import accuracy_of
from loadgen.metrics.attainment import attained
from loadgen.metrics.delta import COMPLETIONS, GOOD, ITEMS, OUTPUT_TOKENS, PROMPT_TOKENS, TokenTotals
from loadgen.metrics.glance import Glance
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.journal import (
    NoJournal,
    Record,
    RunEnd,
    RunHeader,
    RunResumed,
    StageEnd,
    StageMeta,
    WorkerDeath,
    WorkerOpened,
    WorkerStats,
    read_run,
    read_stage,
)
from loadgen.metrics.latencies import LOOP_LAG, StageLatencies, latency_of
from loadgen.metrics.repeats import repeats_of
from loadgen.metrics.running import books_of
from loadgen.metrics.slo import Slo, check, request_limits, slo_of, verdict_of
from loadgen.metrics.summary import (
    Generator,
    Items,
    SloCheck,
    SloVerdict,
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
from loadgen.metrics.verdict import Finding, generator_faults, judge
from loadgen.metrics.window import Span, choose_window, concurrency, stationarity
from loadgen.units import NS_PER_SECOND

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

    def slo(self, meta: StageMeta) -> Slo | None:
        """As the profile of a stage promises it."""
        promised = self.header.of_stage(meta).profile.get("slo")
        return None if promised is None else slo_of(promised)


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
    measured = StagesSoFar(directory, len(run.metas)).measured(run)
    findings = [stage.finding for stage in measured]
    stages = [finding.stage for finding in findings]
    end = run.end
    return Summary(
        name=run.header.name,
        started_at=run.header.started_at,
        verdict=judge(
            findings,
            end,
            [f"Worker {death.worker} (pid {death.pid}) died: {death.reason}." for death in run.deaths],
            _told(run),
            _slo_verdict(run, stages),
        ),
        stages=stages,
        repeats=repeats_of(stages),
        generator=_generator(run, measured),
        environment=_environment(run),
        profile=run.header.profile,
        simulated=run.header.simulated,
        interrupted=end is not None and end.interrupted,
        failure=None if end is None else end.failure,
    )


class StagesSoFar(Sequence[Stage]):
    """The first `ended` stages of a run, which have ended. Each is measured when it is first looked at, and once."""

    def __init__(self, directory: Path, ended: int = 0) -> None:
        self.ended = ended
        self._directory = directory
        self._measured: list[Measured] = []
        self._lowest: float | None = None

    def __len__(self) -> int:
        return self.ended

    @overload
    def __getitem__(self, index: int) -> Stage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Stage]: ...
    def __getitem__(self, index: int | slice) -> Stage | Sequence[Stage]:
        stages = [one.finding.stage for one in self.measured(read_overview(self._directory))]
        return stages[index]

    def measured(self, run: RunJournal) -> list[Measured]:
        """All of them, with what a verdict needs."""
        for meta in run.metas[len(self._measured) : self.ended]:
            one = measure(self._directory, run, meta, self._lowest)
            self._lowest = _lower(self._lowest, one.service_seconds)
            self._measured.append(one)
        return self._measured

    def glance(self, at: Glance, number: int) -> Stage | None:
        """The stage that is under way, as far as all that was intended has ended; None where nothing has."""
        run = read_overview(self._directory)
        self.measured(run)
        meta = next(meta for meta in run.metas if meta.stage == number)
        if at.intervals(meta.grid) < 1:
            return None
        return measure(self._directory, run, meta, self._lowest, at).finding.stage


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


def measure(
    directory: Path, run: RunJournal, meta: StageMeta, service_seconds: float | None, at: Glance | None = None
) -> Measured:
    """One stage. `service_seconds`: the lowest mean service time of other stages, which tells how long is long.

    at: how far to look at a stage that is under way.
    """
    header, slo = run.header.of_stage(meta), run.slo(meta)

    def read() -> Iterator[Record]:
        return read_stage(directory, meta.stage)

    survey = Survey(meta, read())
    end = run.ends.get(meta.stage)
    # Killed: the arrivals reached at least to the last thing that happened.
    stop_ns = end.stop_ns if end is not None else meta.grid.window_ns + survey.bins.end * meta.grid.bin_ns
    span = choose_window(meta, stop_ns, survey.bins) if at is None else at.window(meta.grid)
    latencies = StageLatencies(read, span, ttft_bounded=header.streamed)
    latency_seconds, loop_lag = latencies.summarised()
    service = _lower(service_seconds, latencies.mean_seconds("service"))
    steady = stationarity(span, survey.bins, service) if at is None else at.stationarity(span, survey.bins, service)
    throughput = _throughput(span, survey, header, judged=slo is not None and bool(request_limits(slo)))
    good = attained(read, survey, span, slo, throughput.goodput)
    stage = Stage(
        name=meta.name,
        kind=meta.kind,
        books=books_of(survey.accounts(), None if end is None else end.intended),
        window=_window(span, survey),
        throughput=replace(throughput, goodput_ci=good.goodput_ci),
        concurrency=concurrency(span, survey.bins),
        latency_seconds=latency_seconds,
        tokens=_tokens(survey.token_totals(span.holds)),
        stationary=Stationary(str(steady.stability), steady.reason, steady.growing),
        short=survey.token_totals().short,
        ended_by=KILLED if end is None else end.ended_by,
        offered_rate=meta.offered_rate,
        intended_concurrency=meta.concurrency,
        failure_messages=survey.messages,
        items=_items(header, survey.token_totals(span.holds), latencies.mean_seconds("service")),
        labels=dict(sorted(survey.labels(span.holds).items())),
        accuracy=accuracy_of(survey.judged(span.holds)),
        rows_again=survey.rows_again,
        retries=survey.retries,
        attainment=good.attainment,
        purpose=meta.purpose,
        settings=meta.settings,
        repeat=meta.repeat,
        end_reason=None if end is None else end.reason,
        series=series_of(meta.grid, survey, read()),
        curves=latencies.curves(),
    )
    finding = Finding(
        stage=stage,
        loop_lag=loop_lag,
        excused=survey.excused(span.first_interval, span.end_interval),
        worker_cpu=_worker_cpu(run, survey),
        parent_cpu=_parent_cpu(run, end),
        ended=end is not None,
        judged=meta.judged,
        unsettled=span.unsettled,
        more_than_prompts=header.more_than_prompts,
    )
    stage = replace(stage, generator_faults=generator_faults(finding))
    finding = replace(finding, stage=stage)
    stats = {pid: cost.last for pid, cost in survey.processes.items()}
    merged = latencies.merged
    mean_service = latencies.mean_seconds("service")
    return Measured(finding, mean_service, merged.get("lateness"), merged.get(LOOP_LAG), stats)


def _slo_verdict(run: RunJournal, stages: Sequence[Stage]) -> SloVerdict | None:
    """Each stage held against its promises; a probe of a search, which tries where they break, against none."""
    checks: list[SloCheck] = []
    promised = False
    for meta, stage in zip(run.metas, stages, strict=True):
        slo = run.slo(meta)
        if slo is not None and stage.purpose is None:
            promised = True
            checks += check(slo, [stage]).checks
    return verdict_of(checks) if promised else None


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


def _throughput(span: Span, survey: Survey, header: RunHeader, *, judged: bool) -> Throughput:
    bins, seconds = survey.bins, header.sound_seconds
    requests = span.rate(bins, COMPLETIONS)
    items = span.rate(bins, ITEMS) if seconds is None else requests * seconds
    return Throughput(
        requests=requests,
        output_tokens=span.rate(bins, OUTPUT_TOKENS),
        prompt_tokens=span.rate(bins, PROMPT_TOKENS),
        goodput=span.rate(bins, GOOD) if judged else None,
        items=None if header.items is None else items,
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


def _worker_cpu(run: RunJournal, survey: Survey) -> dict[int, float]:
    """None in virtual time, of which a worker that is a task takes what it takes."""
    if run.header.simulated:
        return {}
    return {cost.last.worker: cost.cpu for cost in survey.processes.values() if cost.cpu is not None}


def _parent_cpu(run: RunJournal, end: StageEnd | None) -> float | None:
    if run.header.simulated:
        return None
    if end is not None and end.parent_cpu is not None:
        return end.parent_cpu
    return None if run.end is None else run.end.parent_cpu


def _mean(total: int, count: int) -> float | None:
    return total / count if count else None


def _lower(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)


# --- the generator ----------------------------------------------------------------------------------------------------


def _generator(run: RunJournal, measured: list[Measured]) -> Generator:
    """In virtual time it has no processes, and no cost that could be held against that time."""
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
            for worker in sorted({one.worker for one in known} if not run.header.simulated else ())
        ],
        parent_cpu=_parent_cpu(run, None),
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
