"""Stages of a simulated engine, measured in no time at all: what searches and probes are judged with.

No event loop, no client and no journal: the arrivals go straight into the simulator's scheduler, which is stepped
through virtual time, and the project's own functions make a `Stage` of what happened. What a real run adds (lateness,
the generator's faults) is absent.
"""

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.load.arrivals import Schedule
from loadgen.load.stages import StagePlan
from loadgen.measure.delta import ARRIVALS, COMPLETIONS
from loadgen.measure.outcome import BINS_PER_INTERVAL, Books, Grid
from loadgen.profile.slo import PERCENTILES
from loadgen.sim.config import SimConfig
from loadgen.sim.engine.scheduler import Emission, Scheduler, SimRequest
from loadgen.statistics.confidence import PercentileIntervals
from loadgen.statistics.histogram import Histogram, fold, fold_groups
from loadgen.summary.counts import Bins
from loadgen.summary.latencies import latency_of
from loadgen.summary.summary import (
    Concurrency,
    Latencies,
    Latency,
    Series,
    Stage,
    Stationary,
    Throughput,
    Tokens,
    Window,
)
from loadgen.summary.window import Span, stationarity
from loadgen.units import NS_PER_SECOND

Ints = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max


class Happened(msgspec.Struct, frozen=True):
    """When each request was intended, gave its first token and ended (`NEVER`: not by `until_ns`), from 0 on."""

    intended: Ints
    first_token: Ints
    ended: Ints
    stop_ns: int
    """When the arrivals ended."""
    until_ns: int
    """To when the requests were followed."""
    ended_by: str


def run_stage(
    engine: SimConfig,
    prompt: int,
    output: int,
    plan: StagePlan,
    seed: int,
    service_seconds: float | None = None,
    decided: Callable[[Stage], bool] | None = None,
) -> Stage:
    """One stage, as its summary would have it.

    service_seconds: the lowest mean service time of earlier stages, which tells how long a window must be.
    decided: whether a look, at the plan's first one and at twice, four times, ... that time, ends the stage; by
        default it does where the stage so far is called unstable.
    """
    decided = decided or (lambda stage: stage.stationary.verdict == "unstable")
    look_ns, length_ns = plan.first_look_ns, plan.expected_ns()
    while look_ns is not None and length_ns is not None and look_ns < length_ns:
        so_far = _happen(engine, prompt, output, plan, seed, look_ns, 0)
        if decided(_stage(plan, so_far, output, service_seconds, looking=True)):
            happened = _happen(engine, prompt, output, plan, seed, look_ns, int(plan.load.drain))
            return _stage(plan, happened, output, service_seconds)
        look_ns *= 2
    happened = _happen(engine, prompt, output, plan, seed, None, int(plan.load.drain))
    return _stage(plan, happened, output, service_seconds)


def _happen(
    engine: SimConfig, prompt: int, output: int, plan: StagePlan, seed: int, cut_ns: int | None, drain_ns: int
) -> Happened:
    """Step the engine through the arrivals (those before `cut_ns` where a look ends them) and the drain."""
    scheduler = Scheduler(msgspec.structs.replace(engine, seed=seed))
    if plan.arrivals is None:
        return _closed_loop(scheduler, prompt, output, plan, cut_ns, drain_ns)
    schedule = Schedule(plan.arrivals, np.random.default_rng([seed, 1]), 0)
    stop_ns = schedule.end_ns if cut_ns is None else cut_ns
    times = schedule.take(stop_ns - 1 if cut_ns is not None else stop_ns, schedule.count)
    first, ended = [NEVER] * len(times), [NEVER] * len(times)
    until_ns, now, following = stop_ns + drain_ns, 0, 0
    count = len(times)
    while following < count or not scheduler.idle:
        if scheduler.idle:
            now = max(now, times[following])
        while following < count and times[following] <= now:
            scheduler.add(SimRequest(following, prompt, output), now)
            following += 1
        step = scheduler.step(now)
        assert step is not None
        now = step.end_ns
        if now > until_ns:
            break
        _note(step.emissions, now, first, ended)
    by = schedule.ended_by if cut_ns is None else "decided"
    return Happened(np.array(times, np.int64), np.array(first), np.array(ended), stop_ns, until_ns, by)


