"""When requests start: tables where the process is fixed, statistics where it is random."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.load.arrivals import OpenLoop, Schedule, arrivals
from loadgen.profile import Constant, Gamma, Offline, Poisson, Ramp
from loadgen.units import NS_PER_SECOND, Duration, Rate

SECOND = NS_PER_SECOND


def seconds(count: float) -> Duration:
    return Duration(round(count * SECOND))


def offsets(load: OpenLoop, seed: int = 1) -> np.ndarray:
    batches = list(arrivals(load, np.random.default_rng(seed)))
    return np.concatenate(batches) if batches else np.empty(0, dtype=np.int64)


def test_constant_arrivals_have_equal_gaps_and_start_at_zero():
    assert offsets(Constant(rate=Rate(4), duration=seconds(1))).tolist() == [
        0,
        SECOND // 4,
        SECOND // 2,
        3 * SECOND // 4,
    ]


def test_constant_arrivals_do_not_drift_where_the_gap_is_no_whole_number_of_nanoseconds():
    # 3/s for 10,000 s: arrival i is at i/3 s, rounded once.
    drawn = offsets(Constant(rate=Rate(3), duration=seconds(10_000)))
    assert len(drawn) == 30_000
    assert drawn[29_999] == round(29_999 / 3 * SECOND)


def test_an_arrival_at_the_very_end_of_the_duration_is_not_part_of_it():
    assert offsets(Constant(rate=Rate(1), duration=seconds(3))).tolist() == [0, SECOND, 2 * SECOND]


def test_the_first_bound_that_is_reached_ends_the_arrivals():
    assert len(offsets(Constant(rate=Rate(10), duration=seconds(1), requests=4))) == 4
    assert len(offsets(Constant(rate=Rate(10), duration=seconds(1), requests=40))) == 10


def test_rates_below_one_a_second_and_above_a_hundred_thousand_work():
    assert offsets(Constant(rate=Rate(0.1), duration=seconds(30))).tolist() == [0, 10 * SECOND, 20 * SECOND]
    assert len(offsets(Constant(rate=Rate(250_000), duration=seconds(1)))) == 250_000


def test_poisson_gaps_are_exponential():
    # Of n exponential gaps the mean has a standard error of 1/sqrt(n) of itself, and the coefficient of variation
    # about as much: 5 of them with n = 40,000 are 2.5 %.
    gaps = np.diff(offsets(Poisson(rate=Rate(50), requests=40_001))) / SECOND
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.025)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.025)
    assert np.corrcoef(gaps[:-1], gaps[1:])[0, 1] == pytest.approx(0, abs=0.025)


def test_the_number_of_poisson_arrivals_in_a_duration_varies_like_poisson():
    # 200 runs of mean 100: the variance of the counts is 100 too, with a relative standard error of sqrt(2/199) = 10 %.
    # A process conditioned on its count would have a variance of 0.
    counts = [len(offsets(Poisson(rate=Rate(100), duration=seconds(1)), seed)) for seed in range(200)]
    assert np.mean(counts) == pytest.approx(100, abs=5 * 10 / np.sqrt(200))
    assert np.var(counts) == pytest.approx(100, rel=0.5)


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_burstiness_as_their_shape(shape):
    # A gamma of shape k has a coefficient of variation of 1/sqrt(k).
    gaps = np.diff(offsets(Gamma(rate=Rate(50), burstiness=shape, requests=60_001))) / SECOND
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(shape**-0.5, rel=0.05)


@pytest.mark.parametrize(("first", "last"), [(0, 200), (200, 0), (50, 150), (100, 100)])
def test_a_ramp_changes_its_rate_linearly(first, last):
    # Over 100 s the mean count of a quarter is the mean rate of that quarter x 25 s, +- 5 sqrt of it.
    drawn = offsets(Ramp(start_rate=Rate(first), end_rate=Rate(last), duration=seconds(100)))
    counts, _ = np.histogram(drawn, bins=4, range=(0, 100 * SECOND))
    for quarter, count in enumerate(counts):
        mean = 25 * (first + (last - first) * (quarter + 0.5) / 4)
        assert abs(count - mean) <= 5 * np.sqrt(mean) + 1


def test_offline_starts_all_requests_at_once():
    drawn = offsets(Offline(requests=10_000))
    assert len(drawn) == 10_000
    assert not drawn.any()


def test_the_same_seed_gives_the_same_arrivals_and_another_seed_others():
    load = Poisson(rate=Rate(100), duration=seconds(5))
    assert offsets(load, 7).tolist() == offsets(load, 7).tolist()
    assert offsets(load, 7).tolist() != offsets(load, 8).tolist()


LOADS = st.one_of(
    st.builds(
        Poisson,
        rate=st.floats(0.5, 5000).map(Rate),
        duration=st.just(seconds(2)),
        requests=st.none() | st.integers(1, 9000),
    ),
    st.builds(Constant, rate=st.floats(0.5, 5000).map(Rate), duration=st.just(seconds(2))),
    st.builds(Offline, requests=st.integers(1, 9000)),
)


@given(LOADS, st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(0, 500)), max_size=20))
def test_a_schedule_hands_out_each_arrival_once_and_in_order_however_it_is_taken(load, takes):
    origin = 1_000 * SECOND
    schedule = Schedule(load, np.random.default_rng(3), origin)
    taken = list(chain.from_iterable(schedule.take(origin + until, limit) for until, limit in takes))
    taken += schedule.take(origin + 10 * SECOND, 1 << 30)
    assert taken == (offsets(load, 3) + origin).tolist()
    assert schedule.count == len(taken)
    assert schedule.next_ns is None


@given(LOADS, st.integers(0, 3 * SECOND))
def test_a_schedule_knows_how_many_arrivals_an_instant_has_seen(load, instant):
    schedule = Schedule(load, np.random.default_rng(3), 0)
    assert schedule.intended_by(instant) == int((offsets(load, 3) <= instant).sum())


def test_a_schedule_ends_with_its_duration_or_with_the_last_of_its_requests():
    by_duration = Schedule(Constant(rate=Rate(10), duration=seconds(2.05)), np.random.default_rng(1), 0)
    assert (by_duration.ended_by, by_duration.end_ns) == ("duration", seconds(2.05))
    by_requests = Schedule(Constant(rate=Rate(10), requests=11), np.random.default_rng(1), 0)
    assert (by_requests.ended_by, by_requests.end_ns) == ("requests", SECOND)


def test_looking_at_the_extent_of_a_schedule_does_not_change_its_arrivals():
    rng = np.random.default_rng(5)
    schedule = Schedule(Poisson(rate=Rate(10), requests=50), rng, 0)
    schedule.intended_by(SECOND)
    assert schedule.take(1 << 60, 1 << 30) == offsets(Poisson(rate=Rate(10), requests=50), 5).tolist()
