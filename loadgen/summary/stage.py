"""From the journal of one stage to its summary, whole or as far as it has come."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from loadgen.measure.delta import COMPLETIONS, GOOD, ITEMS, OUTPUT_TOKENS, PROMPT_TOKENS, TokenTotals
from loadgen.measure.journal import Record, RunHeader, StageEnd, StageMeta, WorkerStats, read_stage
from loadgen.measure.outcome import books_of
from loadgen.measure.run_journal import RunJournal
from loadgen.profile.slo import request_limits
from loadgen.statistics.histogram import Histogram
from loadgen.summary.attainment import attained
from loadgen.summary.counts import StageCounts
from loadgen.summary.interim import InterimLook
from loadgen.summary.latencies import LOOP_LAG, StageLatencies
from loadgen.summary.summary import Accuracy, Items, Latency, Stage, Stationary, Throughput, Tokens, Window
from loadgen.summary.timeline import series_of
from loadgen.summary.window import Span, choose_window, concurrency, stationarity
from loadgen.units import NS_PER_SECOND

KILLED: Final = "killed"
"""How a stage ended that has no end in the journal."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One stage and what else bears on its validity.

    excused: requests intended in the window that were not sent through no fault of the generator.
    worker_cpu: by worker, its share of one core in the busiest second or so of the stage, where known.
    parent_cpu: of the parent, likewise.
    ended: the stage ended in order; otherwise the run was killed, and what was outstanding is not known.
    judged: False where requests are late by design.
    unsettled: the warm-up was to be found and none was.
    more_than_prompts: requests had tokens on top of those asked for, by as many as nobody knows.
    """

    stage: Stage
    loop_lag: Latency | None
    excused: int
    worker_cpu: dict[int, float]
    parent_cpu: float | None
    ended: bool
    judged: bool
    unsettled: bool = False
    more_than_prompts: bool = False


class Measured(msgspec.Struct, frozen=True):
    """A stage's summary with what only the verdict and the generator's report need."""

    finding: Finding
    lowest_service_seconds: float | None
    """The lowest mean service time of this stage and those before it."""
    lateness: Histogram | None
    loop_lag: Histogram | None
    stats: dict[int, WorkerStats]


def measure(
    directory: Path, run: RunJournal, meta: StageMeta, service_seconds: float | None, at: InterimLook | None = None
) -> Measured:
    """One stage. `service_seconds`: the lowest mean service time of other stages, which tells how long is long.

    at: how far to look at a stage that is under way.
    """
    header, slo = run.header.of_stage(meta), run.slo(meta)

    def read() -> Iterator[Record]:
        return read_stage(directory, meta.stage)

    counts = StageCounts(meta, read())
    end = run.ends.get(meta.stage)
    # Killed: the arrivals reached at least to the last thing that happened.
    stop_ns = end.stop_ns if end is not None else meta.grid.window_ns + counts.bins.end * meta.grid.bin_ns
    span = choose_window(meta, stop_ns, counts.bins) if at is None else at.window(meta.grid)
    latencies = StageLatencies(read, span, ttft_bounded=header.streamed)
    latency_seconds, loop_lag = latencies.summarised()
    service = _lower(service_seconds, latencies.mean_seconds("service"))
    steady = stationarity(span, counts.bins, service) if at is None else at.stationarity(span, counts.bins, service)
    throughput = _throughput(span, counts, header, judged=slo is not None and bool(request_limits(slo)))
    good = attained(read, counts, span, slo, throughput.goodput)
    stage = Stage(
        name=meta.name,
        kind=meta.kind,
        books=books_of(counts.accounts(), None if end is None else end.intended),
        window=_window(span, counts),
        throughput=replace(throughput, goodput_ci=good.goodput_ci),
        concurrency=concurrency(span, counts.bins),
        latency_seconds=latency_seconds,
        tokens=_tokens(counts.token_totals(span.holds)),
        stationary=Stationary(str(steady.stability), steady.reason, steady.growing),
        short=counts.token_totals().short,
        ended_by=KILLED if end is None else end.ended_by,
        offered_rate=meta.offered_rate,
        intended_concurrency=meta.concurrency,
        failure_messages=counts.messages,
        items=_items(header, counts.token_totals(span.holds), latencies.mean_seconds("service")),
        labels=dict(sorted(counts.labels(span.holds).items())),
        accuracy=accuracy_of(counts.judged(span.holds)),
        rows_again=counts.rows_again,
        retries=counts.retries,
        attainment=good.attainment,
        purpose=meta.purpose,
        settings=meta.settings,
        repeat=meta.repeat,
        end_reason=None if end is None else end.reason,
        series=series_of(meta.grid, counts, read()),
        curves=latencies.curves(),
    )
    finding = Finding(
        stage=stage,
        loop_lag=loop_lag,
        excused=counts.excused(span.first_interval, span.end_interval),
        worker_cpu={} if header.simulated else counts.worker_cpu,
        parent_cpu=None if header.simulated else _parent_cpu(run, end),
        ended=end is not None,
        judged=meta.judged,
        unsettled=span.unsettled,
        more_than_prompts=header.more_than_prompts,
    )
    stats = {pid: cost.last for pid, cost in counts.processes.items()}
    merged = latencies.merged
    return Measured(finding, service, merged.get("lateness"), merged.get(LOOP_LAG), stats)


# --- the parts of a stage ---------------------------------------------------------------------------------------------


def _window(span: Span, counts: StageCounts) -> Window:
    grid = span.grid
    return Window(
        start=(span.start_ns - grid.origin_ns) / NS_PER_SECOND,
        seconds=span.seconds,
        books=books_of(counts.accounts(span.holds)),
        sent=counts.sent(span.first_interval, span.end_interval),
    )


def _throughput(span: Span, counts: StageCounts, header: RunHeader, *, judged: bool) -> Throughput:
    bins, seconds = counts.bins, header.sound_seconds
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


def accuracy_of(judged: Counter[int]) -> Accuracy | None:
    """From how many were right, under 1, and how many were not, under 0; None where there are none."""
    total = judged.total()
    return Accuracy(judged[1] / total, judged[1], total) if total else None


def _lower(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)
