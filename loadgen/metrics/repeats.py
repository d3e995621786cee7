"""The same stage run several times: its mean over the repeats, and how far they differ."""

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any, Final

import msgspec

from loadgen.metrics.summary import PERCENTILES, AcrossRepeats, Repeated, Stage

_T_975: Final = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
"""The .975 quantiles of Student's t with 1, 2, ... 20 degrees of freedom (any table of t)."""


def student_t_975(degrees: int) -> float:
    """The .975 quantile of Student's t; beyond 20 degrees of freedom a little wider than it is.

    z + (z³ + z) / (4 df) with z = 1.95996 is the beginning of its expansion in 1/df (Fisher and Cornish, 1960) and is
    short by less than 0.3 % there; 1 % is added to be on the safe side.
    """
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = 1.959964
    return min(_T_975[-1], 1.01 * (z + (z**3 + z) / (4 * degrees)))


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
