"""The search for the highest load that keeps an SLO: up until it breaks, then bisection by probes of the SLO.

The load is a rate here; `concurrency` seeks slots of a closed loop in the same way, on its own `Axis`.
"""

from collections.abc import Callable, Generator, Sequence
from math import sqrt
from typing import Final

import msgspec

from loadgen.load.stages import StagePlan
from loadgen.profile import Saturate
from loadgen.profile.slo import Slo
from loadgen.search.plans import arrivals_seconds, at_rate, generator_fault, low_load, mean_service_seconds, silence
from loadgen.search.probe import Probe, probe, promises
from loadgen.summary.summary import SearchPoint, SearchResult, Stage
from loadgen.units import NS_PER_SECOND

Search = Generator[StagePlan, Stage, SearchResult]
Tries = Generator[StagePlan, Stage, Probe]

FIRST_LOOK_SERVICE_TIMES: Final = 15
SHORTEST_LOOK_SECONDS: Final = 2.0
PROBE_SERVICE_TIMES: Final = 240
PROBE_ARRIVALS: Final = 20_000
QUICK_SERVICE_TIMES: Final = 30
QUICK_ARRIVALS: Final = 400
FIRST_IN_FLIGHT: Final = 4
"""The first rate keeps about so many requests in flight."""
HIGHEST: Final = 1e7
DOWN: Final = 4
WIDENING: Final = 1.25
MOST_UNDECIDED: Final = 5
"""After so many in a row that told nothing, and none that passed, lower ones will not: they bring fewer requests."""
FEWEST_REQUESTS: Final = 20
"""A rate that brings fewer in the longest stage is not worth trying."""

DOUBLING: Final = "doubling"
BISECTION: Final = "bisection"


class Axis(msgspec.Struct, frozen=True):
    """What the search varies.

    plan: a stage at a value: load, value, seconds, purpose, seconds to the first look.
    offered: the value of a stage.
    rate: about how many requests per second a value brings, from the mean service time in seconds.
    first: the first value to double from, likewise.
    between: a value between two others to try next, none of those given; None where the two are as close as they
        need be, to within the tolerance.
    lower: a value below another, none of those given; None where there is none.
    words: a value for people.
    few: there are so few values that one may be tried at length of which a short stage told nothing.
    """

    objective: str
    plan: Callable[[Saturate, float, float, str, float], StagePlan]
    offered: Callable[[Stage], float | None]
    rate: Callable[[float, float], float]
    first: Callable[[Saturate, float], float]
    between: Callable[[float, float, float, Sequence[float]], float | None]
    lower: Callable[[float, Sequence[float]], float | None]
    words: Callable[[float], str]
    few: bool


class SearchOver(Exception):
    """The search cannot go on; `ended_by` as in `SearchResult`, and the reason in a sentence."""

    def __init__(self, ended_by: str, reason: str) -> None:
        super().__init__(reason)
        self.ended_by = ended_by
        self.reason = reason


def slo_search(load: Saturate, slo: Slo, points: list[SearchPoint]) -> Search:
    """The search for a rate: asks for stages one by one, is sent each as it was measured, returns the answer.

    points: empty; each stage is added as it is sent, so that `conclude` can be called at any moment.

    A few requests one after the other give the mean service time S and show a target that misses its SLO even so.
    Then the rate is doubled from `start_rate`, or about 4/S, until the SLO breaks, in stages too short (30 S) to prove
    that it is kept; if it breaks at the first rate, a quarter of that is tried, and so on. From there on it is bisected
    between the highest rate that passed and the lowest that failed, in probes that are looked at after 15 S, 30 S, ...
    (`probe.decided`) and given up as undecided after 240 S or, if that takes longer, 20,000 arrivals (one slot needs
    arrivals, not time), but never more than `max_stage`. S is that of the highest rate that did not fail.

    An undecided rate splits the bracket: it is bisected on below the lowest such rate and above the highest, until
    neither gap is wider than the tolerance. What then lies between the undecided rates stays so.
    """
    return search_along(RATES, load, slo, points)


def search_along(axis: Axis, load: Saturate, slo: Slo, points: list[SearchPoint]) -> Search:
    """`slo_search` along an axis."""
    try:
        yield from _Seeker(axis, load, slo, points).seek()
    except SearchOver as over:
        return conclude_along(axis, load, points, over.ended_by, over.reason)
    return conclude_along(axis, load, points, "found", "")


# --- how it goes ------------------------------------------------------------------------------------------------------


