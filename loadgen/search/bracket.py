"""What the stages of a search for a rate say so far: the bracket, the service time, what overload completes."""

from collections.abc import Iterator, Sequence
from typing import Final

from loadgen.search.plans import mean_service_seconds
from loadgen.search.throughput import Completed, completed_rate
from loadgen.statistics.stationarity import UNSERVED_SHARE
from loadgen.summary.summary import Overload, SearchPoint, Stage

PASS: Final = "pass"  # noqa: S105
FAIL: Final = "fail"
UNDECIDED: Final = "undecided"
MEASURED: Final = "measured"

OVERLOADED: Final = 1.15
"""A target that is offered so many times what it completes is full all the time."""


def bracket_of(points: Sequence[SearchPoint]) -> tuple[SearchPoint | None, SearchPoint | None]:
    """The highest rate that passed and the lowest that failed; of two that contradict each other the later counts.

    The stages of a search grow longer, so the later is the better judge.
    """
    passed: list[SearchPoint] = []
    failed: list[SearchPoint] = []
    for point in points:
        rate = point.offered
        if rate is None:
            continue
        if point.outcome == PASS:
            passed.append(point)
            failed = [other for other in failed if _rate(other) > rate]
        elif point.outcome == FAIL:
            failed.append(point)
            passed = [other for other in passed if _rate(other) < rate]
    return max(passed, key=_rate, default=None), min(failed, key=_rate, default=None)


def service_seconds(points: Sequence[SearchPoint], stages: Sequence[Stage]) -> float:
    """The mean service time of the highest rate that passed, or else of the probe at low load, the first stage.

    It grows with the load, but under overload it grows with the length of the stage and says nothing.

    Raises:
        LookupError: no request completed in them.
    """
    stable, _ = bracket_of(points)
    seconds = mean_service_seconds(stages[stable.stage]) if stable is not None else None
    seconds = seconds if seconds is not None else mean_service_seconds(stages[0])
    if seconds is None:
        raise LookupError("no request completed")
    return seconds


def overload_completes(points: Sequence[SearchPoint], stages: Sequence[Stage]) -> Completed | None:
    """What the stages completed together that were offered clearly more than that; None without any."""
    candidates = list(_overloaded(points, stages))
    if not candidates:
        return None
    service = service_seconds(points, stages)
    rough = completed_rate(candidates, service)
    if rough is None:
        return None
    full = [stage for stage in candidates if (stage.offered_rate or 0) >= OVERLOADED * rough.rate]
    return completed_rate(full, service)


def rough_rate(points: Sequence[SearchPoint], stages: Sequence[Stage]) -> float | None:
    """What the least overloaded stage completed, as a first guess; None where none was overloaded or completed any."""
    least = min(_overloaded(points, stages), key=lambda stage: stage.offered_rate or 0, default=None)
    return least.throughput.requests or None if least is not None else None


def overload_of(points: Sequence[SearchPoint], stages: Sequence[Stage], saturation: float) -> Overload | None:
    """What the most overloaded stage completed, and what it lost against the saturation rate.

    A loss is stated where a stage that passed completed more than the upper end of what all overloaded stages do.
    """
    most = max(_overloaded(points, stages), key=lambda stage: stage.offered_rate or 0, default=None)
    if most is None:
        return None
    completed = completed_rate([most], service_seconds(points, stages))
    pooled = overload_completes(points, stages) or completed
    if completed is None or pooled is None:
        return None
    best = max((stages[p.stage].throughput.requests for p in points if p.outcome == PASS), default=0.0)
    loss = max(0.0, 1 - completed.rate / saturation) if best > pooled.high else 0.0
    return Overload(most.offered_rate or 0.0, completed.rate, loss)


def unserved(stage: Stage) -> float:
    """The share of the window's requests that were turned away: failed, dropped or lost."""
    books = stage.window.books
    return (books.failures + books.dropped + books.lost) / books.intended if books.intended else 0.0


def overload_sign(stage: Stage, low_load: Stage) -> str | None:
    """Why a stage shows its target overloaded, in a sentence; None where it does not.

    Either its backlog grows, or it turns away so many more requests than at low load that the backlog need not grow:
    over 4 %, as much as growth is allowed.
    """
    rates = f"{stage.throughput.requests:.4g}/s completed of {stage.offered_rate or 0:.4g}/s"
    if stage.stationary.growing:
        return f"the backlog grows: {rates}"
    away = unserved(stage)
    if away - unserved(low_load) > UNSERVED_SHARE:
        return f"{away:.1%} of the requests failed or were dropped: {rates}"
    return None


def _overloaded(points: Sequence[SearchPoint], stages: Sequence[Stage]) -> Iterator[Stage]:
    return (stages[point.stage] for point in points if point.outcome == FAIL and point.offered is not None)


def _rate(point: SearchPoint) -> float:
    return point.offered or 0.0
