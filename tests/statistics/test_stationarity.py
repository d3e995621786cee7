from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from loadgen.statistics.stationarity import Flow, Stability, Stationarity, WarmUp, growing, judge, warm_up
from tests.statistics.queues import windows


def test_a_transient_at_the_start_is_cut_off() -> None:
    # 15 means of 100, then 285 that alternate around 10: the fourth batch of 5 is the first without the transient.
    means = np.concatenate((np.full(15, 100.0), 10.0 + np.resize([1.0, -1.0], 285)))
    assert warm_up(means) == WarmUp(15, False)


def test_a_cut_falls_on_the_batch_after_the_transient() -> None:
    # 12 means of 100 reach into the third batch of 5.
    means = np.concatenate((np.full(12, 100.0), np.full(188, 10.0)))
    assert warm_up(means) == WarmUp(15, False)


def test_the_scores_of_the_cuts_are_those_of_the_formula() -> None:
    means = np.random.default_rng(7).exponential(1, 120) + np.linspace(3, 0, 120)
    z = means.reshape(24, 5).mean(axis=1)
    scores = [float(((z[d:] - z[d:].mean()) ** 2).sum()) / (24 - d) ** 2 for d in range(13)]
    assert warm_up(means).cut == 5 * int(np.argmin(scores))


@pytest.mark.parametrize("level", [0.0, 0.1, 12.0])
def test_a_constant_series_needs_no_cut(level: float) -> None:
    assert warm_up(np.full(103, level)) == WarmUp(0, False)


def test_a_series_that_only_grows_is_cut_at_half() -> None:
    assert warm_up(np.arange(200.0)) == WarmUp(100, True)


def test_the_latest_cut_of_several_series_counts() -> None:
    early = np.concatenate((np.full(5, 9.0), np.ones(195)))
    late = np.concatenate((np.full(30, 9.0), np.ones(170)))
    assert warm_up(early, late).cut == warm_up(late, early).cut == 30


def test_steps_without_a_sample_count_for_nothing() -> None:
    means = np.concatenate((np.full(20, 50.0), np.resize([4.0, 6.0], 180)))
    means[[3, 40, 41, 42, 43, 44, 77]] = np.nan
    assert warm_up(means) == WarmUp(20, False)


@pytest.mark.parametrize("means", [np.arange(49.0), np.array([]), np.full(200, np.nan)])
def test_a_series_with_too_little_in_it_asks_for_no_cut(means: NDArray[np.float64]) -> None:
    assert warm_up(means) == WarmUp(0, False)


def test_no_series_asks_for_no_cut() -> None:
    assert warm_up() == WarmUp(0, False)


def flow(
    arrivals: int, completions: int, mean: float = 50.0, seconds: float = 70.0, service: float | None = 1.0
) -> Flow:
    """A window that starts with 50 in flight and keeps the books."""
    return Flow(
        arrivals=arrivals,
        completions=completions,
        in_flight_start=50,
        in_flight_end=50 + arrivals - completions,
        mean_in_flight=mean,
        seconds=seconds,
        service_seconds=service,
    )


# With 50 in flight the noise is 3 sqrt(100) = 30, with 400 it is 3 sqrt(800) = 84.9.
@pytest.mark.parametrize(
    ("arrivals", "completions", "mean", "stability"),
    [
        (2000, 2000, 50.0, Stability.STABLE),
        (2000, 2010, 50.0, Stability.STABLE),
        (2000, 1920, 50.0, Stability.STABLE),  # 4.0 % unserved is not more than 4 %
        (2000, 1919, 50.0, Stability.UNSTABLE),  # 4.05 %, and 81 > 30
        (2000, 1916, 400.0, Stability.STABLE),  # 4.2 %, but 84 is not beyond the noise
        (2000, 1915, 400.0, Stability.UNSTABLE),
        (100_000, 97_000, 50.0, Stability.STABLE),  # 3,000 more in flight, but 3 % unserved
        (1000, 865, 50.0, Stability.UNSTABLE),  # 135 > 3 sqrt(2000) = 134.2: few arrivals, but no chance
        (1000, 866, 50.0, Stability.TOO_SHORT),
    ],
)
def test_a_window_is_unstable_by_share_and_by_growth(
    arrivals: int, completions: int, mean: float, stability: Stability
) -> None:
    window = flow(arrivals, completions, mean)
    assert judge(window).stability is stability
    assert judge(window).growing is growing(window) is (stability is not Stability.STABLE)


