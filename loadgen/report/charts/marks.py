"""What the charts over several stages mark beside the data: the answer of a search, its bracket, the knee, the limits
of the SLO."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any, Final

import msgspec

from loadgen.profile.slo import PERCENTILES
from loadgen.report.charts.axis import Axis
from loadgen.report.charts.knee import latency_knee
from loadgen.report.search import load_text
from loadgen.report.tables import significant
from loadgen.summary.summary import Latencies, SearchResult, Summary
from loadgen.units import parse_duration

_LATENCIES: Final = frozenset(Latencies.__struct_fields__)


class Limit(msgspec.Struct, frozen=True):
    """The limit on a percentile of a latency."""

    metric: str
    percentile: str
    seconds: float


class Mark(msgspec.Struct, frozen=True):
    """A place along the axis, or a stretch of it: `kind` is `answer`, `bracket` or `knee`; None is an open end."""

    kind: str
    text: str
    about: str
    low: float | None
    high: float | None


def limits_of(summary: Summary) -> list[Limit]:
    """The limits on latencies, from the checks, or from the profile where nothing was checked; each once."""
    checks = summary.verdict.slo.checks if summary.verdict.slo is not None else []
    found = [Limit(one.metric, one.percentile, one.limit) for one in checks if one.percentile is not None]
    promised = summary.profile.get("slo")
    if not found and isinstance(promised, dict):
        found = [
            Limit(metric, percentile, seconds)
            for metric, table in promised.items()
            if isinstance(table, dict)
            for percentile, limit in table.items()
            if (seconds := _seconds(limit)) is not None
        ]
    return [one for one in dict.fromkeys(found) if one.metric in _LATENCIES and one.percentile in PERCENTILES]


def _seconds(limit: object) -> float | None:
    try:
        return parse_duration(limit).seconds if isinstance(limit, str) else None
    except ValueError:
        return None


def marks_of(summary: Summary, axis: Axis) -> list[Mark]:
    """What is marked along the axis. The knee is found here where no search told one, of a single curve."""
    search = summary.search
    marks: list[Mark] = []
    knee = None
    if search is not None:
        marks += _found(search)
        knee = search.knee
    if knee is None and axis.is_rate and len(axis.curves) == 1:
        knee = latency_knee(axis.stages)
    if knee is not None:
        text = f"knee {significant(knee)}"
        marks.append(Mark("knee", text, "The knee (Kneedle) is for the eye only.", knee, knee))
    return marks


def _found(search: SearchResult) -> list[Mark]:
    marks = []
    low, high = search.bracket
    if low is not None or high is not None:
        marks.append(Mark("bracket", "", "The bracket of the search is shaded.", low, high))
    if search.saturation is not None:
        word = "ceiling" if search.kind == "sweep" else "saturation"
        text = f"{word} {load_text(search, search.saturation)}"
        marks.append(Mark("answer", text, "The upright line is its answer.", search.saturation, search.saturation))
    return marks


def shapes_of(
    marks: Sequence[Mark], *, is_log: bool, left: float, right: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The marks as plotly's shapes and annotations; an open end reaches to the `left` or `right` end of the axis.

    On a logarithmic axis plotly wants shapes at their values and annotations at the logarithm of theirs.
    """
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    shared = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    for mark in marks:
        x0, x1 = left if mark.low is None else mark.low, right if mark.high is None else mark.high
        if mark.kind == "bracket":
            shapes.append({"type": "rect", "x0": x0, "x1": x1, "line": {"width": 0}, **shared})
            continue
        dash = "dot" if mark.kind == "knee" else "solid"
        shapes.append({"type": "line", "x0": x0, "x1": x1, "line": {"width": 1.5, "dash": dash}, **shared})
        notes.append(
            {
                "x": math.log10(x0) if is_log else x0,
                "y": 0.98 - 0.09 * len(notes),
                "yref": "paper",
                "yanchor": "top",
                "xanchor": "right",
                "text": escape(mark.text),
                "showarrow": False,
            }
        )
    return shapes, notes
