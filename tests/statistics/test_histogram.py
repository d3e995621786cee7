from collections.abc import Callable
from math import ceil

import msgspec
import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from loadgen.statistics.histogram import (
    BUCKETS,
    HIGHEST_NS,
    LOWEST_NS,
    SIGNIFICANT_DIGITS,
    Delta,
    Histogram,
    Ints,
    bucket_indices,
    ceiling_rank,
    fold,
    fold_groups,
    highest_equivalent,
    lowest_equivalent,
)

in_range = st.integers(LOWEST_NS, HIGHEST_NS)
any_duration = st.one_of(in_range, st.integers(-(10**14), 10**14), st.integers(-5, 2_000))
samples = st.lists(any_duration, max_size=60)
some_samples = st.lists(any_duration, min_size=1, max_size=60)


def ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def histogram_of(values: list[int]) -> Histogram:
    histogram = Histogram()
    histogram.add(fold(ints(values)))
    return histogram


def library() -> HdrHistogram:
    return HdrHistogram(LOWEST_NS, HIGHEST_NS, SIGNIFICANT_DIGITS)


def contents(histogram: Histogram) -> tuple[object, ...]:
    """All that a histogram holds but the sum of squares, whose floating-point sum depends on the order."""
    delta = histogram.to_delta()
    return (*msgspec.structs.astuple(delta)[:6], delta.clamped_low, delta.clamped_high)


def test_a_histogram_has_as_many_buckets_as_the_library() -> None:
    assert library().counts_len == BUCKETS


def test_buckets_at_every_power_of_two_are_those_of_the_library() -> None:
    edges = [(1 << power) + step for power in range(42) for step in (-1, 0, 1)] + [HIGHEST_NS, LOWEST_NS]
    hdr = library()
    assert bucket_indices(ints(edges)).tolist() == [hdr.get_counts_array_index(value) for value in edges]


@given(st.lists(st.integers(0, HIGHEST_NS), min_size=1))
def test_buckets_of_any_values_are_those_of_the_library(values: list[int]) -> None:
    hdr = library()
    assert bucket_indices(ints(values)).tolist() == [hdr.get_counts_array_index(value) for value in values]


def test_the_buckets_tile_the_range_without_gap_or_overlap() -> None:
    every = np.arange(BUCKETS)
    low, high = lowest_equivalent(every), highest_equivalent(every)
    assert low[0] == 0
    assert (low[1:] == high[:-1] + 1).all()
    assert (bucket_indices(low) == every).all()
    assert (bucket_indices(high) == every).all()


@given(in_range)
def test_equivalent_values_are_those_of_the_library(value: int) -> None:
    hdr, bucket = library(), bucket_indices(ints([value]))
    assert lowest_equivalent(bucket)[0] == hdr.get_lowest_equivalent_value(value)
    assert highest_equivalent(bucket)[0] == hdr.get_highest_equivalent_value(value)


@given(some_samples)
def test_a_fold_keeps_the_exact_extremes_and_moments(values: list[int]) -> None:
    delta = fold(ints(values))
    assert (delta.count, delta.min_ns, delta.max_ns) == (len(values), min(values), max(values))
    assert delta.sum_ns == sum(values)
    assert delta.sum_squares == pytest.approx(sum(value * value for value in values))


def test_values_out_of_range_are_clamped_and_counted() -> None:
    delta = fold(ints([-7, 0, 999, 1_000, HIGHEST_NS, HIGHEST_NS + 1, 10**14]))
    assert (delta.clamped_low, delta.clamped_high, delta.clamped) == (3, 2, 5)
    indices, counts = delta.buckets()
    assert indices.tolist() == bucket_indices(ints([LOWEST_NS, HIGHEST_NS])).tolist()
    assert counts.tolist() == [4, 3]
    assert (delta.min_ns, delta.max_ns) == (-7, 10**14)


def test_nothing_folds_to_an_empty_delta() -> None:
    assert fold(ints([])) == Delta(b"", b"", 0, None, None, 0, 0.0)
    assert fold_groups(ints([]), ints([])) == []


@given(st.lists(st.tuples(any_duration, st.sampled_from([-(2**63), -1, 0, 3, 4, 2**63 - 1])), max_size=60))
def test_folding_groups_equals_folding_each_group(pairs: list[tuple[int, int]]) -> None:
    values, keys = ints([value for value, _ in pairs]), ints([key for _, key in pairs])
    folded = fold_groups(values, keys)
    assert [key for key, _ in folded] == sorted(set(keys.tolist()))
    for key, delta in folded:
        alone = histogram_of([value for value, its_key in pairs if its_key == key])
        together = Histogram()
        together.add(delta)
        assert contents(together) == contents(alone)
        assert delta.sum_squares == pytest.approx(alone.sum_squares)


@pytest.mark.parametrize(("repeats", "width"), [(255, 1), (256, 2), (65_536, 4)])
def test_counts_travel_as_narrow_as_they_fit(repeats: int, width: int) -> None:
    delta = fold(ints([5_000] * repeats + [9_000]))
    assert len(delta.counts) == 2 * width
    assert delta.buckets()[1].tolist() == [repeats, 1]


@given(samples)
def test_a_delta_survives_the_wire(values: list[int]) -> None:
    delta = fold(ints(values))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(delta), type=Delta) == delta


@given(some_samples)
def test_a_delta_counts_what_lies_up_to_a_bucket(values: list[int]) -> None:
    buckets = bucket_indices(np.clip(ints(values), LOWEST_NS, HIGHEST_NS))
    asked = np.unique(np.concatenate((buckets, buckets - 1, [0, BUCKETS - 1])))
    assert fold(ints(values)).counts_up_to(asked).tolist() == [(buckets <= one).sum() for one in asked]


