from math import hypot, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.statistics.confidence import T_975
from loadgen.statistics.histogram import Ints
from loadgen.statistics.proportion import product_interval, rate_interval, share_interval, wilson_interval

T_8 = T_975[8]


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def test_wilsons_interval_of_5_in_100_is_that_of_the_tables() -> None:
    assert wilson_interval(5, 100) == pytest.approx((0.02154, 0.11175), abs=1e-4)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.1, 1e6))
def test_wilsons_interval_holds_the_share(counts: tuple[int, int], z_squared: float) -> None:
    low, high = wilson_interval(*counts, z_squared)
    assert 0 <= low <= counts[0] / counts[1] <= high <= 1


def test_a_steady_share_has_wilsons_interval_widened_by_t() -> None:
    assert share_interval(ints(*[100] * 8), ints(*[90] * 8)) == wilson_interval(720, 800, T_8**2)


def test_a_share_that_varies_between_blocks_has_a_wider_interval() -> None:
    # Deviations of 5 samples in each of 8 blocks: v = 8/7 * 200 / (800 * .9 * .1) = 3.1746.
    varying = share_interval(ints(*[100] * 8), ints(*[95, 85] * 4))
    assert varying == pytest.approx(wilson_interval(720, 800, T_8**2 * 8 / 7 * 200 / 72))


def test_where_all_succeed_a_share_that_is_near_shows_how_it_varies() -> None:
    trials, near = ints(*[100] * 8), ints(*[95, 85] * 4)
    alone, with_near = share_interval(trials, trials), share_interval(trials, trials, near)
    assert alone == wilson_interval(800, 800, T_8**2)
    assert with_near == pytest.approx(wilson_interval(800, 800, T_8**2 * 8 / 7 * 200 / 72))


def test_no_success_is_a_share_too() -> None:
    assert share_interval(ints(*[100] * 8), ints(*[0] * 8)) == wilson_interval(0, 800, T_8**2)


def test_too_few_intervals_bound_neither_share_nor_rate() -> None:
    assert share_interval(ints(*[100] * 7, 0), ints(*[90] * 7, 0)) is None
    assert rate_interval(ints(*[100] * 7), np.ones(7)) is None


def test_a_rate_has_students_interval_over_blocks() -> None:
    # 8 blocks of 2 s, 44 or 36 events in each: 20/s; deviations of 4: sqrt(8/7 * 8 * 16) = 12.095 in 16 s.
    half = T_8 * sqrt(8 / 7 * 8 * 16) / 16
    interval = rate_interval(ints(*[44, 36] * 4), np.full(8, 2.0))
    assert interval == pytest.approx((20 - half, 20 + half))


def test_a_last_interval_that_is_shorter_is_no_lack_of_events() -> None:
    seconds = np.array([1.0] * 7 + [0.5])
    assert rate_interval(ints(*[20] * 7, 10), seconds) == pytest.approx((20, 20))


def test_the_rate_of_what_never_happened_is_below_that_of_a_poisson_process_that_hides() -> None:
    assert rate_interval(ints(*[0] * 8), np.full(8, 2.0)) == pytest.approx((0, -log(0.025) / 16))


def test_a_product_has_the_distances_of_both_its_factors() -> None:
    # 20 [18, 21] times .5 [.4, .7]: below .5 * 2 = 1 and 20 * .1 = 2, above .5 * 1 and 20 * .2 = 4.
    low, high = product_interval(10.5, (20, (18, 21)), (0.5, (0.4, 0.7)))
    assert (low, high) == pytest.approx((10.5 - hypot(1, 2), 10.5 + hypot(0.5, 4)))


def test_no_rate_is_below_nothing() -> None:
    assert product_interval(0.1, (20, (18, 22)), (0.01, (0.0, 0.1)))[0] == 0
