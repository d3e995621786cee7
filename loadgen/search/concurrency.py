"""The search for a concurrency: how many requests to keep in flight in a closed loop.

Under an SLO it is the most that keep it. Without one it is the fewest that bring about all the throughput there is:
more only wait. A closed loop never overloads its target: its latencies are conditioned on the target's own pace.
"""

from collections.abc import Generator, Sequence
from math import floor, sqrt
from typing import Final

from loadgen.load.stages import StagePlan
from loadgen.profile import Saturate
from loadgen.profile.slo import Slo
from loadgen.search.plans import (
    arrivals_seconds,
    at_concurrency,
    generator_fault,
    low_load,
    mean_service_seconds,
    silence,
)
from loadgen.search.slo import WIDENING, Axis, Search, SearchOver, conclude_along, search_along
from loadgen.summary.summary import SearchPoint, SearchResult, Stage

FEWEST_SLOTS: Final = 2
MOST_SLOTS: Final = 1 << 20

WINDOW_SERVICE_TIMES: Final = 60
FILLING_SERVICE_TIMES: Final = 5
ENOUGH_COMPLETIONS: Final = 200
SHORTEST_SECONDS: Final = 1.0


def concurrency_search(load: Saturate, slo: Slo | None, points: list[SearchPoint]) -> Search:
    """The search for a concurrency: asks for stages one by one, is sent each as it was measured, returns the answer.

    points: empty; each stage is added as it is sent, so that `conclude` can be called at any moment.

    With an SLO it goes as `slo.slo_search`, by whole slots, and ends too where two doublings of the slots bring
    no more throughput: from there on nothing but the wait for a place in the batch grows.

    Without one the slots are doubled until that brings less than the tolerance; the most that any stage completed is
    the plateau. Then whole numbers are bisected for the fewest slots that complete at least 1 - tolerance of it. The
    bracket is the most slots that complete less, and the answer.

    Slots start together, so requests of one length go through the target in waves of N. Counting them is wrong by at
    most one wave: a window of 60 service times, of what the service time may be at twice the slots before, holds 60
    waves or 30, and a wave is 3 % of it at most. Of requests of random length 200 are counted at least.
    """
    if slo is not None:
        return search_along(SLOTS, load, slo, points)
    return _plateau_search(load, points)


def conclude(
    load: Saturate, slo: Slo | None, points: Sequence[SearchPoint], ended_by: str, reason: str
) -> SearchResult:
    """The answer that the concurrencies tried so far allow; meaning as in `slo.conclude`."""
    if slo is not None:
        return conclude_along(SLOTS, load, points, ended_by, reason)
    return _conclude_plateau(load, points, ended_by, reason)


# --- the most slots that keep an SLO ----------------------------------------------------------------------------------


def _slots_plan(load: Saturate, slots: float, seconds: float, purpose: str, look_seconds: float) -> StagePlan:
    return at_concurrency(load, round(slots), seconds, purpose, first_look_seconds=look_seconds)


def _slots_between(low: float, high: float, tolerance: float, told: Sequence[float]) -> float | None:
    """The whole number nearest to the geometric mean that was not tried."""
    if high / low - 1 <= tolerance:
        return None
    middle = sqrt(low * high)
    left = [slots for slots in range(floor(low) + 1, round(high)) if slots not in told]
    return min(left, key=lambda slots: abs(slots - middle), default=None)


def _slots_lower(slots: float, told: Sequence[float]) -> float | None:
    below = max(1, min(floor(slots / WIDENING), round(slots) - 1))
    return next((float(fewer) for fewer in range(below, 0, -1) if fewer not in told), None)


SLOTS: Final = Axis(
    objective="concurrency",
    plan=_slots_plan,
    offered=lambda stage: None if stage.intended_concurrency is None else float(stage.intended_concurrency),
    rate=lambda slots, service: slots / service,
    first=lambda load, service: FEWEST_SLOTS,
    between=_slots_between,
    lower=_slots_lower,
    words=lambda slots: f"concurrency {slots:.0f}",
    few=True,
)


# --- the fewest slots that bring the throughput -----------------------------------------------------------------------


def _plateau_search(load: Saturate, points: list[SearchPoint]) -> Search:
    stages: list[Stage] = []
    try:
        yield from _low_load(load, points, stages)
        slots = FEWEST_SLOTS
        yield from _measure(load, points, stages, slots, "doubling")
        while stages[-1].throughput.requests >= (1 + load.tolerance) * stages[-2].throughput.requests:
            slots *= 2
            if slots > MOST_SLOTS:
                raise SearchOver("generator", f"concurrency {slots // 2} does not fill the target")
            yield from _measure(load, points, stages, slots, "doubling")
        while (between := _next(load, points)) is not None:
            yield from _measure(load, points, stages, between, "bisection")
    except SearchOver as over:
        return _conclude_plateau(load, points, over.ended_by, over.reason)
    return _conclude_plateau(load, points, "found", "")