def _note(emissions: list[Emission], now: int, first: list[int], ended: list[int]) -> list[int]:
    """Note what a step emitted; the requests that it finished."""
    finished = []
    for emission in emissions:
        if first[emission.id] == NEVER:
            first[emission.id] = now
        if emission.finished:
            ended[emission.id] = now
            finished.append(emission.id)
    return finished


def _closed_loop(
    scheduler: Scheduler, prompt: int, output: int, plan: StagePlan, cut_ns: int | None, drain_ns: int
) -> Happened:
    """A slot starts its next request the moment the one before has ended."""
    duration = cut_ns or (NEVER if plan.load.duration is None else int(plan.load.duration))
    most = NEVER if plan.load.requests is None else plan.load.requests
    intended: list[int] = []
    first: list[int] = []
    ended: list[int] = []

    def start(now: int) -> None:
        if len(intended) < most and now < duration:
            scheduler.add(SimRequest(len(intended), prompt, output), now)
            intended.append(now)
            first.append(NEVER)
            ended.append(NEVER)

    now = 0
    for _ in range(plan.load.concurrency):
        start(now)
    while (step := scheduler.step(now)) is not None:
        now = step.end_ns
        if now > min(duration, NEVER - drain_ns) + drain_ns:
            break
        for _ in _note(step.emissions, now, first, ended):
            start(now)
    by = "requests" if len(intended) >= most else "duration" if cut_ns is None else "decided"
    stop_ns = intended[-1] if by == "requests" else duration
    until = min(stop_ns, NEVER - drain_ns) + drain_ns
    return Happened(np.array(intended), np.array(first), np.array(ended), stop_ns, until, by)


def _stage(
    plan: StagePlan, happened: Happened, output: int, service_seconds: float | None, *, looking: bool = False
) -> Stage:
    grid = plan.grid(0)
    span = _span(plan, happened, looking)
    bins = _bins(grid, happened)
    within = happened.intended >= span.start_ns
    if looking:
        within &= happened.intended < span.stop_ns
    latencies = _latencies(span, happened, within, output)
    service = min((s for s in (service_seconds, _mean(latencies.service)) if s is not None), default=None)
    completed = span.rate(bins, COMPLETIONS)
    return Stage(
        name=plan.name,
        kind=plan.kind,
        books=_books(happened.ended),
        window=Window(
            (span.start_ns - grid.origin_ns) / NS_PER_SECOND,
            span.seconds,
            _books(happened.ended[within]),
            int(within.sum()),
        ),
        throughput=Throughput(completed, completed * output, 0.0),
        concurrency=_concurrency(span, happened),
        latency_seconds=latencies,
        tokens=Tokens("usage"),
        # Growth is told up to the moment of a look.
        stationary=_stationary(Span(grid, span.first_interval, happened.stop_ns), bins, service),
        short=0,
        ended_by=happened.ended_by,
        offered_rate=plan.offered_rate,
        intended_concurrency=plan.concurrency,
        purpose=plan.purpose,
        settings=plan.settings,
        repeat=plan.repeat,
        series=_series(grid, bins),
    )


