from collections.abc import Iterable

import numpy as np
import pytest

from loadgen.statistics.confidence import (
    T_975,
    PercentileEstimate,
    PercentileIntervals,
    Ranks,
    relative_variance,
    student_t_975,
    sufficient,
    widened_ranks,
)
from loadgen.statistics.histogram import Delta, Histogram, Ints, fold

MS = 1_000_000


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def ramp(intervals: int = 10, each: int = 100) -> list[Delta]:
    """1, 2, 3, ... ms dealt to the intervals in turn, so that each holds the same share of any range."""
    values = np.arange(1, intervals * each + 1, dtype=np.int64) * MS
    return [fold(values[first::intervals]) for first in range(intervals)]


@pytest.mark.parametrize("blocks", T_975)
def test_the_table_holds_the_quantiles_of_students_t(blocks: int) -> None:
    # P(0 < T < t) = .475, with the density proportional to (1 + x²/df)^(-(df+1)/2); the integral to 10⁴ is that to
    # infinity to within 1e-9 for df >= 7. Both by the trapezoidal rule, on a grid that is fine up to t.
    df = blocks - 1
    inside = np.linspace(0, T_975[blocks], 100_001)
    outside = np.geomspace(T_975[blocks], 1e4, 100_001)
    area, beyond = (float(np.trapezoid((1 + x * x / df) ** (-(df + 1) / 2), x)) for x in (inside, outside))
    assert area / (area + beyond) / 2 == pytest.approx(0.475, abs=1e-7)


@pytest.mark.parametrize("degrees", [1, 2, 4, 9, 20])
def test_the_quantiles_are_those_of_students_t(degrees: int) -> None:
    # P(0 < T < t) = .475 with the density proportional to (1 + x²/df)^(-(df+1)/2), by the trapezoidal rule. What lies
    # beyond 10^7 is below 1e-7 for df = 1 and less for more.
    t = student_t_975(degrees)
    inside, outside = np.linspace(0, t, 200_001), np.geomspace(t, 1e7, 400_001)
    area, beyond = (float(np.trapezoid((1 + x * x / degrees) ** (-(degrees + 1) / 2), x)) for x in (inside, outside))
    assert area / (area + beyond) / 2 == pytest.approx(0.475, abs=1e-5)


@pytest.mark.parametrize(("degrees", "exact"), [(21, 2.0796), (30, 2.0423), (60, 2.0003), (1000, 1.9623)])
def test_beyond_the_table_they_are_at_most_one_and_a_half_percent_too_wide_and_never_too_narrow(
    degrees: int, exact: float
) -> None:
    assert exact <= student_t_975(degrees) <= 1.015 * exact


def test_steady_shares_give_the_binomial_ranks_widened_by_t() -> None:
    # Every block has exactly the share .5: v = 1. n = 800: h = 2.364624 * sqrt(800 * .25) = 33.44.
    # floor(400 - 33.44) = 366, ceil(400 + 33.44) + 1 = 435.
    assert widened_ranks(ints(*[100] * 8), ints(*[50] * 8), 0.5) == Ranks(366, 435)


def test_shares_that_vary_between_blocks_widen_the_interval() -> None:
    # Deviations of 10 samples in each of 8 blocks: v = 8/7 * 800 / (800 * .25) = 4.5714;
    # h = 2.364624 * sqrt(200 * 4.5714) = 71.50. floor(328.50) = 328, ceil(471.50) + 1 = 473.
    assert widened_ranks(ints(*[100] * 8), ints(*[60, 40] * 4), 0.5) == Ranks(328, 473)


def test_the_block_count_with_the_largest_variance_decides() -> None:
    # A slow drift: m = 8 groups 20 intervals by 2, 3, 2, 3, ...: deviations of 20 and 30, four times each;
    # v = 8/7 * 4 * (400 + 900) / 500 = 11.886 and t² v = 66.46, where m = 10 has 45.5 and m = 20 less still.
    # h = sqrt(500 * 66.46) = 182.29: floor(817.71) = 817, ceil(1182.29) + 1 = 1184.
    assert widened_ranks(ints(*[100] * 20), ints(*[60] * 10, *[40] * 10), 0.5) == Ranks(817, 1184)


def test_a_run_too_short_for_its_percentile_is_open_above() -> None:
    # h = 2.364624 * sqrt(400 * .0099) = 4.71: floor(391.29) = 391, ceil(400.71) + 1 = 402 > 400.
    assert widened_ranks(ints(*[50] * 8), ints(*[50] * 7, 46), 0.99).upper is None
    assert widened_ranks(ints(*[50] * 8), ints(*[50] * 8), 0.99) == Ranks(391, None)


@pytest.mark.parametrize("each", [0, 100])
def test_samples_that_are_all_on_one_side_vary_as_independent_ones(each: int) -> None:
    assert relative_variance(ints(*[100] * 8), ints(*[each] * 8), 8) == 1.0


