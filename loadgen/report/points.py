"""The points of a sweep or a search, a column at a time: what was asked of the target, what came, and what it told."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from loadgen.profile.slo import PERCENTILES
from loadgen.report.tables import (
    ABSENT,
    NOTHING,
    Shown,
    error_rate,
    interval,
    offered,
    percent,
    printable,
    setting_text,
    shown_in_one_unit,
    significant,
)
from loadgen.summary.summary import Latencies, Latency, SearchPoint, SearchResult, Stage, Summary

GOOD: Final = "good"
BAD: Final = "bad"
DOUBT: Final = "doubt"

STATIONARY: Final = {"stable": "stable", "unstable": "UNSTABLE", "too_short": "too short"}
_STATIONARY_TONES: Final = {"stable": GOOD, "unstable": BAD, "too_short": DOUBT}
_OUTCOME_TONES: Final = {"pass": GOOD, "fail": BAD, "undecided": DOUBT}

_LATENCIES: Final = (
    ("ttft", "p50"),
    ("ttft", "p99"),
    ("itl", "p99"),
    ("tpot", "p99"),
    ("response", "p50"),
    ("response", "p99"),
)


class Cell(msgspec.Struct, frozen=True):
    """A value, and how it strikes the eye: "", `good`, `bad` or `doubt`."""

    value: Shown
    tone: str = ""


class Column(msgspec.Struct, frozen=True):
    """A heading and a cell for each stage."""

    heading: str
    cells: list[Cell]


def is_comparison(summary: Summary) -> bool:
    """Whether the stages are there to be compared (a sweep, a search, a grid, repeats) rather than each for itself."""
    load = summary.profile.get("load")
    kind = load.get("kind") if isinstance(load, dict) else None
    return (
        summary.search is not None
        or bool(summary.repeats)
        or kind in ("sweep", "saturate")
        or any(stage.settings or stage.repeat is not None or stage.purpose for stage in summary.stages)
    )


def promised_percentiles(summary: Summary) -> list[tuple[str, str]]:
    """The latencies and percentiles that the profile's SLO sets limits on, such as `ttft` and `p95`."""
    slo = summary.profile.get("slo")
    limits = slo.items() if isinstance(slo, dict) else ()
    return [
        (metric, name)
        for metric, values in limits
        if isinstance(values, dict) and metric in Latencies.__struct_fields__
        for name in values
        if name in PERCENTILES
    ]


def point_columns(
    stages: Sequence[Stage], search: SearchResult | None = None, promised: Sequence[tuple[str, str]] = ()
) -> list[Column]:
    """The table of the points, a row a stage; columns that no stage has anything for are left out.

    promised: the latencies and percentiles that decide; they have a column whatever the others are.
    """
    latencies = [*(one for one in promised if one not in _LATENCIES), *_LATENCIES]
    told = {point.stage: point for point in search.points} if search is not None else {}
    points = [told.get(place) for place in range(len(stages))]

    def column(heading: str, cell: Callable[[Stage], Cell]) -> Column:
        return Column(heading, [cell(stage) for stage in stages])

    def told_column(heading: str, cell: Callable[[SearchPoint], Cell]) -> Column:
        return Column(heading, [Cell(NOTHING) if point is None else cell(point) for point in points])

    columns = [
        Column("#", [_text(str(number)) for number in range(1, len(stages) + 1)]),
        column("offered", lambda stage: _text(offered(stage))),
        *_settings(stages),
        column("repeat", lambda stage: _text(ABSENT if stage.repeat is None else str(stage.repeat))),
        column("purpose", lambda stage: _text(ABSENT if stage.purpose is None else printable(stage.purpose))),
        told_column("outcome", lambda point: _text(printable(point.outcome), _OUTCOME_TONES.get(point.outcome, ""))),
        column("completed /s", lambda stage: _text(significant(stage.throughput.requests))),
        column("goodput /s", _goodput),
        column("attainment", _attainment),
        column("output tokens/s", lambda stage: _text(significant(stage.throughput.output_tokens))),
        *(
            Column(f"{metric} {name}", [_latency(stage, metric, name) for stage in stages])
            for metric, name in latencies
        ),
        column("errors", _errors),
        column("stationary", _stationary),
        told_column("why", lambda point: _text(printable(point.reason))),
    ]
    has_gaps = any(one.heading == "itl p99" and _says_something(one) for one in columns)
    return [one for one in columns if _says_something(one) and not (one.heading == "tpot p99" and has_gaps)]


def setting_keys(stages: Sequence[Stage]) -> dict[str, str]:
    """The swept keys in the order of their first appearance, each with the shortest end of it that is its own.

    `value` says nothing, so that of `workload.output_tokens.value` this is `output_tokens`.
    """
    keys = list(dict.fromkeys(key for stage in stages for key in stage.settings))
    told = [key.removesuffix(".value") for key in keys]
    return {key: printable(_own_end(whole, told)) for key, whole in zip(keys, told, strict=True)}


def _own_end(key: str, keys: Sequence[str]) -> str:
    parts = key.split(".")
    ends = (".".join(parts[-length:]) for length in range(1, len(parts) + 1))
    return next((end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1), key)


def _settings(stages: Sequence[Stage]) -> list[Column]:
    return [
        Column(
            short, [_text(setting_text(stage.settings[key]) if key in stage.settings else ABSENT) for stage in stages]
        )
        for key, short in setting_keys(stages).items()
    ]


def _says_something(column: Column) -> bool:
    return any(cell.value.text != ABSENT for cell in column.cells)


def _text(text: str, tone: str = "") -> Cell:
    return Cell(Shown(text, known=text != ABSENT), tone)


def _goodput(stage: Stage) -> Cell:
    rates = stage.throughput
    if rates.goodput is None:
        return Cell(NOTHING)
    return Cell(Shown(significant(rates.goodput), interval(rates.goodput_ci, significant)))


def _attainment(stage: Stage) -> Cell:
    share = stage.attainment
    return Cell(NOTHING if share is None else Shown(percent(share.value), interval(share.ci, percent)))


def _latency(stage: Stage, metric: str, percentile: str) -> Cell:
    latency: Latency | None = stage.latency_seconds.named().get(metric)
    return Cell(NOTHING if latency is None else shown_in_one_unit(latency, percentile))


def _errors(stage: Stage) -> Cell:
    share = error_rate(stage.window.books)
    return _text(ABSENT if share is None else percent(share), BAD if share else "")


def _stationary(stage: Stage) -> Cell:
    verdict = stage.stationary.verdict
    if verdict == "too_short" and stage.stationary.growing:
        return _text("growing", BAD)
    return _text(STATIONARY.get(verdict, printable(verdict)), _STATIONARY_TONES.get(verdict, ""))
