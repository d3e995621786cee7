"""The search for the highest rate that a target sustains without an SLO: before its queue grows.

Growth alone finds that rate poorly: a threshold h on it lets a rate of 1/(1 - h) pass, and noise the rest. What an
overloaded target completes is a better measure, but proves nothing where overload itself costs throughput. So the
search measures the latter and confirms it by the former; where they disagree it falls back on bisection.
"""

from collections.abc import Generator, Iterator, Sequence
from math import sqrt
from typing import Final

from loadgen.load.stages import StagePlan
from loadgen.profile import Saturate
from loadgen.profile.slo import Slo
from loadgen.search.bracket import (
    FAIL,
    MEASURED,
    PASS,
    UNDECIDED,
    bracket_of,
    overload_completes,
    overload_of,
    overload_sign,
    rough_rate,
    service_seconds,
)
from loadgen.search.plans import arrivals_seconds, at_rate, generator_fault, low_load, silence
from loadgen.search.slo import SearchOver
from loadgen.search.throughput import Completed
from loadgen.statistics.stationarity import ENOUGH_ARRIVALS, ENOUGH_SERVICE_TIMES, UNSERVED_SHARE, Stability
from loadgen.summary.summary import Overload, SearchPoint, SearchResult, Stage

Search = Generator[StagePlan, Stage, SearchResult]

FIRST_IN_FLIGHT: Final = 8
"""The first rate keeps about so many requests in flight."""
FILLING_SERVICE_TIMES: Final = 5
QUICK_SERVICE_TIMES: Final = 15
QUICK_ARRIVALS: Final = 500
"""At 1.3 times the saturation rate 23 % of the arrivals stay, 115 of 500 with a standard deviation of 22."""
DOUBLING_ARRIVALS: Final = 100
"""To double needs no more: at twice the saturation rate half of the arrivals stay, 50 of 100, where chance alone makes
28, and a rate between the two is found by the next doubling."""
QUICK_SIGMAS: Final = 2
"""In a stage so short a backlog must have grown by more than `2 sqrt(2 A)` of A arrivals, 63 of 500: without this, 7 %
of the stages at three quarters of the saturation rate seemed to be overloaded."""
SHORTEST_QUICK_SECONDS: Final = 4.0
SHORTEST_LONG_SECONDS: Final = 12.0
"""What disturbs a machine lasts for seconds, however fast its target is."""
OVERLOAD: Final = 1.3
PRECISION: Final = 0.05
LOOSE: Final = 0.10
"""An estimate that stays less precise than this proves little: bisection decides."""
MOST_OVERLOAD_STAGES: Final = 3
TOO_MUCH: Final = 1.1
SUSTAINED: Final = 0.95
WIDENING: Final = 1.25
MOST_BISECTIONS: Final = 20
MOST_DOWN: Final = 12
OVERLOADING: Final = "overload"
CONFIRM_UNSTABLE: Final = "confirm unstable"
CONFIRM_STABLE: Final = "confirm stable"
HIGHEST_RATE: Final = 1e7


def search(load: Saturate, slo: Slo | None, points: list[SearchPoint]) -> Search:
    """Ask for stages one by one, be sent each as it was measured, and return the answer.

    points: empty; every stage is added as it is sent, so that `conclude` can be called at any moment.
    slo: not looked at.

    A few requests one after the other give the mean service time S. From 8/S, or `start_rate`, the rate is doubled,
    in stages of 15 S or 100 arrivals, until the target is overloaded; if it is at once, the rate first goes down until
    it is not. What overloaded stages complete, offered at least 1.15 times that, estimates the saturation rate m; the
    one that ended the doubling may do, else up to three at 1.3 m are added, until the interval is within 5 %. Then
    stages of 35 S or 2,000 arrivals must find the target overloaded at 1.1 m and not at .95 m, at the second try at
    the latest. Where they do not, or 1.3 m is no overload, overload costs throughput or an early stage misled; where m
    stays unknown to 10 %, the target itself is unsteady. Then bisection by such stages decides. S is that of the
    highest rate that passed so far, and the first 5 S of a stage are left out, in which the target fills.

    By simulation (the engine of `loadgen.sim`; 40 seeds each of a decode-bound and a prefill-bound shape, of 64 and of
    256 slots): all answers within 2.4 % of the truth and all brackets around it, after 5 to 10 stages. A search that is
    cut after any number of stages had a wrong bracket in 2 of 1,157 cases. With a KV cache that preempts
    and holds about 440 sequences, 9 of 10 answers were 4 to 8 % below what its blocks could carry, after 13 stages,
    and the loss under overload, 9 to 16 %, was told each time. One that holds few sequences tips over at lower rates,
    where their number happens to be high (with 50 at .85 of what its blocks could carry), which is nearer to what it
    completes when overloaded, so that the loss may be too small to be told.
    """
    stages: list[Stage] = []
    try:
        estimate = yield from ceiling(load, points, stages)
        vague = estimate is None or estimate.error > LOOSE
        if vague or estimate is None or not (yield from _confirmed(load, points, stages, estimate.rate)):
            yield from _bisect(load, points, stages)
    except SearchOver as over:
        return conclude(load, points, stages, over.ended_by, over.reason)
    return conclude(load, points, stages, "found", "")


