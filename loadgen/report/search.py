"""What a search found, in plain sentences: its answer, its bracket with the evidence, and how it ended."""

from typing import Final

import msgspec

from loadgen.report.lines import Line
from loadgen.report.points import BAD, DOUBT, GOOD
from loadgen.report.tables import brief, per_second, percent, slots
from loadgen.summary.summary import SearchResult, Summary

_SOUND: Final = ("found", "undecided")
"""The ends that a search comes to by itself."""
_CUT_SHORT: Final = ("max_time", "interrupted", "killed", "failure")
_ENDED: Final = {
    "found": "the search was carried through",
    "undecided": "the search went on until only loads were left that no stage could decide",
    "max_time": "its time was over",
    "interrupted": "a person ended it early",
    "target": "the target does not answer, or fails from the first",
    "generator": "the generator was the bottleneck, and the target was not reached",
    "killed": "the run was killed",
    "failure": "the run failed",
}


class Answer(msgspec.Struct, frozen=True):
    """The answer in one line, how it strikes the eye (`good`, `bad`, `doubt`), and what stands behind it."""

    headline: str
    tone: str
    lines: list[Line]


def answer_of(summary: Summary) -> Answer | None:
    """What the search of a run found; None where it was none."""
    search = summary.search
    if search is None:
        return None
    under = ", under the SLO" if isinstance(summary.profile.get("slo"), dict) else ""
    lines = [
        Line("ended", _ending(search)),
        Line("bracket", _bracket(search)),
        *_evidence(search),
        *_undecided(search),
        *_overload(search),
    ]
    return Answer(_headline(search, under), _tone(search), lines)


def load_text(search: SearchResult, value: float) -> str:
    """A rate, or a concurrency where that is sought, to four digits."""
    return slots(value) if search.objective == "concurrency" else f"{value:,.4g}/s"


def _headline(search: SearchResult, under: str) -> str:
    what = "ceiling of the sweep" if search.kind == "sweep" else f"saturation {_objective(search)}"
    if search.saturation is None:
        return f"No {what} was found{under}."
    found = f"{load_text(search, search.saturation)}{under}"
    if search.ended_by in _SOUND:
        return f"{what[0].upper()}{what[1:]}: {found}"
    least = "at least " if search.saturation == search.bracket[0] else ""
    return f"Best {what} so far: {least}{found}. The search did not come to its end."


def _objective(search: SearchResult) -> str:
    return "concurrency" if search.objective == "concurrency" else "rate"


def _tone(search: SearchResult) -> str:
    if search.saturation is None:
        return BAD
    return GOOD if search.ended_by == "found" else DOUBT


def _ending(search: SearchResult) -> str:
    what = _ENDED.get(search.ended_by, brief(search.ended_by))
    if not search.reason:
        return what
    # The reason of one that was cut short begins with what cut it.
    return brief(search.reason) if search.ended_by in _CUT_SHORT else f"{what}: {brief(search.reason)}"


def _bracket(search: SearchResult) -> str:
    low, high = search.bracket
    if low is None and high is None:
        return "none: no load passed, and none failed"
    if low is None:
        return f"below {_load(search, high)}: nothing that was tried passed"
    if high is None:
        return f"{_load(search, low)} or more: nothing that was tried failed"
    apart = f", {percent(high / low - 1)} apart" if low > 0 else ""
    return f"between {_load(search, low)} and {_load(search, high)}{apart}"


def _load(search: SearchResult, value: float | None) -> str:
    return "?" if value is None else load_text(search, value)


def _evidence(search: SearchResult) -> list[Line]:
    """What the stages said that prove the ends of the bracket."""
    points = {point.stage: point for point in search.points}
    lines = []
    for label, stage in zip(("passed", "failed"), search.evidence, strict=True):
        point = None if stage is None else points.get(stage)
        if point is not None:
            at = "" if point.offered is None else f" at {load_text(search, point.offered)}"
            lines.append(Line(label, f"stage {point.stage + 1}{at}: {brief(point.reason)}"))
    return lines


def _undecided(search: SearchResult) -> list[Line]:
    if search.undecided is None:
        return []
    low, high = search.undecided
    if low == high:
        return [Line("undecided", f"{load_text(search, low)} could not be decided")]
    return [Line("undecided", f"from {load_text(search, low)} to {load_text(search, high)} nothing could be decided")]


def _overload(search: SearchResult) -> list[Line]:
    overload = search.overload
    if overload is None or overload.loss <= 0:
        return []
    text = (
        f"of {per_second(overload.offered)} offered the target completed no more than "
        f"{per_second(overload.completed)}: overload costs it {percent(overload.loss)} of its saturation rate"
    )
    return [Line("overload", text)]
