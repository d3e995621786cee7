"""The knee of a curve by Kneedle: where a latency begins to climb as the load grows. For the eye only: it decides
nothing, for it moves with the range of loads that was looked at.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgen.profile.slo import PERCENTILES
from loadgen.statistics.confidence import sufficient
from loadgen.summary.summary import Stage

Floats = NDArray[np.float64]

FEWEST: Final = 5
"""Points that a curve needs to have a knee."""

_HIGHEST_FIRST: Final = ("p99", "p95", "p90", "p50")


def knee(points: Sequence[tuple[float, float]]) -> float | None:
    """The x at which a rising curve bends upwards most, of points (x, y) in any order; None where it does not bend.

    Kneedle (V. Satopaa, J. Albrecht, D. Irwin, B. Raghavan, "Finding a 'Kneedle' in a Haystack", 2011), without its
    smoothing. The bend is where the curve is furthest from the straight line between its ends. With x and y scaled to
    0 .. 1 that line is y = x, and the distance of a point from it is (x - y) / sqrt(2), so `d = x - y` has its maximum
    there. Such a maximum counts only if the bend is larger than what the spacing of the points leaves open: going back
    from it towards the left end, as the paper does for a curve of this shape after turning it by half a circle, d must
    fall below `d_max - mean spacing of x` (sensitivity 1) before it rises again. As d is 0 at the left end, a maximum
    below the mean spacing, as noise on a straight line makes, never counts.

    Points at the same x count as one at their mean. None too for fewer than five points, for a curve that does not
    rise, and for values that are not finite.
    """
    if not points:
        return None
    x, y = _curve(points)
    if x.size < FEWEST or not np.isfinite([x, y]).all() or y[-1] <= y[0]:
        return None
    scaled_x = (x - x[0]) / (x[-1] - x[0])
    # By its ends, not by its extremes: noise may take the lowest value away from the first point.
    scaled_y = (y - y[0]) / (y[-1] - y[0])
    distance = scaled_x - scaled_y
    inner = distance[1:-1]
    peaks = 1 + np.flatnonzero((inner >= distance[:-2]) & (inner > distance[2:]))
    spacing = 1 / (x.size - 1)
    bends = [int(peak) for peak in peaks if _falls(distance[peak::-1], float(distance[peak]) - spacing)]
    return float(x[max(bends, key=lambda peak: float(distance[peak]))]) if bends else None


def _curve(points: Sequence[tuple[float, float]]) -> tuple[Floats, Floats]:
    """The points by ascending x, those of the same x as one at their mean."""
    x, group = np.unique(np.array([x for x, _ in points], dtype=np.float64), return_inverse=True)
    return x, np.bincount(group, weights=[y for _, y in points]) / np.bincount(group)


def _falls(distances: Floats, threshold: float) -> bool:
    """Whether the distances get below the threshold before they rise again; never for a threshold of 0 or less."""
    if threshold <= 0:
        return False
    for before, after in pairwise(distances):
        if after < threshold:
            return True
        if after > before:
            return False
    return False


def latency_knee(stages: Sequence[Stage]) -> float | None:
    """The offered rate at which the response time of these stages bends; None where it does not, or is not known.

    It is that of the highest of p99, p95, p90 and p50 that at least five rates have with enough samples. Stages that
    offer no rate are left out.
    """
    for name in _HIGHEST_FIRST:
        points = [
            (stage.offered_rate, response.percentile(name))
            for stage in stages
            if stage.offered_rate is not None
            and (response := stage.latency_seconds.response) is not None
            and sufficient(response.count, PERCENTILES[name])
        ]
        if len({rate for rate, _ in points}) >= FEWEST:
            return knee(points)
    return None
