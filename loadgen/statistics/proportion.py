"""Confidence intervals of a share and of a rate, from counts by interval of time.

As for percentiles (`confidence`), what follows in time is alike, so that the variance is estimated between blocks of
time, for several numbers of blocks, of which the widest counts.
"""

from math import hypot, log, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgen.statistics.confidence import T_975, relative_variance
from loadgen.statistics.histogram import Ints

Z_975: Final = 1.959964
"""The .975 quantile of the normal distribution (any table of it)."""


def wilson_interval(successes: int, trials: int, z_squared: float = Z_975 * Z_975) -> tuple[float, float]:
    """The 95 % interval of a share (E. B. Wilson, 1927); there is at least one trial.

    z_squared: of independent trials 1.96²; times v where the share varies v times as much as theirs.
    """
    share = successes / trials
    centre = share + z_squared / (2 * trials)
    half = sqrt(z_squared) * sqrt(share * (1 - share) / trials + z_squared / (4 * trials * trials))
    scale = 1 + z_squared / trials
    # At the ends the formula gives 0 and 1, which rounding must not move.
    low = (centre - half) / scale if successes else 0.0
    high = (centre + half) / scale if successes < trials else 1.0
    return low, high


def share_interval(trials: Ints, *successes: Ints) -> tuple[float, float] | None:
    """The 95 % interval of the share of the first `successes` among `trials`, both by intervals of equal length.

    It is Wilson's, with `z² = max over m of t(m-1, .975)² v_m` for m of 8, 10, 12, 16, 20 blocks of time, and v_m as in
    `confidence.widened_ranks`. Where all or none succeed v cannot be seen, and would be 1. So further counts may be
    given of a share that is likely to vary as much (of values below another limit): the largest v counts.

    None with fewer than 8 intervals that hold a trial.
    """
    if np.count_nonzero(trials) < min(T_975):
        return None
    widest = max(
        t * t * relative_variance(trials, counts, m)
        for m, t in T_975.items()
        if m <= trials.size
        for counts in successes
    )
    return wilson_interval(int(successes[0].sum()), int(trials.sum()), widest)


def rate_interval(events: Ints, seconds: NDArray[np.float64]) -> tuple[float, float] | None:
    """The 95 % interval of the rate (per second) of events, counted by intervals of time of these lengths.

    Batch means with Student's t. With T the length of all, r the rate, and m blocks of lengths T_j with k_j events:

        half = max over m of t(m-1, .975) sqrt(m/(m-1) * sum (k_j - r T_j)²) / T

    for m of 8, 10, 12, 16, 20 that there are intervals for. Where nothing happened, the upper end is that of a Poisson
    process, `-ln(.025) / T`: to see nothing in T is then as likely as 2.5 %.

    None with fewer than 8 intervals.
    """
    if events.size < min(T_975):
        return None
    length, total = float(seconds.sum()), int(events.sum())
    if not total:
        return 0.0, -log(0.025) / length
    half = max(t * _deviation(events, seconds, m) for m, t in T_975.items() if m <= events.size) / length
    return max(0.0, total / length - half), total / length + half


def _deviation(events: Ints, seconds: NDArray[np.float64], blocks: int) -> float:
    """The standard error of the sum of events, estimated between so many blocks."""
    edges = np.arange(blocks) * events.size // blocks
    counts, lengths = np.add.reduceat(events, edges), np.add.reduceat(seconds, edges)
    deviations = counts - events.sum() / seconds.sum() * lengths
    return sqrt(blocks / (blocks - 1) * float(np.square(deviations).sum()))


def product_interval(
    value: float, rate: tuple[float, tuple[float, float]], share: tuple[float, tuple[float, float]]
) -> tuple[float, float]:
    """The 95 % interval about `value`, the product of a rate and a share, each given with its own interval.

    The distances from a value to the ends of its interval stand for its standard errors, below and above apart, so
    that a skewed interval makes a skewed one (the method of variance estimates recovery: G. Y. Zou and A. Donner,
    "Construction of confidence limits about effect measures", Statistics in Medicine 27, 2008):

        low  = value - sqrt((s (r - r_low))² + (r (s - s_low))²)
        high = value + sqrt((s (r_high - r))² + (r (s_high - s))²)
    """
    r, (r_low, r_high) = rate
    s, (s_low, s_high) = share
    low = value - hypot(s * (r - r_low), r * (s - s_low))
    return max(0.0, low), value + hypot(s * (r_high - r), r * (s_high - s))
