"""Repeats of a condition: each quantity's mean and its interval across them, beside the intervals within them."""

from typing import Final

import msgspec

from loadgen.profile.slo import PERCENTILES
from loadgen.report.tables import Shown, Write, interval, is_sufficient, per_second, percent, printable, significant
from loadgen.summary.summary import Latencies, Repeated, Stage
from loadgen.units import format_seconds

MAIN: Final = ("throughput.requests", "throughput.goodput", "ttft.p99", "itl.p99", "response.p99")
"""The quantities for where there is little room."""

_LATENCIES: Final = frozenset(Latencies.__struct_fields__)
_NAMES: Final = {
    "throughput.requests": "completed",
    "throughput.goodput": "goodput",
    "throughput.output_tokens": "output tokens",
    "throughput.prompt_tokens": "prompt tokens",
}


class RepeatRow(msgspec.Struct, frozen=True):
    """One quantity over the repeats of one condition, with its unit.

    `across` is the mean with Student's interval. `within` goes from the lowest to the highest end of the intervals
    that the repeats have by themselves; "" where the quantity has none. Where it is much narrower than `across`, the
    repeats differ by more than the noise inside each.
    """

    condition: str
    count: int
    quantity: str
    across: Shown
    within: str


def repeat_rows(repeats: list[Repeated], stages: list[Stage], wanted: tuple[str, ...] = ()) -> list[RepeatRow]:
    """The rows of all conditions; of the `wanted` quantities in their order, where any are named."""
    return [
        _row(repeated, name, stages)
        for repeated in repeats
        for name in wanted or repeated.values
        if name in repeated.values
    ]


def _row(repeated: Repeated, name: str, stages: list[Stage]) -> RepeatRow:
    value = repeated.values[name]
    write = _writer(name)
    own = [stages[place] for place in repeated.stages if 0 <= place < len(stages)]
    return RepeatRow(
        condition=printable(repeated.name),
        count=value.count,
        quantity=_NAMES.get(name, printable(name.replace(".", " ", 1))),
        across=Shown(write(value.mean), interval(value.ci, write)),
        within=interval(_hull(name, own), write),
    )


def _writer(name: str) -> Write:
    first = name.split(".", 1)[0]
    if first in _LATENCIES:
        return _seconds
    return {"throughput": per_second, "error_rate": percent, "attainment": percent}.get(first, significant)


def _seconds(value: float) -> str:
    """Student's interval of a few repeats may reach below zero."""
    return format_seconds(value) if value >= 0 else f"-{format_seconds(-value)}"


def _hull(name: str, stages: list[Stage]) -> tuple[float, float | None] | None:
    """From the lowest to the highest end of the intervals that the stages have by themselves; open where one is."""
    ends = [ci for stage in stages if (ci := _own_interval(name, stage)) is not None]
    if not ends:
        return None
    closed = [high for _, high in ends if high is not None]
    return min(low for low, _ in ends), max(closed) if len(closed) == len(ends) else None


def _own_interval(name: str, stage: Stage) -> tuple[float, float | None] | None:
    if name == "throughput.goodput":
        return stage.throughput.goodput_ci
    metric, _, percentile = name.partition(".")
    latency = stage.latency_seconds.named().get(metric)
    if latency is None or percentile not in PERCENTILES or not is_sufficient(latency, percentile):
        return None
    return latency.ci.get(percentile)
