"""Whether a stage was in a steady state, and when it got there.

`warm_up` says how much of its beginning to leave out; `judge` whether the rest was stable. Both look at effects, not
at significance: tests for a trend in the number in flight cry wolf on a third of stable queues (docs/metrics.md).
"""

from enum import StrEnum
from math import ceil, sqrt
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

MSER_BATCH: Final = 5
FEWEST_BATCHES: Final = 10

UNSERVED_SHARE: Final = 0.04
GROWTH_SIGMAS: Final = 3
ENOUGH_SERVICE_TIMES: Final = 35
ENOUGH_ARRIVALS: Final = 2_000


class WarmUp(msgspec.Struct, frozen=True):
    """How many means of the series to leave out at its beginning.

    at_half: the cut is at half of the series, the latest that is allowed: no steady state was found before it, which
        hints that there is none.
    """

    cut: int
    at_half: bool


def warm_up(*series: NDArray[np.float64]) -> WarmUp:
    """MSER-5 truncation: the latest cut that any of the series asks for.

    A series holds means over equal steps of time, such as the number in flight or the TTFT; a step without a sample
    is NaN. A series of fewer than 50 means asks for no cut: the statistic is drawn to the few that a late cut leaves,
    and puts it at half of steady noise in 12 % of series of 50 means, 5 % of 100, 38 % of 20.

    Each series is averaged in batches of 5. Leaving out the first d of them, the mean of the n - d others has the
    squared standard error of about `sum (z_i - mean)² / (n - d)²`; the d up to n / 2 with the smallest is chosen
    (K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69, 1997,
    with the batches of White, Cobb and Spratt, 2000). Batches without a sample count for nothing.
    """
    cuts = [_mser_cut(means) for means in series]
    return max(cuts, key=lambda one: (one.cut, one.at_half), default=WarmUp(0, False))


def _mser_cut(means: NDArray[np.float64]) -> WarmUp:
    batches = means.size // MSER_BATCH
    steps = means[: batches * MSER_BATCH].reshape(batches, MSER_BATCH)
    present = (~np.isnan(steps)).sum(axis=1)
    if batches < FEWEST_BATCHES or not present.any():
        return WarmUp(0, False)
    half = batches // 2
    sums = np.nansum(steps, axis=1)
    has = present > 0
    batch_means = np.divide(sums, present, out=np.zeros(batches), where=has)
    # The score is the same about any level. About that of the later half, a series that has become constant is 0
    # there, so that rounding does not choose its cut.
    level = sums[half:].sum() / max(1, present[half:].sum())
    about = np.where(has, batch_means - level, 0.0)
    about[np.abs(about) < 1e-9 * np.abs(batch_means).max()] = 0.0
    left, total, squares = (np.cumsum(x[::-1])[::-1][: half + 1] for x in (has.astype(float), about, about**2))
    score = np.full(half + 1, np.inf)
    np.divide(squares - total**2 / np.maximum(left, 1), left**2, out=score, where=left > 0)
    cut = int(np.argmin(score))
    return WarmUp(cut * MSER_BATCH, cut == half)


