"""The search for saturation from outside: which stage is next, and what has been found.

Each kind of search is a generator: it yields a plan, is sent the stage as it was measured, and returns its answer. It
holds no clock and no chance, so it is played again from the first stage on whenever something is asked of it: a run
that was killed is resumed, and a report made again, with the same questions and the same answer.
"""

from collections.abc import Callable, Generator, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple, TypeVar

from loadgen.load.stages import StagePlan
from loadgen.profile import Saturate
from loadgen.profile.slo import Slo
from loadgen.search import concurrency as concurrency_search
from loadgen.search import rate as rate_search
from loadgen.search import slo as slo_search
from loadgen.search.invalid import valid_places, with_invalid
from loadgen.search.plans import MEASURED_WHOLLY
from loadgen.summary.summary import SearchPoint, SearchResult, Stage

Answer = TypeVar("Answer")

CUTS: Final = {
    "max_time": "max_time was over before the search was",
    "interrupted": "a person ended the search early",
    "killed": "the run was killed before the search was over",
    "failure": "the run failed before the search was over",
}


def next_stage(load: Saturate, slo: Slo | None, measured: Sequence[Stage]) -> StagePlan | None:
    """The stage to measure next; None where the search is over.

    A stage that was cut short together with its run tells nothing: it is asked for again, unless it was `abort_when`
    that ended it, which would end it again.
    """
    if measured and measured[-1].ended_by == "abort_when":
        return None
    stages = whole(measured)
    asked = replay(
        _kind(load, slo).search(load, slo, []),
        [stages[place] for place in valid_places(stages, latencies=slo is not None)],
    )
    return asked if isinstance(asked, StagePlan) else None


def result(load: Saturate, slo: Slo | None, measured: Sequence[Stage], cut: str | None) -> SearchResult:
    """What the search found.

    cut: what ended the run before the search was over, as `SearchResult.ended_by` names it: the answer is then the
        best bracket so far. None: nothing did, but where the search is not over, something failed.
    """
    everything = whole(measured)
    places = valid_places(everything, latencies=slo is not None)
    found = _result(load, slo, [everything[place] for place in places], measured, cut)
    return with_invalid(found, places, everything)


def _result(
    load: Saturate, slo: Slo | None, stages: Sequence[Stage], measured: Sequence[Stage], cut: str | None
) -> SearchResult:
    points: list[SearchPoint] = []
    found = replay(_kind(load, slo).search(load, slo, points), stages)
    if isinstance(found, SearchResult):
        return found
    ended_by = cut or "failure"
    so_far = SoFar(load, slo, points, stages, ended_by, cut_reason(measured, ended_by))
    return _kind(load, slo).conclude(so_far)


def replay(search: Generator[StagePlan, Stage, Answer], stages: Sequence[Stage]) -> StagePlan | Answer:
    """What a search asks next once it was sent these stages, or its answer."""
    try:
        asked = next(search)
        for stage in stages:
            asked = search.send(stage)
    except StopIteration as over:
        answer: Answer = over.value
        return answer
    return asked


def whole(measured: Sequence[Stage]) -> list[Stage]:
    """The stages up to the first that was cut short, with which its run ended."""
    return list(takewhile(lambda stage: stage.ended_by in MEASURED_WHOLLY, measured))


def cut_reason(measured: Sequence[Stage], ended_by: str) -> str:
    """Why a search ended before it was over, in a sentence."""
    if measured and measured[-1].ended_by == "abort_when":
        return f"abort_when ended the stage {measured[-1].name}"
    return CUTS.get(ended_by, f"the search ended early: {ended_by}")


def _kind(load: Saturate, slo: Slo | None) -> "Kind":
    return KINDS[load.objective, slo is not None]


class SoFar(NamedTuple):
    """What a search has that was cut short: what it was asked, its points and stages, what ended it and why."""

    load: Saturate
    slo: Slo | None
    points: list[SearchPoint]
    stages: Sequence[Stage]
    ended_by: str
    reason: str


class Kind(NamedTuple):
    """A kind of search: how it goes, noting its points in the list that it is given, and the best answer so far."""

    search: Callable[[Saturate, Any, list[SearchPoint]], Generator[StagePlan, Stage, SearchResult]]
    conclude: Callable[[SoFar], SearchResult]


KINDS: Final[dict[tuple[str, bool], Kind]] = {
    ("rate", False): Kind(
        rate_search.search, lambda s: rate_search.conclude(s.load, s.points, s.stages, s.ended_by, s.reason)
    ),
    ("rate", True): Kind(slo_search.slo_search, lambda s: slo_search.conclude(s.load, s.points, s.ended_by, s.reason)),
    **dict.fromkeys(
        (("concurrency", False), ("concurrency", True)),
        Kind(
            concurrency_search.concurrency_search,
            lambda s: concurrency_search.conclude(s.load, s.slo, s.points, s.ended_by, s.reason),
        ),
    ),
}
"""By `load.objective`, and whether there is an SLO. A new search is one new file and a line here."""