def _span(plan: StagePlan, happened: Happened, looking: bool) -> Span:
    """The window: where looks decide the length all but the first quarter, and of a look as far as all have ended."""
    grid = plan.grid(0)
    if plan.first_look_ns is None:
        return Span(grid, 0, happened.stop_ns)
    if not looking:
        return Span(grid, max(0, grid.interval_of(happened.stop_ns - 1) + 1) // 4, happened.stop_ns)
    under_way = happened.intended[happened.ended == NEVER]
    end = max(1, grid.interval_of(int(under_way.min(initial=happened.stop_ns))))
    return Span(grid, end // 4, grid.window_ns + end * grid.interval_ns, cut=True)


def _bins(grid: Grid, happened: Happened) -> Bins:
    bins = Bins(grid)
    bins.add_at(ARRIVALS, _bin(grid, happened.intended), 1.0)
    bins.add_at(COMPLETIONS, _bin(grid, happened.ended[happened.ended != NEVER]), 1.0)
    return bins


def _bin(grid: Grid, instants: Ints) -> Ints:
    return (instants - grid.window_ns) // grid.bin_ns


def _stationary(span: Span, bins: Bins, service: float | None) -> Stationary:
    judged = stationarity(span, bins, service)
    return Stationary(str(judged.stability), judged.reason, judged.growing)


def _latencies(span: Span, happened: Happened, within: NDArray[np.bool_], output: int) -> Latencies:
    intended, first, ended = happened.intended[within], happened.first_token[within], happened.ended[within]
    ages = happened.until_ns - intended
    done, begun = ended != NEVER, first != NEVER
    response = _latency(span, intended, np.where(done, ended - intended, ages), done)
    return Latencies(
        ttft=_latency(span, intended, np.where(begun, first - intended, ages), begun),
        tpot=_latency(span, intended[done], (ended - first)[done] // (output - 1), done[done]) if output > 1 else None,
        response=response,
        service=_latency(span, intended[done], (ended - intended)[done], done[done]),
    )


def _latency(span: Span, intended: Ints, values: Ints, known: NDArray[np.bool_]) -> Latency | None:
    """A latency of the requests intended at these instants; where it is not known, the value is a lower bound."""
    if not values.size:
        return None
    merged, bounds = Histogram(), Histogram()
    merged.add(fold(values))
    if not known.all():
        bounds.add(fold(values[~known]))
    counted = PercentileIntervals(merged, list(PERCENTILES.values()), span.intervals)
    places = np.minimum((intended - span.start_ns) // span.grid.interval_ns, span.intervals - 1)
    for interval, delta in fold_groups(values, places):
        counted.add(interval, delta)
    return latency_of(merged, counted, bounds if bounds.count else None)


def _mean(latency: Latency | None) -> float | None:
    return None if latency is None else latency.mean


def _books(ended: Ints) -> Books:
    completed = int((ended != NEVER).sum())
    return Books(ended.size, completed, {}, 0, 0, 0, ended.size - completed)


def _concurrency(span: Span, happened: Happened) -> Concurrency:
    """The mean over time is the sum of what each request spent inside the window, by its length."""
    begin, end = span.start_ns, span.stop_ns
    inside = np.clip(happened.ended, begin, end) - np.clip(happened.intended, begin, end)
    mean = float(inside.sum()) / max(1, end - begin)
    marks = np.concatenate((happened.intended, happened.ended[happened.ended != NEVER]))
    signs = np.concatenate((np.ones(happened.intended.size), -np.ones(marks.size - happened.intended.size)))
    order = np.argsort(marks, kind="stable")
    return Concurrency(mean, int(np.cumsum(signs[order]).max(initial=0)))


def _series(grid: Grid, bins: Bins) -> Series:
    first = grid.interval_of(grid.origin_ns)
    rows = max(1, -(-bins.end // BINS_PER_INTERVAL) - first)
    seconds = grid.interval_ns / NS_PER_SECOND

    def column(name: str) -> list[int]:
        return [round(n) for n in bins.rows(name, first * BINS_PER_INTERVAL, BINS_PER_INTERVAL, rows).tolist()]

    origin = (grid.window_ns + first * grid.interval_ns - grid.origin_ns) / NS_PER_SECOND
    absent: list[float | None] = [None] * rows
    return Series(
        interval=seconds,
        start=[origin + row * seconds for row in range(rows)],
        arrivals=column(ARRIVALS),
        completed=column(COMPLETIONS),
        failed=[0] * rows,
        output_tokens=[0.0] * rows,
        in_flight=[0.0] * rows,
        ttft_p50=absent,
        ttft_p99=absent,
        response_p50=absent,
        response_p99=absent,
    )