@pytest.mark.parametrize(
    ("arrivals", "seconds", "service", "needed", "enough"),
    [
        (500, 35.0, 1.0, 35.0, True),  # 35 service times
        (500, 34.0, 1.0, 35.0, False),
        (2000, 10.0, 1.0, 10.0, True),  # 2,000 arrivals
        (1999, 10.0, 1.0, 20_000 / 1999, False),  # 2,000 at 199.9/s
        (500, 10.0, None, 40.0, False),  # 2,000 at 50/s
        (4000, 10.0, None, 5.0, True),  # 2,000 at 400/s
        (0, 35.0, 1.0, 35.0, True),
        (0, 10.0, None, None, False),
    ],
)
def test_a_window_needs_35_service_times_or_2000_arrivals(
    arrivals: int, seconds: float, service: float | None, needed: float | None, enough: bool
) -> None:
    verdict = judge(flow(arrivals, arrivals, seconds=seconds, service=service))
    assert verdict.needed_seconds == (needed if needed is None else pytest.approx(needed))
    assert (verdict.stability is not Stability.TOO_SHORT) is enough


def test_a_window_that_is_too_short_says_how_long_would_do() -> None:
    verdict = judge(flow(500, 100, seconds=10.0, service=2.0))
    assert verdict == Stationarity(
        Stability.TOO_SHORT,
        "10 s with 500 arrivals are too short to tell: it takes 35 service times or 2,000 arrivals, here 40 s",
        40.0,
        growing=True,
    )


def test_growth_over_few_arrivals_may_be_chance_and_says_how_many_would_do() -> None:
    # With 2 in flight, 12 more are beyond 3 sqrt(4) = 6, but not beyond 3 sqrt(2 x 35) = 25. 2,000 arrivals at 1/s.
    window = Flow(
        arrivals=35,
        completions=23,
        in_flight_start=1,
        in_flight_end=13,
        mean_in_flight=2.0,
        seconds=35.0,
        service_seconds=1.0,
    )
    assert judge(window) == Stationarity(
        Stability.TOO_SHORT,
        "35 arrivals, 23 completions; in flight +12: growing, but chance alone can do that; it takes 2,000 arrivals, "
        "here 2000 s",
        2000.0,
        growing=True,
    )


def test_an_unstable_window_says_what_grew() -> None:
    assert judge(flow(2000, 1800)).reason == (
        "2000 arrivals, 1800 completions; in flight +200: 10.0% more came than went (limit 4%), beyond the noise of 30"
    )


def verdicts(load: float, slots: int, seconds: float, seeds: int) -> Counter[Stability]:
    """Of windows after a warm-up of five service times."""
    return Counter(judge(window).stability for window in windows(load, slots, 5.0, seconds, seeds))


@pytest.mark.parametrize("load", [0.05, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("slots", [1, 4, 16, 64, 256])
def test_stable_queues_are_seldom_called_unstable_in_35_service_times(slots: int, load: float) -> None:
    seeds = 300 if slots < 256 else 150
    assert verdicts(load, slots, 35.0, seeds)[Stability.UNSTABLE] <= 0.02 * seeds


@pytest.mark.parametrize("load", [0.05, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("slots", [1, 4, 16])
def test_stable_queues_of_few_slots_are_called_stable_in_2000_arrivals(slots: int, load: float) -> None:
    # 2,100 are expected: 2,000 lie 2.2 standard deviations below, and 35 service times are long over but for 16 slots.
    counts = verdicts(load, slots, 2100 / (load * slots), 300)
    assert counts[Stability.UNSTABLE] <= 6
    assert counts[Stability.STABLE] >= 290


@pytest.mark.parametrize("slots", [64, 256])
def test_a_queue_at_110_percent_is_found_in_35_service_times(slots: int) -> None:
    # 64 slots at 1.1 take 2,464 arrivals in that time.
    assert verdicts(1.1, slots, 35.0, 200)[Stability.UNSTABLE] >= 0.88 * 200


@pytest.mark.parametrize("slots", [1, 4, 16])
def test_a_queue_of_few_slots_at_110_percent_is_found_in_2000_arrivals(slots: int) -> None:
    assert verdicts(1.1, slots, 2100 / (1.1 * slots), 300)[Stability.UNSTABLE] >= 0.88 * 300


def test_a_queue_of_few_slots_at_twice_its_rate_is_found_in_35_service_times() -> None:
    # 4 slots at 2 take 280 arrivals and serve half: 140 grow, where 3 sqrt(560) = 71 could be chance.
    assert verdicts(2.0, 4, 35.0, 200)[Stability.UNSTABLE] >= 0.95 * 200