class _Seeker:
    """What the search knows: all points tried, the mean service time, and a value that is likely to pass."""

    def __init__(self, axis: Axis, load: Saturate, slo: Slo, points: list[SearchPoint]) -> None:
        self._axis = axis
        self._load = load
        self._slo = slo
        self._points = points
        self._service = 0.0
        self._likely: float | None = None
        self._completed: list[float] = []

    def seek(self) -> Generator[StagePlan, Stage, None]:
        first = yield low_load(self._load)
        self._low_load(first)
        yield from self._double()
        while (value := self._next()) is not None:
            yield from self._try(value, BISECTION)

    def _low_load(self, stage: Stage) -> None:
        why = silence(stage)
        if why is None:
            found = probe(self._slo, stage)
            if found.outcome == "fail":
                why = f"the target misses the SLO at the lowest load, one request after the other: {found.reason}"
        service = mean_service_seconds(stage)
        if why is not None or service is None:
            self._add(stage, Probe("fail", why or "the target completed nothing"))
            raise SearchOver("target", self._points[-1].reason)
        self._add(stage, Probe("measured", f"the mean service time is {service:.4g} s at low load"))
        self._service = service

    def _double(self) -> Generator[StagePlan, Stage, None]:
        """Up by 2 until the SLO breaks; where it does from the first, down by 4 until it does not.

        Down there is not far where values are few.
        """
        axis = self._axis
        value = axis.first(self._load, self._service)
        while (found := (yield from self._try(value, DOUBLING))).outcome != "fail":
            if self._flat():
                ended_by = "found" if found.outcome == "pass" else "undecided"
                raise SearchOver(ended_by, f"beyond {axis.words(value)} throughput no longer grows")
            value *= 2
            if value > HIGHEST:
                raise SearchOver("generator", f"the target keeps the SLO at all loads up to {axis.words(value / 2)}")
        value = min(point.offered or value for point in self._points[1:])
        while self._likely is None and not axis.few:
            value = self._worth(value / DOWN)
            yield from self._try(value, DOUBLING)

    def _next(self) -> float | None:
        """The next value of the bisection; None where the bracket is as narrow as it can be."""
        passed, failed = ends(self._points)
        undecided = undecided_between(self._points, passed, failed)
        high = _offered(failed)
        if passed is None:
            return self._below(undecided[0] if undecided else high)
        low = _offered(passed)
        if not undecided:
            return self._between(low, high)
        below = self._between(low, undecided[0])
        return below if below is not None else self._between(undecided[-1], high)

    def _below(self, high: float) -> float:
        """While nothing has passed: between a value that is likely to pass and the lowest that did not, or lower."""
        if self._likely is not None and self._likely < high:
            value = self._between(self._likely, high)
            if value is not None:
                return value
        start = high if self._likely is None else min(self._likely, high)
        self._likely = self._worth(self._axis.lower(start, self._told()))
        return self._likely

    def _between(self, low: float, high: float) -> float | None:
        return self._axis.between(low, high, self._load.tolerance, self._told())

    def _told(self) -> list[float]:
        """The values that are not tried again."""
        told = [p for p in self._points[1:] if not self._axis.few or p.purpose == BISECTION or p.outcome != "undecided"]
        return [_offered(point) for point in told]

    def _worth(self, value: float | None) -> float:
        """The value, where enough requests come at it in the longest stage.

        Raises:
            SearchOver: they do not, so that nothing is left to try.
        """
        longest = self._load.max_stage / NS_PER_SECOND
        told = any(point.outcome != "undecided" for point in self._points[-MOST_UNDECIDED:])
        if told and value is not None and self._axis.rate(value, self._service) * longest >= FEWEST_REQUESTS:
            return value
        lowest = min(self._points[1:], key=_offered)
        words = self._axis.words(_offered(lowest))
        if lowest.outcome == "fail":
            raise SearchOver("target", f"the target keeps up with no load that was tried, down to {words}")
        raise SearchOver("undecided", f"stages of {longest:.4g} s cannot tell, down to {words}: {lowest.reason}")

    def _try(self, value: float, purpose: str) -> Tries:
        """Run one stage at a value, and say what it told."""
        stage = yield self._plan(value, purpose)
        found = probe(self._slo, stage)
        self._add(stage, found)
        if found.outcome == "undecided" and stage.ended_by == "decided":
            # What a look decided, the whole stage does not tell: it is run again, and looked at late.
            stage = yield self._plan(value, purpose, patient=True)
            found = probe(self._slo, stage)
            self._add(stage, found)
        if found.outcome != "fail" and (found.outcome == "pass" or self._promising(stage)):
            self._likely = max(value, self._likely or 0.0)
            self._service = max(self._service, mean_service_seconds(stage) or 0.0)
        self._completed.append(stage.throughput.requests)
        return found

    def _plan(self, value: float, purpose: str, *, patient: bool = False) -> StagePlan:
        quick = purpose == DOUBLING
        times, arrivals = (QUICK_SERVICE_TIMES, QUICK_ARRIVALS) if quick else (PROBE_SERVICE_TIMES, PROBE_ARRIVALS)
        look = max(FIRST_LOOK_SERVICE_TIMES * self._service, SHORTEST_LOOK_SECONDS)
        seconds = max(times * self._service, arrivals / self._axis.rate(value, self._service), 2 * look)
        return self._axis.plan(self._load, value, seconds, purpose, seconds / 2 if patient else look)

    def _promising(self, stage: Stage) -> bool:
        """Whether an undecided stage is on the side of passing by its values."""
        checks = promises(self._slo, stage)
        return not stage.stationary.growing and all(
            one.value is not None and (one.value >= one.limit if one.at_least else one.value <= one.limit)
            for one in checks
        )

    def _flat(self) -> bool:
        """Whether two doublings of slots brought no more throughput; an open loop ends by its backlog instead."""
        if self._axis.objective == "rate" or len(self._completed) < 3:
            return False
        return max(self._completed[-2:]) < (1 + self._load.tolerance) * self._completed[-3]

    def _add(self, stage: Stage, found: Probe) -> None:
        """Note a point.

        Raises:
            SearchOver: the stage told of the generator, and not of the target.
        """
        fault = generator_fault(stage)
        point = SearchPoint(
            stage=len(self._points),
            purpose=stage.purpose or stage.name,
            outcome=found.outcome if fault is None else "undecided",
            reason=found.reason if fault is None else fault,
            offered=self._axis.offered(stage),
            seconds=arrivals_seconds(stage),
        )
        self._points.append(point)
        if fault is not None:
            raise SearchOver("generator", f"{fault}; the target's limit was not reached")


