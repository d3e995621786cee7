import heapq

import numpy as np
import pytest
from numpy.typing import NDArray

from loadgen.metrics.steady import Flow, Stability, Stationarity, WarmUp, growing, judge, warm_up


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


# With 50 in flight the noise is 3 sqrt(100) = 30.
@pytest.mark.parametrize(
    ("arrivals", "completions", "stability"),
    [
        (1000, 1000, Stability.STABLE),
        (1000, 1010, Stability.STABLE),
        (1000, 960, Stability.STABLE),  # 4.0 % unserved is not more than 4 %
        (1000, 959, Stability.UNSTABLE),  # 4.1 %, and 41 > 30
        (700, 670, Stability.STABLE),  # 4.3 %, but 30 is not beyond the noise
        (700, 669, Stability.UNSTABLE),
        (100_000, 97_000, Stability.STABLE),  # 3,000 more in flight, but 3 % unserved
    ],
)
def test_a_window_is_unstable_by_share_and_by_growth(arrivals: int, completions: int, stability: Stability) -> None:
    window = flow(arrivals, completions)
    assert judge(window).stability is stability
    assert growing(window) is (stability is Stability.UNSTABLE)


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
    )


def test_an_unstable_window_says_what_grew() -> None:
    assert judge(flow(1000, 900)).reason == (
        "1000 arrivals, 900 completions; in flight +100: 10.0% more came than went (limit 4%), beyond the noise of 30"
    )


def queue(load: float, slots: int, warm_up_seconds: float, seconds: float, seed: int) -> Flow:
    """A window of an M/M/c queue, first come first served, with a mean service of 1 s, started empty."""
    rng = np.random.default_rng(seed)
    end = warm_up_seconds + seconds
    arrivals = np.cumsum(rng.exponential(1 / (load * slots), int(load * slots * end * 2)))
    arrivals = arrivals[arrivals < end]
    free = [0.0] * slots  # when each slot is free, as a heap
    ends = np.empty(arrivals.size)
    services = rng.exponential(1.0, arrivals.size).tolist()
    for index, (arrival, service) in enumerate(zip(arrivals.tolist(), services, strict=True)):
        ends[index] = max(arrival, free[0]) + service
        heapq.heapreplace(free, ends[index])
    present = np.minimum(ends, end) - np.maximum(arrivals, warm_up_seconds)
    return Flow(
        arrivals=int((arrivals >= warm_up_seconds).sum()),
        completions=int(((ends >= warm_up_seconds) & (ends < end)).sum()),
        in_flight_start=int(((arrivals < warm_up_seconds) & (ends >= warm_up_seconds)).sum()),
        in_flight_end=int((ends >= end).sum()),
        mean_in_flight=float(present[present > 0].sum()) / seconds,
        seconds=seconds,
        service_seconds=1.0,
    )


def share_unstable(load: float, slots: int, seconds: float, seeds: int) -> float:
    windows = (queue(load, slots, 5.0, seconds, seed) for seed in range(seeds))
    return sum(judge(window).stability is Stability.UNSTABLE for window in windows) / seeds


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7, 0.8, 0.9])
def test_stable_queues_are_seldom_called_unstable(load: float) -> None:
    assert share_unstable(load, slots=64, seconds=35.0, seeds=300) <= 0.02


def test_a_queue_at_110_percent_is_found_in_35_service_times() -> None:
    assert share_unstable(1.1, slots=64, seconds=35.0, seeds=300) >= 0.88


def test_a_queue_of_few_slots_is_found_in_2000_arrivals() -> None:
    # 4 slots at load 1.1 and 1 s of service take 4.4 arrivals/s: 2,000 in 455 s, and 5 s to be sure.
    assert share_unstable(1.1, slots=4, seconds=460.0, seeds=100) >= 0.88