def ceiling(
    load: Saturate, points: list[SearchPoint], stages: list[Stage]
) -> Generator[StagePlan, Stage, Completed | None]:
    """Low load, doubling until overloaded, and what the target then completes; None where that stays unknown.

    Raises:
        SearchOver: the target does not answer, or the generator was the bottleneck.
    """
    first = yield low_load(load)
    stages.append(first)
    why = silence(first)
    if why is not None:
        points.append(_point(points, first, FAIL, why))
        raise SearchOver("target", why)
    seconds = service_seconds(points, stages)
    points.append(_point(points, first, MEASURED, f"the mean service time is {seconds:.4g} s at low load"))
    yield from _double(load, points, stages)
    return (yield from _measure(load, points, stages))


def _double(load: Saturate, points: list[SearchPoint], stages: list[Stage]) -> Generator[StagePlan, Stage, None]:
    """Double the rate until the target is overloaded; where it is from the first, first go down until it is not."""
    first = rate = load.start_rate or FIRST_IN_FLIGHT / service_seconds(points, stages)
    while (yield from _quick(load, points, stages, rate, "doubling")) != FAIL:
        rate *= 2
        if rate > HIGHEST_RATE:
            raise SearchOver("generator", f"the target was not reached: no rate overloads it, up to {rate / 2:.4g}/s")
    if rate > first:
        return
    for _ in range(MOST_DOWN):
        rate = min(rate / 4, (rough_rate(points, stages) or rate) / 2)
        if (yield from _quick(load, points, stages, rate, "going down")) != FAIL:
            return
    raise SearchOver("undecided", f"the target is overloaded at every rate tried, down to {rate:.4g}/s")


def _measure(
    load: Saturate, points: list[SearchPoint], stages: list[Stage]
) -> Generator[StagePlan, Stage, Completed | None]:
    """Overload the target until what it completes is known to 5 %, in a few stages at most.

    The rate is 1.3 times what the overloaded stage before completed, which keeps the backlog, and so the time to
    drain it, small.
    """
    for _ in range(MOST_OVERLOAD_STAGES):
        estimate = overload_completes(points, stages)
        if estimate is not None and estimate.error <= PRECISION:
            return estimate
        rough = estimate.rate if estimate is not None else rough_rate(points, stages)
        if rough is None:
            return None
        if (yield from _quick(load, points, stages, OVERLOAD * rough, OVERLOADING)) != FAIL:
            return None  # not overloaded by 1.3 times what it completes under overload: that costs it throughput
    return overload_completes(points, stages)


def _confirmed(
    load: Saturate, points: list[SearchPoint], stages: list[Stage], saturation: float
) -> Generator[StagePlan, Stage, bool]:
    """Whether the target is overloaded at 1.1 times the rate, and not at .95 of it; each may be tried twice."""
    for factor, wanted, purpose in ((TOO_MUCH, FAIL, CONFIRM_UNSTABLE), (SUSTAINED, PASS, CONFIRM_STABLE)):
        for _ in range(2):
            if (yield from _long(load, points, stages, factor * saturation, purpose)) == wanted:
                break
        else:
            return False
    return True