# --- the answer -------------------------------------------------------------------------------------------------------


def conclude(load: Saturate, points: Sequence[SearchPoint], ended_by: str, reason: str) -> SearchResult:
    """The answer that the rates tried so far allow.

    ended_by: as in `SearchResult`; `found` becomes `undecided` where undecided rates lie further apart than the
        tolerance.
    reason: why the search ended where it was not over, in a sentence; may be empty.
    """
    return conclude_along(RATES, load, points, ended_by, reason)


def conclude_along(
    axis: Axis, load: Saturate, points: Sequence[SearchPoint], ended_by: str, reason: str
) -> SearchResult:
    """`conclude` along an axis."""
    passed, failed = ends(points)
    open_between = undecided_between(points, passed, failed)
    undecided = (open_between[0], open_between[-1]) if open_between else None
    if ended_by == "found" and undecided is not None and undecided[1] > (1 + load.tolerance) * undecided[0]:
        ended_by = "undecided"
    return SearchResult(
        kind="saturate",
        objective=axis.objective,
        ended_by=ended_by,
        reason="; ".join(filter(None, (reason, _answer(axis, passed, failed, undecided)))),
        points=list(points),
        saturation=None if passed is None else passed.offered,
        bracket=(None if passed is None else passed.offered, None if failed is None else failed.offered),
        tolerance=load.tolerance,
        evidence=(None if passed is None else passed.stage, None if failed is None else failed.stage),
        undecided=undecided,
    )


def ends(points: Sequence[SearchPoint]) -> tuple[SearchPoint | None, SearchPoint | None]:
    """The highest point that passed and the lowest that failed."""
    tried = [point for point in points if point.offered is not None]
    passed = [point for point in tried if point.outcome == "pass"]
    failed = [point for point in tried if point.outcome == "fail"]
    return max(passed, key=_offered, default=None), min(failed, key=_offered, default=None)


def undecided_between(
    points: Sequence[SearchPoint], passed: SearchPoint | None, failed: SearchPoint | None
) -> list[float]:
    """The values between both ends at which a whole probe could not decide, ascending."""
    low = 0.0 if passed is None else _offered(passed)
    high = HIGHEST if failed is None else _offered(failed)
    found = [_offered(point) for point in points if point.purpose == BISECTION and point.outcome == "undecided"]
    return sorted(value for value in found if low < value < high)


def _answer(
    axis: Axis, passed: SearchPoint | None, failed: SearchPoint | None, undecided: tuple[float, float] | None
) -> str:
    parts = [f"the SLO is kept at {axis.words(_offered(passed))}"] if passed is not None else []
    if failed is not None and failed.offered is not None:
        parts.append(f"it breaks at {axis.words(failed.offered)} ({failed.reason})")
    if undecided is not None:
        low, high = map(axis.words, undecided)
        parts.append(f"it cannot be told {f'at {low}' if low == high else f'from {low} to {high}'}")
    return ", ".join(parts)


def _offered(point: SearchPoint | None) -> float:
    """Its rate, or concurrency.

    Raises:
        LookupError: there is no such point, or it has none.
    """
    if point is None or point.offered is None:
        raise LookupError("no point that offered a rate")
    return point.offered


# --- rates ------------------------------------------------------------------------------------------------------------


def _rate_plan(load: Saturate, rate: float, seconds: float, purpose: str, look_seconds: float) -> StagePlan:
    return at_rate(load, rate, seconds, purpose, first_look_seconds=look_seconds)


def _rate_between(low: float, high: float, tolerance: float, told: Sequence[float]) -> float | None:
    if high / low - 1 <= tolerance:
        return None
    rate = sqrt(low * high)
    while rate in told:
        rate *= 1 + tolerance / 8
    return rate


RATES: Final = Axis(
    objective="rate",
    plan=_rate_plan,
    offered=lambda stage: stage.offered_rate,
    rate=lambda rate, _: rate,
    first=lambda load, service: load.start_rate or FIRST_IN_FLIGHT / service,
    between=_rate_between,
    lower=lambda rate, _: rate / WIDENING,
    words=lambda rate: f"{rate:.4g}/s",
    few=False,
)
