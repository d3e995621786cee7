"""What an overloaded target completes: the estimate of its saturation rate that needs no threshold.

A target whose queue is never empty completes as fast as it can, whatever is offered. Where overload costs nothing,
that is its saturation rate.
"""

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.statistics.confidence import student_t_975
from loadgen.summary.summary import Stage

FEWEST_BATCHES: Final = 4
MOST_BATCHES: Final = 12
SERVICE_TIMES_PER_BATCH: Final = 2


class Completed(msgspec.Struct, frozen=True):
    """Completions per second with their 95 % confidence interval."""

    rate: float
    low: float
    high: float
    completions: int
    """How many the estimate rests on."""

    @property
    def error(self) -> float:
        """Half the width of the interval, as a share of the rate."""
        return (self.high - self.low) / (2 * self.rate)


def completed_rate(stages: Sequence[Stage], service_seconds: float) -> Completed | None:
    """The rate at which these stages completed requests in their windows, pooled; None where too little is known.

    It is meant for stages in which the target was overloaded throughout, so their warm-up must cover its filling.

    With outputs of fixed length a full batch ends together, and completions come in waves of the service time S. A
    plain count over a window of T that is no multiple of S is then off by up to a wave. So the rate is the slope of
    the least-squares line through the cumulative count N(t). Over 0 .. T that slope is

        12/T³ ∫ (t - T/2) N(t) dt  =  ∫ n(t) w(t) dt,    w(t) = 6/T x (1 - x),  x = t/T

    by parts, with n(t) the completions at t: a mean whose weights vanish at both ends. What a wave of period S adds
    to it falls as (S/T)², and not as S/T as in the plain count. Poisson completions, on the other hand, have
    `∫ w² = 1.2/T` for 1/T: 10 % more standard error. An interval from x1 to x2 has the weight W(x2) - W(x1) with
    W(x) = 3x² - 2x³.

    The interval is Student's, from the spread of batches of two service times or more (shorter ones would count the
    waves as noise), at most 12 a stage: with s² their variance about the mean of their stage, pooled, a stage of k
    batches has the variance 1.2 s²/k. Stages count by the lengths of their windows.

    A target whose service time grows a lot with its load may still be filling when the window begins. So where the
    second half of a window completed more than the first, beyond the noise, the second alone counts.

    service_seconds: the mean service time of the target before it was overloaded.
    """
    parts = [part for stage in stages if (part := _part(stage, service_seconds)) is not None]
    freedom = sum(part.batches - 1 for part in parts)
    if not freedom:
        return None
    seconds = sum(part.seconds for part in parts)
    rate = sum(part.rate * part.seconds for part in parts) / seconds
    spread = sum(part.squares for part in parts) / freedom
    variance = sum(part.seconds**2 * 1.2 * spread / part.batches for part in parts) / seconds**2
    half = student_t_975(freedom) * sqrt(variance)
    completions = sum(part.completions for part in parts)
    return Completed(rate, max(0.0, rate - half), rate + half, completions) if rate > 0 else None


class _Part(msgspec.Struct, frozen=True):
    """One stage: its slope, and its batches' rates as their number and their sum of squares about their mean."""

    rate: float
    seconds: float
    completions: int
    batches: int
    squares: float


def _part(stage: Stage, service_seconds: float) -> _Part | None:
    counts = np.array(list(_window_counts(stage)), float)
    if stage.series is None or counts.size < 2 * FEWEST_BATCHES:
        return None
    seconds = stage.series.interval
    early, late = np.array_split(counts, 2)
    if _rising(_batches(early, seconds, service_seconds), _batches(late, seconds, service_seconds)):
        counts = late
    rates = _batches(counts, seconds, service_seconds)
    squares = float(np.square(rates - rates.mean()).sum())
    return _Part(_slope(counts) / seconds, counts.size * seconds, round(counts.sum()), rates.size, squares)


def _batches(counts: NDArray[np.float64], interval_seconds: float, service_seconds: float) -> NDArray[np.float64]:
    """The mean rates of successive batches."""
    seconds = counts.size * interval_seconds
    wanted = int(seconds / (SERVICE_TIMES_PER_BATCH * service_seconds)) if service_seconds > 0 else MOST_BATCHES
    batches = np.array_split(counts, min(MOST_BATCHES, counts.size, max(FEWEST_BATCHES, wanted)))
    return np.array([batch.mean() for batch in batches]) / interval_seconds


def _rising(early: NDArray[np.float64], late: NDArray[np.float64]) -> bool:
    """Whether the rates of the second half are higher than those of the first by more than twice their noise."""
    noise = sqrt(early.var(ddof=1) / early.size + late.var(ddof=1) / late.size)
    return bool(late.mean() - early.mean() > 2 * noise)


def _slope(counts: NDArray[np.float64]) -> float:
    """The weighted mean of counts over equal intervals."""
    x = np.arange(counts.size + 1) / counts.size
    return float(np.diff(3 * x**2 - 2 * x**3) @ counts)


def _window_counts(stage: Stage) -> Iterator[int]:
    """Completions by interval, of those that lie wholly inside the window."""
    series = stage.series
    if series is None:
        return
    slack = series.interval * 1e-6
    first, end = stage.window.start - slack, stage.window.start + stage.window.seconds + slack
    for start, completed in zip(series.start, series.completed, strict=True):
        if start >= first and start + series.interval <= end:
            yield completed
