"""What a report says of latencies, points and promises, as rows of words; `lines.py` has the rest.

How they look is the affair of `console.py` and `html.py`. Strings that come from a server, a dataset or a profile pass
through `printable` here; markup is escaped where they are shown.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from loadgen.metrics.summary import PERCENTILES, Books, Latencies, Latency, SloCheck, SloVerdict, Stage
from loadgen.units import format_seconds

ABSENT: Final = "-"
_BRIEF: Final = 400
STATIONARY: Final = {"stable": "stable", "unstable": "UNSTABLE", "too_short": "too short"}

Write = Callable[[float], str]
"""Writes seconds for people."""


class Shown(msgspec.Struct, frozen=True):
    """A value as people see it: with its interval ("" where it has none), and whether it is known at all."""

    text: str
    interval: str = ""
    known: bool = True

    def __str__(self) -> str:
        return f"{self.text} {self.interval}".rstrip()


NOTHING: Final = Shown(ABSENT, known=False)

# --- numbers ----------------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """The text on one line, with control, escape and bidirectional characters spelt out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))


def brief(text: str) -> str:
    """The text as `printable` writes it, cut to 400 characters: what a dying process said last can be long.

    The whole of it stands in `summary.json`.
    """
    line = printable(text)
    return line if len(line) <= _BRIEF else f"{line[: _BRIEF - 1]}…"


def significant(value: float) -> str:
    """A number for people: three significant digits, all digits before the point, thousands set apart."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return ABSENT
    rounded = float(f"{value:.3g}")
    decimals = 2 - math.floor(math.log10(abs(rounded)))
    return f"{value:,.0f}" if decimals <= 0 else f"{rounded:.{decimals}f}"


def per_second(rate: float) -> str:
    """A rate, as `19.8/s`."""
    return f"{significant(rate)}/s"


def percent(fraction: float) -> str:
    """A share, to a tenth of a percent where that says something."""
    points = 100 * fraction
    if points == 0 or abs(points) >= 10:
        return f"{points:.0f} %"
    return f"{points:.1f} %" if abs(points) >= 0.1 else f"{points:.1g} %"


def error_rate(books: Books) -> float | None:
    """The share of the intended requests that failed; None where none was intended."""
    return books.failures / books.intended if books.intended else None


# --- latencies --------------------------------------------------------------------------------------------------------


class LatencyRow(msgspec.Struct, frozen=True):
    """One latency, all values in `unit`."""

    metric: str
    unit: str
    mean: str
    percentiles: dict[str, Shown]
    max: str
    count: str


def latency_rows(latencies: Latencies) -> list[LatencyRow]:
    """A row for each latency that the stage has, failures by kind at the end."""
    rows = [_latency_row(name, latency) for name, latency in latencies.named().items()]
    failed = sorted(latencies.failed.items())
    return rows + [_latency_row(f"failed {printable(kind)}", latency) for kind, latency in failed]


def _latency_row(metric: str, latency: Latency) -> LatencyRow:
    unit, per_unit = _unit(latency)

    def write(seconds: float) -> str:
        return significant(seconds * per_unit)

    bound = "≥" if latency.lower_bounds else ""
    return LatencyRow(
        metric=metric,
        unit=unit,
        mean=bound + write(latency.mean),
        percentiles={name: _shown(latency, name, write) for name in PERCENTILES},
        max=bound + write(latency.max),
        count=f"{latency.count:,}",
    )


def _unit(latency: Latency) -> tuple[str, float]:
    if latency.p99 >= 1:
        return "s", 1.0
    return ("us", 1e6) if latency.p99 < 1e-3 else ("ms", 1e3)


def shown(latency: Latency | None, percentile: str) -> Shown:
    """A percentile with its unit; "-" for a latency that the stage does not have."""
    return _shown(latency, percentile, format_seconds) if latency else NOTHING


def _shown(latency: Latency, percentile: str, write: Write) -> Shown:
    if not is_sufficient(latency, percentile):
        return Shown(f"n/a ({latency.count:,} samples)", known=False)
    bound = "≥" if latency.at_least.get(percentile, False) else ""
    return Shown(bound + write(latency.percentile(percentile)), _interval(latency.ci.get(percentile), write))


def is_sufficient(latency: Latency, percentile: str) -> bool:
    """Whether at least 10 samples lie beyond the percentile: what the summary says, else what its count implies."""
    implied = latency.count * (1 - PERCENTILES[percentile]) >= 10 - 1e-9
    return latency.sufficient.get(percentile, implied)


def _interval(ci: tuple[float, float | None] | None, write: Write) -> str:
    if ci is None:
        return ""
    low, high = ci
    return f"[{write(low)}, {'?' if high is None else write(high)}]"


# --- the points of a sweep --------------------------------------------------------------------------------------------

POINT_COLUMNS: Final = (
    "#",
    "offered",
    "achieved",
    "goodput",
    "ttft p50",
    "ttft p99",
    "itl p50",
    "itl p99",
    "response p99",
    "errors",
    "stationary",
)


def point_cells(number: int, stage: Stage) -> tuple[str, ...]:
    """One stage as a row under `POINT_COLUMNS`."""
    latencies = stage.latency_seconds
    goodput = stage.throughput.goodput
    errors = error_rate(stage.window.books)
    return (
        str(number),
        offered(stage),
        per_second(stage.throughput.requests),
        ABSENT if goodput is None else per_second(goodput),
        _short(latencies.ttft, "p50"),
        _short(latencies.ttft, "p99"),
        _short(latencies.itl, "p50"),
        _short(latencies.itl, "p99"),
        _short(latencies.response, "p99"),
        ABSENT if errors is None else percent(errors),
        STATIONARY.get(stage.stationary.verdict, printable(stage.stationary.verdict)),
    )


def offered(stage: Stage) -> str:
    """What was asked of the target: a rate, or the slots of a closed loop."""
    if stage.offered_rate is not None:
        return f"{stage.offered_rate:,.6g}/s"
    return ABSENT if stage.intended_concurrency is None else f"{stage.intended_concurrency:,} slots"


def _short(latency: Latency | None, percentile: str) -> str:
    value = shown(latency, percentile)
    return value.text if value.known or latency is None else "n/a"


# --- promises ---------------------------------------------------------------------------------------------------------


class SloRow(msgspec.Struct, frozen=True):
    """One promise held against one stage; `outcome` is `met`, `missed` or `undecided`."""

    stage: str
    promise: str
    value: Shown
    outcome: str


def slo_rows(checks: list[SloCheck]) -> list[SloRow]:
    """A row for each check, in the order given."""
    return [_slo_row(check) for check in checks]


def _slo_row(check: SloCheck) -> SloRow:
    write = percent if check.percentile is None else format_seconds
    name = check.metric if check.percentile is None else f"{check.metric} {check.percentile}"
    value = NOTHING if check.value is None else Shown(write(check.value), _interval(check.ci, write))
    return SloRow(
        stage=printable(check.stage),
        promise=f"{printable(name)} ≤ {write(check.limit)}",
        value=value,
        outcome=check.outcome,
    )


def slo_line(slo: SloVerdict) -> str:
    """The SLO in one line, as `SLO missed: of 4 checks 1 missed, 1 undecided, 2 met`."""
    verdict = {True: "met", False: "missed", None: "undecided"}[slo.met]
    outcomes = [check.outcome for check in slo.checks]
    counts = {outcome: outcomes.count(outcome) for outcome in ("missed", "undecided", "met")}
    parts = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count)
    return f"SLO {verdict}: of {len(outcomes):,} check{'' if len(outcomes) == 1 else 's'} {parts or 'none decided'}"
