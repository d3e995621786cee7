"""What a report says of latencies and promises, as rows of words; `points.py` and `lines.py` have the rest.

How they look is the affair of `console.py` and `html.py`. Strings that come from a server, a dataset or a profile pass
through `printable` here; markup is escaped where they are shown.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from loadgen.measure.outcome import Books
from loadgen.profile.slo import PERCENTILES
from loadgen.summary.summary import Latencies, Latency, SloCheck, SloVerdict, Stage
from loadgen.units import format_seconds

ABSENT: Final = "-"
_BRIEF: Final = 400
_SETTING: Final = 60

SIMULATED: Final = "SIMULATED: in virtual time, on a simulated target; nothing here was measured on a real one"
"""What stands at the top of the report of such a run."""

Write = Callable[[float], str]
"""Writes a value for people."""


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


def setting_text(value: Any) -> str:
    """A swept key's value as people write it; a long one is cut, so that it does not take the table for itself."""
    if isinstance(value, float):
        return f"{value:,.6g}"
    line = printable(value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode())
    return line if len(line) <= _SETTING else f"{line[: _SETTING - 1]}…"


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


def shown_in_one_unit(latency: Latency, percentile: str) -> Shown:
    """A percentile with its unit, its interval in the same unit without it: `1.20 s [0.950, 1.41]`."""
    value = _shown(latency, percentile, format_seconds)
    if not value.known:
        return Shown("n/a", known=False)
    seconds = latency.percentile(percentile)
    per_unit = 1.0 if seconds >= 1 else 1e3 if seconds >= 0.9995e-3 else 1e6
    ci = latency.ci.get(percentile)
    return Shown(value.text, interval(ci, lambda end: significant(end * per_unit)))


def _shown(latency: Latency, percentile: str, write: Write) -> Shown:
    if not is_sufficient(latency, percentile):
        return Shown(f"n/a ({latency.count:,} samples)", known=False)
    bound = "≥" if latency.at_least.get(percentile, False) else ""
    return Shown(bound + write(latency.percentile(percentile)), interval(latency.ci.get(percentile), write))


def is_sufficient(latency: Latency, percentile: str) -> bool:
    """Whether at least 10 samples lie beyond the percentile: what the summary says, else what its count implies."""
    implied = latency.count * (1 - PERCENTILES[percentile]) >= 10 - 1e-9
    return latency.sufficient.get(percentile, implied)


def interval(ci: tuple[float, float | None] | None, write: Write) -> str:
    """An interval as people see it, `?` where it is open above; "" for none."""
    if ci is None:
        return ""
    low, high = ci
    return f"[{write(low)}, {'?' if high is None else write(high)}]"


def offered(stage: Stage) -> str:
    """What was asked of the target: a rate, or the slots of a closed loop."""
    if stage.offered_rate is not None:
        return f"{stage.offered_rate:,.6g}/s"
    return ABSENT if stage.intended_concurrency is None else slots(stage.intended_concurrency)


def slots(concurrency: float) -> str:
    """The slots of a closed loop, as `64 slots`."""
    return f"{concurrency:,.0f} slot{'' if concurrency == 1 else 's'}"


# --- promises ---------------------------------------------------------------------------------------------------------

_WRITTEN: Final[dict[str, Write]] = {
    "seconds": format_seconds,
    "share": percent,
    "requests/s": per_second,
    "tokens/s": lambda rate: f"{significant(rate)} tokens/s",
}
"""How a value is written, by its unit."""
_ENDS_WRITTEN: Final[dict[str, Write]] = {**_WRITTEN, "requests/s": significant, "tokens/s": significant}
"""How the ends of its interval are, which need no unit where there is one only."""


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
    write = _WRITTEN.get(check.unit, significant)
    ends = _ENDS_WRITTEN.get(check.unit, significant)
    text = None if check.value is None else write(check.value) if check.sufficient else "n/a"
    value = NOTHING if text is None else Shown(text, interval(check.ci, ends))
    return SloRow(stage=printable(check.stage), promise=promise(check), value=value, outcome=check.outcome)


def promise(check: SloCheck) -> str:
    """What was promised, in its own unit: `ttft p99 ≤ 500 ms`, `goodput ≥ 20.0/s`."""
    name = check.metric if check.percentile is None else f"{check.metric} {check.percentile}"
    return f"{printable(name)} {'≥' if check.at_least else '≤'} {_WRITTEN.get(check.unit, significant)(check.limit)}"


def checks_by_stage(stages: Sequence[Stage], checks: Sequence[SloCheck]) -> list[list[SloCheck]]:
    """The checks of each stage. Stages of one name, such as repeats, have theirs one after the other."""
    left: dict[str, deque[SloCheck]] = {}
    for one in checks:
        left.setdefault(one.stage, deque()).append(one)
    names = Counter(stage.name for stage in stages)
    each = {name: -(-len(left.get(name, ())) // count) for name, count in names.items()}
    return [[left[stage.name].popleft() for _ in range(each[stage.name]) if left[stage.name]] for stage in stages]


def slo_line(slo: SloVerdict) -> str:
    """The SLO in one line, as `SLO missed: of 4 checks 1 missed, 1 undecided, 2 met`."""
    verdict = {True: "met", False: "missed", None: "undecided"}[slo.met]
    outcomes = [check.outcome for check in slo.checks]
    counts = {outcome: outcomes.count(outcome) for outcome in ("missed", "undecided", "met")}
    parts = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count)
    return f"SLO {verdict}: of {len(outcomes):,} check{'' if len(outcomes) == 1 else 's'} {parts or 'none decided'}"
