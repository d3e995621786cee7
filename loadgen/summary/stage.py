"""From the journal of one stage to its summary, whole or as far as it has come."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, overload

import msgspec
from msgspec.structs import replace

from loadgen.judge.slo import request_limits
from loadgen.judge.verdict import Finding, generator_faults
from loadgen.measure.delta import COMPLETIONS, GOOD, ITEMS, OUTPUT_TOKENS, PROMPT_TOKENS, TokenTotals
from loadgen.measure.journal import Record, RunHeader, StageEnd, StageMeta, WorkerStats, read_stage
from loadgen.measure.run_journal import RunJournal, read_overview
from loadgen.measure.running import books_of
from loadgen.statistics.histogram import Histogram
from loadgen.summary.accuracy import accuracy_of
from loadgen.summary.attainment import attained
from loadgen.summary.counts import Survey
from loadgen.summary.interim import Glance
from loadgen.summary.latencies import LOOP_LAG, StageLatencies
from loadgen.summary.summary import Items, Stage, Stationary, Throughput, Tokens, Window
from loadgen.summary.timeline import series_of
from loadgen.summary.window import Span, choose_window, concurrency, stationarity
from loadgen.units import NS_PER_SECOND

KILLED: Final = "killed"
"""How a stage ended that has no end in the journal."""


class Measured(msgspec.Struct, frozen=True):
    """A stage's summary with what only the verdict and the generator's report need."""

    finding: Finding
    service_seconds: float | None
    lateness: Histogram | None
    loop_lag: Histogram | None
    stats: dict[int, WorkerStats]


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
        if len(self._measured) < self.ended:
            self.measured(read_overview(self._directory))
        return [one.finding.stage for one in self._measured][index]

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
        worker_cpu={} if header.simulated else survey.worker_cpu,
        parent_cpu=None if header.simulated else _parent_cpu(run, end),
        ended=end is not None,
        judged=meta.judged,
        unsettled=span.unsettled,
        more_than_prompts=header.more_than_prompts,
    )
    stage = replace(stage, generator_faults=generator_faults(finding))
    finding = replace(finding, stage=stage)
    stats = {pid: cost.last for pid, cost in survey.processes.items()}
    merged = latencies.merged
    return Measured(finding, latencies.mean_seconds("service"), merged.get("lateness"), merged.get(LOOP_LAG), stats)


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


def _parent_cpu(run: RunJournal, end: StageEnd | None) -> float | None:
    if end is not None and end.parent_cpu is not None:
        return end.parent_cpu
    return None if run.end is None else run.end.parent_cpu


def _mean(total: int, count: int) -> float | None:
    return total / count if count else None


def _lower(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)
