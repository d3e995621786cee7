"""The rates of a sweep that were not given: spread between low load and the most that the target completes.

Both ends are measured first, with the first half of the search for saturation (`rate.ceiling`). A sweep needs
no bracket, so nothing is confirmed: its own stages show what each rate does.
"""

from collections.abc import Generator, Sequence
from math import floor, log10
from typing import Any, Final

import msgspec

from loadgen.load.stages import StagePlan
from loadgen.profile import Saturate, Sweep
from loadgen.profile.load import process_at
from loadgen.search.bracket import MEASURED
from loadgen.search.invalid import valid_places, with_invalid
from loadgen.search.plans import arrivals_seconds, mean_service_seconds
from loadgen.search.rate import ceiling, conclude
from loadgen.search.saturate import cut_reason, replay, whole
from loadgen.search.slo import SearchOver
from loadgen.summary.summary import SWEEP_POINT, SearchPoint, SearchResult, Stage

POINT: Final = SWEEP_POINT
"""The purpose of the stages that are the sweep itself."""
DIGITS: Final = 6


def next_stage(load: Sweep, measured: Sequence[Stage]) -> StagePlan | None:
    """The stage to measure next in a sweep over `points`; None where it is over.

    A stage of a rate counts as measured however it ended; a stage of the search before it that was cut short is asked
    for again, unless it was `abort_when` that ended it, which would end it again.
    """
    counted = _counted(measured)
    asked = replay(_sweep(load, [], []), [counted[place] for place in _sent(counted)])
    if measured and measured[-1].ended_by == "abort_when" and measured[-1].purpose != POINT:
        return None
    return asked if isinstance(asked, StagePlan) else None


def result(load: Sweep, measured: Sequence[Stage], cut: str | None) -> SearchResult | None:
    """What the search for the ends found, and the points; None for a sweep whose rates are given.

    `saturation` is what the overloaded target completes: the highest of the rates. `cut` as in `saturate.result`.
    """
    if load.points is None:
        return None
    points: list[SearchPoint] = []
    stages: list[Stage] = []
    counted = _counted(measured)
    places = _sent(counted)
    found = replay(_sweep(load, points, stages), [counted[place] for place in places])
    if not isinstance(found, SearchResult):
        ended_by = cut or "failure"
        found = _concluded(load, points, stages, ended_by, cut_reason(measured, ended_by))
    return with_invalid(found, places, counted)


def rates_between(low: float, high: float, points: int, spacing: str) -> tuple[float, ...]:
    """So many different rates from `low` to `high`, ascending, `linear` or `geometric`ally spread; at least 2.

    They are round to six digits, the highest downwards. Where low load is more than half of the highest rate, as with
    a target that serves one request at a time, they go from its n-th part on.
    """
    last = points - 1
    low = low if low <= high / 2 else high / points
    if spacing == "geometric":
        spread = [low * (high / low) ** (i / last) for i in range(points)]
    else:
        spread = [low + (high - low) * i / last for i in range(points)]
    return tuple(_rounded(rate) for rate in spread)


def _sweep(load: Sweep, points: list[SearchPoint], stages: list[Stage]) -> Generator[StagePlan, Stage, SearchResult]:
    ended_by, reason = "found", ""
    try:
        yield from ceiling(_search_load(load), points, stages)
    except SearchOver as over:
        ended_by, reason = over.ended_by, over.reason
    highest = _concluded(load, points, stages, ended_by, reason).saturation
    service = mean_service_seconds(stages[0])
    # Where the generator was the bottleneck, the rates that it can make are swept all the same.
    for repeat in range(1, load.repeat + 1) if highest and service else ():
        for rate in rates_between(1 / (service or 1.0), highest or 1.0, load.points or 2, load.spacing):
            stage = yield _plan(load, rate, repeat if load.repeat > 1 else None)
            points.append(_point(stage, len(points)))
    return _concluded(load, points, stages, ended_by, reason)


def _search_load(load: Sweep) -> Saturate:
    return Saturate(
        arrivals=load.arrivals,
        burstiness=load.burstiness,
        drain=load.drain,
        overflow=load.overflow,
        abort_when=load.abort_when,
    )


def _plan(load: Sweep, rate: float, repeat: int | None) -> StagePlan:
    settings: dict[str, Any] = {
        "rate": rate,
        "duration": load.duration,
        "requests": load.requests,
        "warmup": load.warmup,
        "drain": load.drain,
        "overflow": load.overflow,
        "abort_when": load.abort_when,
    }
    process = process_at(load, **settings)
    again = "" if repeat is None else f" (repeat {repeat})"
    return StagePlan(name=f"{load.arrivals} {rate:.6g}/s{again}", load=process, purpose=POINT, repeat=repeat)


def _concluded(
    load: Sweep, points: list[SearchPoint], stages: Sequence[Stage], ended_by: str, reason: str
) -> SearchResult:
    """The answer of a search for a ceiling, which nothing confirms."""
    answer = conclude(_search_load(load), points, stages, "undecided", reason)
    if answer.saturation is None and ended_by == "found":
        ended_by = "undecided"
    return msgspec.structs.replace(answer, kind="sweep", ended_by=ended_by, tolerance=None)


def _point(stage: Stage, place: int) -> SearchPoint:
    completed = f"{stage.throughput.requests:.4g}/s completed of {stage.offered_rate or 0:.4g}/s"
    return SearchPoint(
        stage=place,
        purpose=POINT,
        outcome=MEASURED,
        reason=f"{completed}; {stage.stationary.verdict}",
        offered=stage.offered_rate,
        seconds=arrivals_seconds(stage),
    )


def _counted(measured: Sequence[Stage]) -> list[Stage]:
    """The stages that count, in order: of the search those that were measured wholly, of the sweep all."""
    searched = whole([stage for stage in measured if stage.purpose != POINT])
    return [*searched, *(stage for stage in measured if stage.purpose == POINT)]


def _sent(counted: Sequence[Stage]) -> list[int]:
    """The places of the stages that count: those of the sweep itself stand as they are, whoever spoilt them."""
    searched = [stage for stage in counted if stage.purpose != POINT]
    return [*valid_places(searched, latencies=False), *range(len(searched), len(counted))]


def _rounded(rate: float) -> float:
    """To six digits."""
    return round(rate, DIGITS - 1 - floor(log10(rate)))