def _bisect(load: Saturate, points: list[SearchPoint], stages: list[Stage]) -> Generator[StagePlan, Stage, None]:
    """Halve the bracket (geometrically) until its ends are `tolerance` apart."""
    for _ in range(MOST_BISECTIONS):
        low, high = (None if point is None else point.offered for point in bracket_of(points))
        if low is not None and high is not None:
            if high / low - 1 <= load.tolerance:
                return
            rate = sqrt(low * high)
        elif high is not None:
            rate = high / WIDENING
        else:
            rate = (low or 0.0) * WIDENING
        yield from _long(load, points, stages, rate, "bisection")
    raise SearchOver("undecided", f"after {MOST_BISECTIONS} bisections the stages still contradict each other")


def _quick(
    load: Saturate, points: list[SearchPoint], stages: list[Stage], rate: float, purpose: str
) -> Generator[StagePlan, Stage, str]:
    """A stage of 15 service times; its outcome. An estimate needs 500 arrivals at least, doubling 100."""
    arrivals = QUICK_ARRIVALS if purpose == OVERLOADING else DOUBLING_ARRIVALS
    seconds = max(QUICK_SERVICE_TIMES * service_seconds(points, stages), arrivals / rate, SHORTEST_QUICK_SECONDS)
    return (yield from _tried(load, points, stages, rate, purpose, seconds, QUICK_SIGMAS))


def _long(
    load: Saturate, points: list[SearchPoint], stages: list[Stage], rate: float, purpose: str
) -> Generator[StagePlan, Stage, str]:
    """A stage of 35 service times (2,000 arrivals at least); its outcome, pass or fail.

    Raises:
        SearchOver: it is undecided, since `max_stage` is too short.
    """
    seconds = max(ENOUGH_SERVICE_TIMES * service_seconds(points, stages), ENOUGH_ARRIVALS / rate, SHORTEST_LONG_SECONDS)
    outcome = yield from _tried(load, points, stages, rate, purpose, seconds)
    if outcome == UNDECIDED:
        raise SearchOver("undecided", f"stages as long as max_stage cannot decide: {points[-1].reason}")
    return outcome


def _tried(
    load: Saturate,
    points: list[SearchPoint],
    stages: list[Stage],
    rate: float,
    purpose: str,
    seconds: float,
    sigmas: float = 0.0,
) -> Generator[StagePlan, Stage, str]:
    """Run one stage with a window of so many seconds after its filling, and judge it.

    sigmas: by how many `sqrt(2 A)` of its A arrivals a backlog must have grown, or else it is undecided.
    """
    service = service_seconds(points, stages)
    warmup = FILLING_SERVICE_TIMES * service
    stage = yield at_rate(load, rate, warmup + seconds, purpose, warmup_seconds=warmup)
    stages.append(stage)
    fault = generator_fault(stage, latencies=False)
    if fault is not None:
        points.append(_point(points, stage, UNDECIDED, fault))
        raise SearchOver("generator", f"{fault}; the target's limit was not reached")
    if stage.books.failures and not stage.books.completed:
        why = silence(stage) or "the target completed nothing"
        points.append(_point(points, stage, FAIL, why))
        raise SearchOver("target", f"at {rate:.4g}/s {why}")
    outcome, reason = _judged(stage, stages[0], min(seconds, ENOUGH_SERVICE_TIMES * service), sigmas)
    points.append(_point(points, stage, outcome, reason))
    return outcome


def _judged(stage: Stage, first: Stage, needed_seconds: float, sigmas: float) -> tuple[str, str]:
    books, seconds = stage.window.books, stage.window.seconds
    sign = overload_sign(stage, first)
    if sign is not None:
        grown = books.intended - stage.throughput.requests * seconds
        by_chance = sigmas * sqrt(2 * books.intended)
        return (FAIL, sign) if grown > by_chance else (UNDECIDED, f"{sign}, but chance alone can do that")
    rates = f"{stage.throughput.requests:.4g}/s completed of {stage.offered_rate or 0:.4g}/s"
    if seconds < 0.99 * needed_seconds and books.intended < ENOUGH_ARRIVALS:
        return (
            UNDECIDED,
            f"no growth, but {seconds:.4g} s are too short to tell (it takes {needed_seconds:.4g} s): {rates}",
        )
    ended = stage.throughput.requests * seconds + books.failures
    if stage.stationary.verdict == Stability.TOO_SHORT and books.intended - ended > UNSERVED_SHARE * books.intended:
        # Few are in flight at a time, and so few could be by chance: it neither passed nor failed.
        return UNDECIDED, f"more came than went, too few to tell from chance: {rates}"
    return PASS, f"the backlog does not grow: {rates}"