def test_too_few_intervals_bound_nothing() -> None:
    assert widened_ranks(ints(*[1000] * 7), ints(*[500] * 7), 0.5) == Ranks(1, None)


def test_empty_intervals_do_not_count_as_intervals() -> None:
    assert widened_ranks(ints(*[1000] * 7, *[0] * 30), ints(*[500] * 7, *[0] * 30), 0.5) == Ranks(1, None)


def test_empty_intervals_among_others_are_blocks_like_any() -> None:
    # Blocks of no samples deviate by 0. m = 8 and 12 group 24 intervals, every second one empty, by 3 and 2; all have
    # the share .5, so v = 1 and m = 8 has the largest t: n = 1200, h = 2.364624 * sqrt(300) = 40.96.
    assert widened_ranks(ints(*[100, 0] * 12), ints(*[50, 0] * 12), 0.5) == Ranks(559, 642)


@pytest.mark.parametrize(
    ("count", "fraction", "enough"),
    [(1000, 0.99, True), (999, 0.99, False), (100, 0.9, True), (10_000, 0.999, True), (20, 0.5, True)],
)
def test_ten_samples_beyond_a_percentile_are_sufficient(count: int, fraction: float, enough: bool) -> None:
    assert sufficient(count, fraction) is enough


def test_without_samples_there_is_no_estimate() -> None:
    assert percentile_interval([fold(ints())] * 10, 0.5) is None


def test_an_estimate_names_the_samples_at_its_ranks() -> None:
    # n = 1000 in 10 equal intervals: the widest t is that of m = 8, h = 2.364624 * sqrt(250) = 37.4, so the ranks are
    # 462 and 539, and sample r is r ms to within its bucket (2**18 ns wide, from 2**29 ns on 2**19).
    estimate = percentile_interval(ramp(), 0.5)
    assert estimate is not None
    assert estimate.value_ns == pytest.approx(500 * MS, abs=2**18)
    assert estimate.low_ns == pytest.approx(462 * MS, abs=2**18)
    assert estimate.high_ns == pytest.approx(539 * MS, abs=2**19)
    assert estimate.sufficient
    assert not estimate.at_least


def test_equal_samples_have_an_interval_of_no_width() -> None:
    constant = [fold(ints(*[7 * MS] * 1000))] * 10
    assert percentile_interval(constant, 0.99) == PercentileEstimate(7 * MS, 7 * MS, 7 * MS, True)


def test_a_percentile_among_unfinished_requests_is_a_lower_bound() -> None:
    estimate = percentile_interval(ramp(), 0.9, smallest_bound_ns=800 * MS)
    assert estimate is not None
    assert estimate.at_least
    assert estimate.high_ns is None


def test_an_upper_end_among_unfinished_requests_is_open() -> None:
    # As above the median is 500 ms and its upper end 539 ms; with a request of unknown end at 520 ms only the first is
    # known.
    estimate = percentile_interval(ramp(), 0.5, smallest_bound_ns=520 * MS)
    assert estimate is not None
    assert not estimate.at_least
    assert estimate.high_ns is None


def test_a_percentile_below_every_unfinished_request_is_untouched() -> None:
    assert percentile_interval(ramp(), 0.5, smallest_bound_ns=900 * MS) == percentile_interval(ramp(), 0.5)


def test_deltas_of_one_interval_add_up() -> None:
    whole, fractions = ramp(), [0.5, 0.95]
    merged = Histogram()
    for delta in whole:
        merged.add(delta)
    once = PercentileIntervals(merged, fractions, len(whole))
    for interval, delta in enumerate(whole):
        once.add(interval, delta)
    twice = PercentileIntervals(merged, fractions, len(whole))
    values = np.arange(1, 1001, dtype=np.int64) * MS
    for interval in range(10):
        of_interval = values[interval::10]
        twice.add(interval, fold(of_interval[:30]))
        twice.add(interval, fold(of_interval[30:]))
    assert [once.estimate(one) for one in fractions] == [twice.estimate(one) for one in fractions]


@pytest.mark.parametrize("interval", [-1, 10])
def test_an_interval_outside_the_run_is_refused(interval: int) -> None:
    with pytest.raises(ValueError, match="of 10"):
        PercentileIntervals(Histogram(), [0.5], 10).add(interval, fold(ints(1)))


def percentile_interval(
    intervals: Iterable[Delta], fraction: float, smallest_bound_ns: int | None = None
) -> PercentileEstimate | None:
    """Both passes at once, over one delta for each interval of equal length, in order, empty ones included.

    Meaning and result as in `PercentileIntervals.estimate`.
    """
    deltas = list(intervals)
    merged = Histogram()
    for delta in deltas:
        merged.add(delta)
    counted = PercentileIntervals(merged, [fraction], len(deltas))
    for interval, delta in enumerate(deltas):
        counted.add(interval, delta)
    return counted.estimate(fraction, smallest_bound_ns)
