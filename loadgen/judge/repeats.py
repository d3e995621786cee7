"""The same stage run several times: its mean over the repeats, and how far they differ."""

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any

import msgspec

from loadgen.profile.slo import PERCENTILES
from loadgen.statistics.confidence import student_t_975
from loadgen.summary.summary import AcrossRepeats, Repeated, Stage


def across(values: Sequence[float]) -> AcrossRepeats:
    """Mean of at least one value, with Student's 95 % interval: mean ± t(n - 1, .975) s / sqrt(n).

    It takes the repeats for independent and their values for about normal; it holds what differs from one repeat to the
    next, which the interval within one repeat cannot see.
    """
    count, mean = len(values), sum(values) / len(values)
    if count < 2:
        return AcrossRepeats(count, mean, None)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    half = student_t_975(count - 1) * sqrt(variance / count)
    return AcrossRepeats(count, mean, (mean - half, mean + half))


def repeats_of(stages: Sequence[Stage]) -> list[Repeated]:
    """The conditions that were run several times, in the order of their first stage."""
    groups: dict[bytes, list[int]] = {}
    for number, stage in enumerate(stages):
        if stage.repeat is not None:
            condition = (stage.kind, stage.offered_rate, stage.intended_concurrency, _base_name(stage), stage.settings)
            groups.setdefault(msgspec.json.encode(condition), []).append(number)
    return [
        Repeated(
            name=_base_name(stages[numbers[0]]),
            stages=numbers,
            values=dict(_values([stages[number] for number in numbers])),
        )
        for numbers in groups.values()
        if len(numbers) > 1
    ]


def _base_name(stage: Stage) -> str:
    return stage.name.removesuffix(f" (repeat {stage.repeat})")


def _values(stages: Sequence[Stage]) -> Iterable[tuple[str, AcrossRepeats]]:
    """Every quantity that all of the repeats have; a percentile only where it is sufficient in each of them."""
    for name, values in _quantities(stages).items():
        if len(values) == len(stages):
            yield name, across(values)


def _quantities(stages: Sequence[Stage]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for stage in stages:
        latencies = stage.latency_seconds.named()
        known: dict[str, Any] = {
            f"{metric}.{name}": latency.percentile(name)
            for metric, latency in latencies.items()
            for name in PERCENTILES
            if latency.sufficient.get(name)
        }
        known |= {f"{metric}.mean": latency.mean for metric, latency in latencies.items()}
        known |= {f"throughput.{name}": getattr(stage.throughput, name) for name in stage.throughput.__struct_fields__}
        for name, value in known.items():
            if isinstance(value, int | float):  # an interval has no mean
                found.setdefault(name, []).append(value)
    return found