class Stability(StrEnum):
    """What a stage's window shows of its stationarity."""

    STABLE = "stable"
    UNSTABLE = "unstable"
    TOO_SHORT = "too_short"


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What went in and out of the target during the window of a stage.

    arrivals, completions: of any end, within the window.
    in_flight_start, in_flight_end, mean_in_flight: how many were in flight at its ends, and the mean over time.
    seconds: its length.
    service_seconds: the mean service time at low load, where known: under overload a measured one grows with the
        queue, and asks for too long a window.
    """

    arrivals: int
    completions: int
    in_flight_start: int
    in_flight_end: int
    mean_in_flight: float
    seconds: float
    service_seconds: float | None = None


class Stationarity(msgspec.Struct, frozen=True):
    """The verdict on a window, a sentence that says why, and how long a window of this flow must be to tell.

    needed_seconds: None where that cannot be known, since nothing arrived.
    growing: more came than went, beyond the noise, whether or not the window is long enough to rely on it.
    """

    stability: Stability
    reason: str
    needed_seconds: float | None
    growing: bool = False


def growing(flow: Flow) -> bool:
    """Whether more comes in than goes out: `1 - C/A > 4 %` and `ΔL > 3 sqrt(2 x mean in flight)`.

    The first keeps slight excess from passing for instability, the second noise. `judge` adds how long to look.
    """
    grown = flow.in_flight_end - flow.in_flight_start
    unserved = flow.arrivals - flow.completions
    return unserved > UNSERVED_SHARE * flow.arrivals and grown > GROWTH_SIGMAS * sqrt(2 * flow.mean_in_flight)


def judge(flow: Flow) -> Stationarity:
    """The verdict on a window of 35 service times or 2,000 arrivals; a shorter one is too short to tell.

    Near saturation the number in flight wanders: over A arrivals, as many independent comings and goings, by about
    `sqrt(2 A)`. With many in flight `growing` holds for more than that; with few, 35 service times are few arrivals. So
    where fewer than 2,000 came, growth within `3 sqrt(2 A)` is too short to tell, too.

    By simulation: of stable M/M/c queues of 1 to 256 slots at loads .05 to .9 at most 1 % are called unstable; of those
    at load 1.1 at least 91 % are found with 64 slots or more in 35 service times, and 95 % with any number in 2,000
    arrivals; of 4 slots at load 2, 95 % in 35 service times.
    """
    needed = _needed_seconds(flow)
    if needed is None or (flow.seconds < needed and flow.arrivals < ENOUGH_ARRIVALS):
        return Stationarity(Stability.TOO_SHORT, _too_short(flow, needed), needed, growing(flow))
    unserved = 1 - flow.completions / flow.arrivals if flow.arrivals else 0.0
    grown = flow.in_flight_end - flow.in_flight_start
    noise = GROWTH_SIGMAS * sqrt(2 * flow.mean_in_flight)
    counts = f"{flow.arrivals} arrivals, {flow.completions} completions; in flight {grown:+d}"
    if growing(flow) and flow.arrivals < ENOUGH_ARRIVALS and grown <= GROWTH_SIGMAS * sqrt(2 * flow.arrivals):
        needed = ENOUGH_ARRIVALS * flow.seconds / flow.arrivals
        reason = f"{counts}: growing, but chance alone can do that; it takes {ENOUGH_ARRIVALS:,} arrivals, here"
        return Stationarity(Stability.TOO_SHORT, f"{reason} {ceil(needed)} s", needed, growing=True)
    if growing(flow):
        reason = f"{counts}: {unserved:.1%} more came than went (limit 4%), beyond the noise of {noise:.0f}"
        return Stationarity(Stability.UNSTABLE, reason, needed, growing=True)
    within = "limit 4%" if unserved <= UNSERVED_SHARE else f"in flight within the noise of {noise:.0f}"
    return Stationarity(Stability.STABLE, f"{counts}: {unserved:.1%} unserved ({within})", needed)


def _needed_seconds(flow: Flow) -> float | None:
    """The shorter of 35 service times and the time of 2,000 arrivals; None where neither is known."""
    by_service = ENOUGH_SERVICE_TIMES * flow.service_seconds if flow.service_seconds is not None else None
    by_arrivals = ENOUGH_ARRIVALS * flow.seconds / flow.arrivals if flow.arrivals else None
    return min((needed for needed in (by_service, by_arrivals) if needed is not None), default=None)


def _too_short(flow: Flow, needed: float | None) -> str:
    if needed is None:
        return "nothing arrived in the window"
    return (
        f"{flow.seconds:.3g} s with {flow.arrivals} arrivals are too short to tell: it takes {ENOUGH_SERVICE_TIMES} "
        f"service times or {ENOUGH_ARRIVALS:,} arrivals, here {ceil(needed)} s"
    )
