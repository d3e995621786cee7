"""Lengths in tokens: from a distribution of the profile and a number in [0, 1) to a whole number of tokens.

No random numbers are made here: whoever draws `u` decides what a length depends on.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from statistics import NormalDist
from typing import Final, assert_never

from loadgen.profile import KINDS, Choice, Fixed, Histogram, Lengths, Lognormal, Normal, Uniform, Workload

_STANDARD_NORMAL: Final = NormalDist()
_SMALLEST_U: Final = 2.0**-54
"""Stands for u = 0 where the normal quantile has no value: half of the smallest step of a 53-bit number."""
_MEAN_POINTS: Final = 10_000


def inverse_cdf(lengths: Lengths) -> Callable[[float], int]:
    """The inverse distribution function: the length in tokens below which a share `u` of all lengths lies.

    `u` is in [0, 1); uniform `u` give lengths of this distribution. The result grows with `u` and lies within
    `min` and `max` where these are given, and is never below 1. A call costs about a microsecond.
    """
    match lengths:
        case int():
            return _constant(lengths)
        case Fixed():
            return _constant(lengths.value)
        case Uniform():
            return _uniform(lengths.min, lengths.max)
        case Normal():
            return _normal(lengths)
        case Lognormal():
            return _lognormal(lengths)
        case Choice():
            return _choice(lengths)
        case Histogram():
            return _histogram(lengths)
        case _:
            assert_never(lengths)


def mean(lengths: Lengths) -> float:
    """The mean length in tokens, after rounding and clamping.

    Exact for every kind but normal and lognormal. For these it is the midpoint rule over 10,000 quantiles,
    which misses the end of the tail: 0.02 % too low for a lognormal of cv 1 without `max`, 0.25 % for one of
    cv 3.
    """
    match lengths:
        case int():
            return float(lengths)
        case Fixed():
            return float(lengths.value)
        case Uniform():
            return (lengths.min + lengths.max) / 2
        case Choice():
            return _weighted_mean(lengths.values, lengths.weights)
        case Histogram():
            # A bin [low, high) holds the whole numbers low .. high - 1, equally likely.
            middles = [(low + high - 1) / 2 for low, high in pairwise(lengths.edges)]
            return _weighted_mean(middles, lengths.weights)
        case Normal() | Lognormal():
            at = inverse_cdf(lengths)
            return sum(at((i + 0.5) / _MEAN_POINTS) for i in range(_MEAN_POINTS)) / _MEAN_POINTS
        case _:
            assert_never(lengths)


def mean_prompt(workload: Workload) -> float:
    """The mean number of tokens that a request of this workload sends: of all its inputs, and a completion to score."""
    if workload.kind == "transcribe" or workload.prompt_tokens is None:
        return 0.0
    prompt = mean(workload.prompt_tokens) * (workload.inputs + (workload.kind == "rerank"))
    if workload.kind == "score" and workload.output_tokens is not None:
        prompt += mean(workload.output_tokens)
    return prompt


def mean_output(workload: Workload) -> float | None:
    """The mean number of tokens that a request asks for; None where the model ends by itself."""
    kind = KINDS[workload.kind]
    if kind.lengths_asked:
        return None if workload.output_tokens is None else mean(workload.output_tokens)
    return kind.output_tokens


def _constant(value: int) -> Callable[[float], int]:
    return lambda u: value


def _uniform(low: int, high: int) -> Callable[[float], int]:
    count = high - low + 1
    return lambda u: min(low + int(u * count), high)


def _normal(lengths: Normal) -> Callable[[float], int]:
    centre, sd = lengths.mean, lengths.sd
    clamp = _clamp(lengths.min, lengths.max)
    return lambda u: clamp(centre + sd * _z(u))


def _lognormal(lengths: Lognormal) -> Callable[[float], int]:
    """exp(mu + sigma z) has the mean m and the coefficient of variation cv for sigma^2 = ln(1 + cv^2) and
    mu = ln m - sigma^2 / 2 (solve m = exp(mu + sigma^2 / 2) and cv^2 = exp(sigma^2) - 1)."""
    variance = math.log1p(lengths.cv**2)
    mu, sigma = math.log(lengths.mean) - variance / 2, math.sqrt(variance)
    clamp = _clamp(lengths.min, lengths.max)
    return lambda u: clamp(math.exp(mu + sigma * _z(u)))


def _choice(lengths: Choice) -> Callable[[float], int]:
    weights = lengths.weights or (1.0,) * len(lengths.values)
    pairs = sorted((value, weight) for value, weight in zip(lengths.values, weights, strict=True) if weight > 0)
    values = [value for value, _ in pairs]
    bounds = list(accumulate(weight for _, weight in pairs))
    return lambda u: values[min(bisect_right(bounds, u * bounds[-1]), len(values) - 1)]


def _histogram(lengths: Histogram) -> Callable[[float], int]:
    edges = pairwise(lengths.edges)
    bins = [(*edge, weight) for edge, weight in zip(edges, lengths.weights, strict=True) if weight > 0]
    bounds = [0.0, *accumulate(weight for _, _, weight in bins)]

    def at(u: float) -> int:
        rank = u * bounds[-1]
        i = min(bisect_right(bounds, rank), len(bins)) - 1
        low, high, weight = bins[i]
        return min(low + int((rank - bounds[i]) / weight * (high - low)), high - 1)

    return at


def _z(u: float) -> float:
    return _STANDARD_NORMAL.inv_cdf(u or _SMALLEST_U)


def _clamp(low: int, high: int | None) -> Callable[[float], int]:
    """Round to the nearest whole number, then clamp."""
    if high is None:
        return lambda value: max(low, int(value + 0.5))
    return lambda value: min(high, max(low, int(value + 0.5)))


def _weighted_mean(values: Sequence[float], weights: Sequence[float] | None) -> float:
    if weights is None:
        return sum(values) / len(values)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
