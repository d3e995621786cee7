"""Stages that the generator spoilt: they are asked for again, so that one bad moment of a machine ends no search."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from loadgen.search.plans import arrivals_seconds, generator_fault
from loadgen.summary.summary import SearchPoint, SearchResult, Stage

TRIES: Final = 3
"""What spoils so many stages in a row is no bad moment: the generator is the bottleneck, and the search is told."""


def valid_places(stages: Sequence[Stage], *, latencies: bool) -> list[int]:
    """The places of the stages that a search is sent: all that the generator did not spoil, and the third in a row.

    latencies: whether the search looks at them, as in `plans.generator_fault`.
    """
    places: list[int] = []
    spoilt = 0
    for place, stage in enumerate(stages):
        spoilt = spoilt + 1 if generator_fault(stage, latencies=latencies) is not None else 0
        if spoilt in (0, TRIES):
            places.append(place)
            spoilt = 0
    return places


def with_invalid(found: SearchResult, places: Sequence[int], stages: Sequence[Stage]) -> SearchResult:
    """A result by the places of all stages, those that were asked for again among its points.

    places: of the stages that the search was sent, in their order, as `valid_places` gave them.
    """
    points = [replace(point, stage=places[point.stage]) for point in found.points]
    points += [_again(stages[place], place) for place in set(range(len(stages))) - set(places)]
    low, high = found.evidence
    return replace(
        found,
        points=sorted(points, key=lambda point: point.stage),
        evidence=(None if low is None else places[low], None if high is None else places[high]),
    )


def _again(stage: Stage, place: int) -> SearchPoint:
    return SearchPoint(
        stage=place,
        purpose=stage.purpose or stage.name,
        outcome="undecided",
        reason=f"asked for again: {generator_fault(stage)}",
        offered=stage.offered_rate if stage.intended_concurrency is None else float(stage.intended_concurrency),
        seconds=arrivals_seconds(stage),
    )
