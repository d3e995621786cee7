"""The estimate of what an overloaded target completes."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadgen.search.throughput import completed_rate
from loadgen.summary.summary import Series, Stage, Window
from tests.search.handmade import stage

WINDOW_INTERVALS = 48


def overloaded(completed: Sequence[int], interval: float = 0.5, warmup: int = 0) -> Stage:
    """A stage with these completions by interval, of which the first `warmup` lie before its window."""
    made = stage(seconds=(len(completed) - warmup) * interval)
    count = len(completed)
    absent: list[float | None] = [None] * count
    series = Series(
        interval=interval,
        start=[row * interval for row in range(count)],
        arrivals=[0] * count,
        completed=list(completed),
        failed=[0] * count,
        output_tokens=[0.0] * count,
        in_flight=[0.0] * count,
        ttft_p50=absent,
        ttft_p99=absent,
        response_p50=absent,
        response_p99=absent,
    )
    window = Window(warmup * interval, (count - warmup) * interval, made.window.books, 0)
    return replace(made, series=series, window=window)


def waves(period: float, size: int, offset: float, interval: float = 0.5) -> Stage:
    """`size` requests complete together once a period."""
    counts = [0] * WINDOW_INTERVALS
    at = offset
    while at < WINDOW_INTERVALS * interval:
        counts[int(at / interval)] += size
        at += period
    return overloaded(counts, interval)


def test_a_steady_stream_has_its_rate_and_no_error():
    found = completed_rate([overloaded([5] * WINDOW_INTERVALS)], 1.0)
    assert found is not None
    # 5 in each half second.
    assert (found.rate, found.completions) == (pytest.approx(10), 5 * WINDOW_INTERVALS)
    assert found.error == pytest.approx(0, abs=1e-9)


def test_what_completed_in_the_warm_up_does_not_count():
    found = completed_rate([overloaded([500] * 4 + [5] * WINDOW_INTERVALS, warmup=4)], 1.0)
    assert found is not None
    assert found.rate == pytest.approx(10)


def test_it_is_the_slope_of_the_least_squares_line_through_the_cumulative_count():
    counts = np.random.default_rng(1).poisson(5, WINDOW_INTERVALS)
    # Completions spread evenly over each of their intervals, 1,000 points an interval.
    fine = np.repeat(counts / 1000, 1000)
    slope = np.polyfit(np.arange(fine.size) + 0.5, np.cumsum(fine) - fine / 2, 1)[0] * 1000 / 0.5
    found = completed_rate([overloaded(counts.tolist())], 1.0)
    assert found is not None
    assert found.rate == pytest.approx(slope, rel=1e-3)


@given(offset=st.floats(0, 3.2))
def test_waves_of_one_service_time_hardly_move_it(offset):
    # 64 together every 3.3 s: 19.39/s. A window of 24 s holds 7 or 8 of them, so that a plain count says 18.7 or 21.3.
    found = completed_rate([waves(3.3, 64, offset)], 3.3)
    assert found is not None
    assert found.rate == pytest.approx(64 / 3.3, rel=0.03)


def test_a_target_that_is_still_filling_in_the_first_half_is_measured_in_the_second():
    rng = np.random.default_rng(2)
    filling = np.concatenate((rng.poisson(35, 24), rng.poisson(50, 24)))
    found = completed_rate([overloaded(filling.tolist())], 0.5)
    assert found is not None
    # 50 in each half second, 1,200 completions: a standard error of 3 %.
    assert found.rate == pytest.approx(100, rel=0.09)
    assert found.completions == filling[24:].sum()


def test_the_interval_covers_the_rate_of_poisson_completions():
    covered = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        stages = [overloaded(rng.poisson(20, WINDOW_INTERVALS).tolist()) for _ in range(2)]
        found = completed_rate(stages, 1.0)
        assert found is not None
        covered += found.low <= 40 <= found.high
    # 95 % of 300 is 285; three standard errors of that are 11.
    assert covered >= 274


def test_more_stages_narrow_the_interval():
    rng = np.random.default_rng(3)
    stages = [overloaded(rng.poisson(20, WINDOW_INTERVALS).tolist()) for _ in range(8)]
    one, all_of_them = completed_rate(stages[:1], 1.0), completed_rate(stages, 1.0)
    assert one is not None
    assert all_of_them is not None
    # 8 times the completions: about sqrt(8) = 2.8 times narrower, more with Student's t.
    assert all_of_them.error < one.error / 2


@pytest.mark.parametrize("stages", [[], [overloaded([3, 4])], [overloaded([0] * 48)], [stage()]])
def test_where_too_little_is_known_there_is_no_estimate(stages):
    assert completed_rate(stages, 1.0) is None