@given(some_samples)
def test_the_counts_are_those_that_the_library_records(values: list[int]) -> None:
    hdr = library()
    for value in values:
        assert hdr.record_value(min(max(value, LOWEST_NS), HIGHEST_NS))
    ours = histogram_of(values).to_hdr()
    assert list(ours.counts) == list(hdr.counts)
    assert (ours.total_count, ours.min_value, ours.max_value) == (
        hdr.total_count,
        hdr.min_value,
        hdr.max_value,
    )


@given(samples)
def test_the_library_decodes_the_same_counts(values: list[int]) -> None:
    histogram = histogram_of(values)
    decoded = HdrHistogram.decode(histogram.encode())
    assert decoded.get_total_count() == len(values)
    assert list(decoded.counts) == list(histogram.to_hdr().counts)


@given(samples)
def test_a_histogram_and_its_delta_hold_the_same(values: list[int]) -> None:
    histogram, again = histogram_of(values), Histogram()
    again.add(histogram.to_delta())
    assert again.to_delta() == histogram.to_delta()


def merged(*parts: Histogram) -> Histogram:
    total = Histogram()
    for part in parts:
        total.merge(part)
    return total


@given(samples, samples, samples)
def test_merging_is_associative_and_commutative(a: list[int], b: list[int], c: list[int]) -> None:
    one, two, three = histogram_of(a), histogram_of(b), histogram_of(c)
    whole = histogram_of(a + b + c)
    for order in (
        merged(merged(one, two), three),
        merged(one, merged(two, three)),
        merged(three, one, two),
    ):
        assert contents(order) == contents(whole)
        assert order.sum_squares == pytest.approx(whole.sum_squares)


def test_merging_leaves_the_other_as_it_was() -> None:
    one, other = histogram_of([5_000]), histogram_of([7_000])
    before = other.to_delta()
    one.merge(other)
    assert other.to_delta() == before


@given(some_samples, st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0]))
def test_a_percentile_is_the_sample_of_the_ceiling_rank_to_its_bucket(values: list[int], at: float) -> None:
    rank = max(1, ceil(round(at * len(values), 6)))
    clamped = np.clip(ints(sorted(values)), LOWEST_NS, HIGHEST_NS)
    high = int(highest_equivalent(bucket_indices(clamped[rank - 1 : rank]))[0])
    expected = min(max(high, min(values)), max(values))
    assert histogram_of(values).value_at(at) == expected


def test_p99_of_160_samples_is_the_159th() -> None:
    # ceil(.99 * 160) = ceil(158.4) = 159, where rounding to the nearest gives 158. Buckets are 512 ns wide.
    values = [100_000 + 1_000 * step for step in range(1, 161)]
    value = histogram_of(values).value_at(0.99)
    assert value is not None
    assert values[158] <= value < values[158] + 512


def test_a_percentile_never_exceeds_the_true_maximum() -> None:
    # 1,000,000,001 ns lies in a bucket that is 2**19 ns wide.
    assert histogram_of([1_000_000_001]).value_at(0.99) == 1_000_000_001


def test_waits_of_zero_have_percentiles_of_zero() -> None:
    assert histogram_of([0, 0, 0]).value_at(0.5) == 0


@pytest.mark.parametrize(
    ("fraction", "count", "rank"),
    [
        (0.07, 100, 7),
        (0.99, 100, 99),
        (0.999, 1000, 999),
        (0.95, 20, 19),
        (0.5, 1, 1),
        (0.0, 9, 1),
        (1.0, 9, 9),
    ],
)
def test_ranks_are_those_of_the_decimal_fraction(fraction: float, count: int, rank: int) -> None:
    assert ceiling_rank(fraction, count) == rank


def test_a_fraction_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match="99"):
        ceiling_rank(99, 10)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_does_not_exist_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match="of 2 samples"):
        histogram_of([5_000, 6_000]).value_at_rank(rank)


def test_a_rank_spans_its_bucket_within_the_extremes() -> None:
    # At 2**20 ns buckets are 1,024 ns wide: [1_048_576, 1_049_599]; the extremes cut both ends.
    histogram = histogram_of([1_048_600, 1_048_700])
    assert histogram.span_at_rank(1) == (1_048_600, 1_048_700)
    histogram.add(fold(ints([1_000, 9_000_000])))
    assert histogram.span_at_rank(2) == (1_048_576, 1_049_599)


def test_mean_and_deviation_are_those_of_the_samples() -> None:
    # Mean (2 + 4 + 6) / 3 = 4 us; variance (4 + 0 + 4) / 3 us².
    histogram = histogram_of([2_000, 4_000, 6_000])
    assert histogram.mean_ns == 4_000
    assert histogram.stddev_ns == pytest.approx(1_000 * (8 / 3) ** 0.5)


@pytest.mark.parametrize(
    "statistic",
    [
        lambda empty: empty.mean_ns,
        lambda empty: empty.stddev_ns,
        lambda empty: empty.min_ns,
        lambda empty: empty.max_ns,
        lambda empty: empty.value_at(0.5),
    ],
)
def test_an_empty_histogram_has_no_statistics(statistic: Callable[[Histogram], object]) -> None:
    assert statistic(Histogram()) is None


def test_counts_at_or_below_a_value_include_its_bucket() -> None:
    histogram = histogram_of([5_000, 6_000, 7_000, 10**14])
    assert [histogram.count_at_or_below(value) for value in (-1, 6_000, 7_000, 10**15)] == [0, 2, 3, 4]


def test_adding_after_a_question_changes_the_answer() -> None:
    histogram = histogram_of([5_000])
    assert histogram.value_at(1.0) == 5_000
    histogram.add(fold(ints([8_000])))
    assert histogram.value_at(1.0) == 8_000