def _low_load(load: Saturate, points: list[SearchPoint], stages: list[Stage]) -> Generator[StagePlan, Stage, None]:
    stage = yield low_load(load)
    why = silence(stage)
    if why is not None:
        points.append(_point(stage, 0, "fail", why))
        raise SearchOver("target", why)
    _add(load, points, stages, stage)


def _measure(
    load: Saturate, points: list[SearchPoint], stages: list[Stage], slots: int, purpose: str
) -> Generator[StagePlan, Stage, None]:
    """Measure so many slots, for as long as the stage of the most slots below them says."""
    fewer = max((stage for stage in stages if _slots(stage) < slots), key=_slots)
    service = mean_service_seconds(fewer) or 0.0
    completed = fewer.throughput.requests
    seconds = max(
        WINDOW_SERVICE_TIMES * service, ENOUGH_COMPLETIONS / completed if completed else 0.0, SHORTEST_SECONDS
    )
    warmup = FILLING_SERVICE_TIMES * service
    stage = yield at_concurrency(load, slots, warmup + seconds, purpose, warmup_seconds=warmup)
    _add(load, points, stages, stage)


def _add(load: Saturate, points: list[SearchPoint], stages: list[Stage], stage: Stage) -> None:
    """Note a stage, and judge all of them anew by the most that any has completed so far.

    Raises:
        SearchOver: the stage told of the generator, and not of the target.
    """
    fault = generator_fault(stage, latencies=False)
    if fault is not None:
        points.append(_point(stage, len(points), "undecided", fault))
        raise SearchOver("generator", f"{fault}; the target's limit was not reached")
    stages.append(stage)
    most = max(one.throughput.requests for one in stages)
    points[:] = [_judged(load, one, place, most) for place, one in enumerate(stages)]


def _judged(load: Saturate, stage: Stage, place: int, most: float) -> SearchPoint:
    completed = stage.throughput.requests
    share = completed / most if most else 0.0
    words = f"{completed:.4g}/s completed, {share:.1%} of the most"
    return _point(stage, place, "pass" if share >= 1 - load.tolerance else "fail", words)


def _point(stage: Stage, place: int, outcome: str, reason: str) -> SearchPoint:
    return SearchPoint(
        stage=place,
        purpose=stage.purpose or stage.name,
        outcome=outcome,
        reason=reason,
        offered=float(_slots(stage)),
        seconds=arrivals_seconds(stage),
    )


def _slots(stage: Stage) -> int:
    return stage.intended_concurrency or 0


def _next(load: Saturate, points: Sequence[SearchPoint]) -> int | None:
    """Slots between the most that complete too little and the fewest that do not; None where they are close."""
    short, enough = _plateau_ends(points)
    if short is None or enough is None or short.offered is None or enough.offered is None:
        return None
    slots = _slots_between(short.offered, enough.offered, load.tolerance, ())
    return None if slots is None else round(slots)


def _plateau_ends(points: Sequence[SearchPoint]) -> tuple[SearchPoint | None, SearchPoint | None]:
    """The fewest slots that bring the throughput, and before them the most that do not."""
    enough = min((p for p in points if p.outcome == "pass"), key=lambda p: p.offered or 0.0, default=None)
    least = 0.0 if enough is None or enough.offered is None else enough.offered
    below = [p for p in points if p.outcome == "fail" and (p.offered or 0.0) < least]
    return max(below, key=lambda p: p.offered or 0.0, default=None), enough


def _conclude_plateau(load: Saturate, points: Sequence[SearchPoint], ended_by: str, reason: str) -> SearchResult:
    short, enough = _plateau_ends(points)
    over = ended_by == "found"
    parts = [reason] if reason else []
    if enough is not None and enough.offered is not None:
        what = f"at least {1 - load.tolerance:.0%} of the throughput" + ("" if over else " seen so far")
        parts.append(f"concurrency {enough.offered:.0f} is the fewest that brings {what} ({enough.reason})")
    if short is not None and short.offered is not None:
        parts.append(f"concurrency {short.offered:.0f} brings less ({short.reason})")
    return SearchResult(
        kind="saturate",
        objective="concurrency",
        ended_by=ended_by,
        reason="; ".join(parts),
        points=list(points),
        saturation=None if enough is None else enough.offered,
        bracket=(None if short is None else short.offered, None if enough is None else enough.offered),
        tolerance=load.tolerance,
        evidence=(None if short is None else short.stage, None if enough is None else enough.stage),
    )
