import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.report.charts.knee import knee, latency_knee
from loadgen.summary.summary import Latencies, Latency, Stage, Stationary, Throughput, Window
from tests import handmade


def stage(rate: float | None, response: float | None, count: int = 20_000) -> Stage:
    """A stage at this rate whose p99 response time is this, and 1 s at the other percentiles."""
    values: dict[str, Any] = {"mean": 1.0, "stddev": 0.0, "min": 1.0, "max": 1.0, "p50": 1.0, "p90": 1.0, "p95": 1.0}
    latency = None if response is None else Latency(count=count, p99=response, p99_9=1.0, **values)
    return handmade.stage(
        f"poisson {rate}/s",
        Window(0.0, 60.0, handmade.books(count), count),
        throughput=Throughput(1.0, 1.0, 1.0),
        latency_seconds=Latencies(response=latency),
        stationary=Stationary("stable", "as many ended as arrived"),
        offered_rate=rate,
    )


# --- a curve ----------------------------------------------------------------------------------------------------------


def test_a_hockey_stick_bends_at_its_corner() -> None:
    # Flat up to 30, then steep: furthest from the line from (10, 1) to (50, 21), which at 30 stands 10 above it.
    assert knee([(10, 1), (20, 1), (30, 1), (40, 11), (50, 21)]) == 30


def test_the_bend_of_a_hyperbola_lies_where_its_slope_is_that_of_the_line_between_its_ends() -> None:
    # y = 1/(1 - x) from 0 to .9 goes from 1 to 10: slope 10, where 1/(1 - x)^2 = 10, x = 1 - 1/sqrt(10) = .684.
    points = [(x / 100, 1 / (1 - x / 100)) for x in range(91)]
    assert knee(points) == pytest.approx(0.684, abs=0.005)


def test_the_order_of_the_points_does_not_matter() -> None:
    points = [(40, 11), (10, 1), (50, 21), (30, 1), (20, 1)]
    assert knee(points) == knee(sorted(points)) == 30


def test_points_at_the_same_place_count_as_one_at_their_mean() -> None:
    points = [(10, 1), (20, 0.5), (20, 1.5), (30, 1), (40, 11), (50, 20), (50, 22)]
    assert knee(points) == 30


def test_the_larger_of_two_bends_is_the_knee() -> None:
    # Steps up at 2 and, four times as far, at 7: d is .22 at x = 2 (2/9 - 0) and .57 at x = 7 (7/9 - 1/5).
    heights = [0, 0, 0, 1, 1, 1, 1, 1, 3, 5]
    assert knee(list(enumerate(heights))) == 7


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1, 1), (2, 1), (3, 1), (4, 9)],  # four points
        [(1, 1), (2, 1), (3, 1), (4, 9), (4, 9)],  # four places
        [(x, 2 * x) for x in range(8)],  # a straight line
        [(x, 5) for x in range(8)],  # flat
        [(x, 9 - x) for x in range(8)],  # falling
        [(x, math.sqrt(x)) for x in range(8)],  # bent the other way
        [(1, 1), (2, 1), (3, math.nan), (4, 1), (5, 9)],
        [(1, 1), (2, 1), (3, 1), (4, 1), (5, math.inf)],
    ],
)
def test_there_is_none_where_the_curve_has_no_bend_or_too_few_points(points: list[tuple[float, float]]) -> None:
    assert knee(points) is None


@given(st.lists(st.floats(-0.1, 0.1), min_size=10, max_size=10))
def test_noise_on_a_straight_line_is_no_knee(noise: list[float]) -> None:
    # A maximum counts from 1/9 of the range on, which is .9 at least and 1.1 at most of 9 here: noise moves d by less
    # than (.1 + .1 + .1)/8.8 = .034.
    assert knee([(x, x + e) for x, e in enumerate(noise)]) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.001, 100)), min_size=5, max_size=30))
def test_the_knee_is_one_of_the_places_whatever_the_units(points: list[tuple[int, float]]) -> None:
    found = knee(points)
    assert found is None or found in {x for x, _ in points}
    scaled = knee([(x * 256, y / 1024) for x, y in points])  # powers of two round nothing
    assert scaled == (None if found is None else found * 256)


# --- the stages of a run ----------------------------------------------------------------------------------------------


def test_the_knee_of_stages_is_that_of_their_p99() -> None:
    stages = [stage(rate, p99) for rate, p99 in ((10, 1), (20, 1), (30, 1), (40, 11), (50, 21))]
    assert latency_knee(stages) == 30


def test_stages_without_a_rate_or_a_response_time_are_left_out() -> None:
    stages = [stage(rate, p99) for rate, p99 in ((10, 1), (20, 1), (30, 1), (40, 11), (50, 21))]
    assert latency_knee([stage(None, 99), *stages, stage(60, None)]) == 30
    assert latency_knee([stage(None, 99), *stages[:4]]) is None


def test_a_percentile_that_too_few_stages_know_gives_way_to_a_lower_one() -> None:
    # Of 500 samples 5 lie beyond p99 and 25 beyond p95, which here does not bend.
    points = ((10, 1), (20, 1), (30, 1), (40, 11), (50, 21))
    few = [stage(rate, p99, count=500) for rate, p99 in points]
    assert latency_knee(few) is None
    bent = [
        msgspec.structs.replace(
            one, latency_seconds=Latencies(response=msgspec.structs.replace(one.latency_seconds.response, p95=p95))
        )
        for one, (_, p95) in zip(few, points, strict=True)
    ]
    assert latency_knee(bent) == 30


def test_no_stages_have_no_knee() -> None:
    assert latency_knee([]) is None