def _point(points: Sequence[SearchPoint], stage: Stage, outcome: str, reason: str) -> SearchPoint:
    return SearchPoint(
        stage=len(points),
        purpose=stage.purpose or stage.name,
        outcome=outcome,
        reason=reason,
        offered=stage.offered_rate,
        seconds=arrivals_seconds(stage),
    )


def conclude(
    load: Saturate, points: Sequence[SearchPoint], stages: Sequence[Stage], ended_by: str, reason: str
) -> SearchResult:
    """The answer that the points tried so far allow.

    Confirmed, it is what the overloaded target completes, between the rates .95 and 1.1 times that, or the ends of
    its interval where they lie further apart. Otherwise it is the best that growth alone tells. A stage in which up to
    4 % go unserved passes, so that growth lets a rate of 1/(1 - 4 %) pass: the lower end of the bracket is 4 % below
    the highest rate that passed, and the answer 4 % below the middle of what bisection leaves. The upper end needs no
    such allowance.

    ended_by, reason: as in `SearchResult`; the answer is added to the reason.
    """
    low, high = bracket_of(points)
    estimate = overload_completes(points, stages)
    confirmed = None if ended_by != "found" or estimate is None else _confirmation(points)
    lower = None if low is None or low.offered is None else (1 - UNSERVED_SHARE) * low.offered
    upper = None if high is None else high.offered
    saturation, how = lower, "the highest rate without growth of the backlog, less what goes unnoticed"
    if confirmed is not None and estimate is not None:
        low, high = confirmed
        saturation, how = estimate.rate, "it completes that when overloaded, and growth of the backlog confirms it"
        lower = min(estimate.low, low.offered or saturation)
        upper = max(estimate.high, high.offered or saturation)
    elif ended_by == "found" and lower is not None and upper is not None:
        saturation, how = sqrt(lower * upper * (1 - UNSERVED_SHARE)), "bisected by growth of the backlog"
    elif estimate is not None and upper is not None and (lower or 0.0) <= estimate.rate <= upper:
        saturation, how = estimate.rate, "it completes that when overloaded; not confirmed"
    overload = None if saturation is None else overload_of(points, stages, saturation)
    return SearchResult(
        kind="saturate",
        objective="rate",
        ended_by=ended_by,
        reason="; ".join(_answer(reason, how, saturation, (lower, upper), overload)),
        points=list(points),
        saturation=saturation,
        bracket=(lower, upper),
        tolerance=load.tolerance,
        evidence=(None if low is None else low.stage, None if high is None else high.stage),
        undecided=_undecided(points, lower, upper),
        overload=overload,
    )


def _confirmation(points: Sequence[SearchPoint]) -> tuple[SearchPoint, SearchPoint] | None:
    """The points that confirm an estimate, at .95 and 1.1 times of it; None where none does."""
    if not points or (points[-1].purpose, points[-1].outcome) != (CONFIRM_STABLE, PASS):
        return None
    unstable = next(p for p in reversed(points) if p.purpose == CONFIRM_UNSTABLE)
    return points[-1], unstable


def _undecided(points: Sequence[SearchPoint], lower: float | None, upper: float | None) -> tuple[float, float] | None:
    rates = [
        point.offered
        for point in points
        if point.outcome == UNDECIDED
        and point.offered is not None
        and (lower is None or point.offered > lower)
        and (upper is None or point.offered < upper)
    ]
    return (min(rates), max(rates)) if rates else None


def _answer(
    reason: str,
    how: str,
    saturation: float | None,
    bracket: tuple[float | None, float | None],
    overload: Overload | None,
) -> Iterator[str]:
    """The sentences of the reason."""
    if reason:
        yield reason
    lower, upper = (None if end is None else f"{end:.4g}/s" for end in bracket)
    ends = " and ".join(filter(None, (lower and f"above {lower}", upper and f"below {upper}")))
    if saturation is not None:
        yield f"the target sustains {saturation:.4g}/s ({how}); its limit lies {ends}"
    elif upper is not None:
        yield f"the target does not sustain {upper}"
    if overload is not None and overload.loss:
        yield (
            f"overload costs it {overload.loss:.0%}: "
            f"offered {overload.offered:.4g}/s it completes {overload.completed:.4g}/s"
        )
