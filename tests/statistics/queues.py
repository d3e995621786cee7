"""Queues whose truth is known, simulated as fast as numpy allows. Times are in mean service times."""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from loadgen.statistics.stationarity import Flow

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]
"""Draws so many service times of mean 1."""


def random_service(rng: np.random.Generator, count: int) -> Floats:
    """Exponential: the queue is M/M/c."""
    return rng.exponential(1.0, count)


def equal_service(rng: np.random.Generator, count: int) -> Floats:
    """All the same: the queue is M/D/c."""
    return np.ones(count)


# --- one server: response times ---------------------------------------------------------------------------------------


def response_times(service: Draw, load: float, requests: int, seed: int) -> tuple[Floats, Floats]:
    """The instants of arrival and the response times of a queue with one server in its steady state.

    Lindley's recursion W' = max(0, W + S - A) unrolls to W_n = P_n - min(-W_0, P_1, ..., P_n) with P the partial sums
    of S - A.
    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / load, requests))
    services = service(rng, requests)
    steps = np.concatenate(([0.0], np.cumsum(services[:-1] - np.diff(arrivals))))
    floor = np.minimum.accumulate(np.concatenate(([-_steady_wait(service, load, rng)], steps[1:])))
    return arrivals, steps - floor + services


def _steady_wait(service: Draw, load: float, rng: np.random.Generator) -> float:
    """A wait drawn from the steady state, by Pollaczek and Khinchine: the sum of a geometric number of residual service
    times, which are exponential for exponential ones and uniform for equal ones."""
    waiting = rng.geometric(1 - load) - 1
    residual = rng.exponential(1.0, waiting) if service is random_service else rng.random(waiting)
    return float(residual.sum())


def true_percentile(service: Draw, load: float, fraction: float) -> float:
    """The percentile of the response time in the steady state.

    In M/M/1 it is exponential with mean 1 / (1 - load). In M/D/1 it is the wait and 1.
    """
    if service is random_service:
        return -math.log(1 - fraction) / (1 - load)
    low, high = 0.0, 100.0
    for _ in range(40):  # to 100 / 2**40
        middle = (low + high) / 2
        low, high = (middle, high) if wait_of_equal_services(load, middle) < fraction else (low, middle)
    return high + 1


def wait_of_equal_services(load: float, wait: float) -> float:
    """P(W <= t) in M/D/1 (A. K. Erlang, 1909):

        (1 - load) * sum for k = 0 .. floor(t) of (-load (t - k))^k / k! * exp(load (t - k))

    The terms alternate and grow like exp(load t), so that doubles lose all digits from t = 40 on: 60 decimals do not.
    """
    with localcontext() as context:
        context.prec = 60
        rate, total, factorial = Decimal(load), Decimal(0), 1
        for k in range(math.floor(wait) + 1):
            factorial *= max(1, k)
            exponent = rate * (Decimal(wait) - k)
            total += (-exponent) ** k / factorial * exponent.exp() if k else exponent.exp()
        return float((1 - rate) * total)


# --- many servers: what came and went ---------------------------------------------------------------------------------


def windows(load: float, slots: int, warm_up: float, seconds: float, seeds: int) -> Iterator[Flow]:
    """A window of each of so many M/M/c queues, first come first served, that start empty.

    All queues take their n-th arrival together. It is served by the slot that is free first; which one that is does not
    matter, so the row of the instants at which a queue's slots are free is all there is to know of it.
    """
    rng = np.random.default_rng(seeds * slots + round(100 * load))
    end = warm_up + seconds
    mean = load * slots * end
    count = math.ceil(mean + 6 * math.sqrt(mean) + 10)
    arrivals = np.cumsum(rng.exponential(1 / (load * slots), (count, seeds)), axis=0)
    ends = rng.exponential(1.0, (count, seeds))
    free = np.zeros((seeds, slots))
    rows = np.arange(seeds)
    for arrival, left in zip(arrivals, ends, strict=True):
        first = free.argmin(axis=1)
        left += np.maximum(arrival, free[rows, first])
        free[rows, first] = left
    came = arrivals < end
    inside = np.clip(np.minimum(ends, end) - np.maximum(arrivals, warm_up), 0, None)
    columns = (
        (came & (arrivals >= warm_up)).sum(axis=0),
        (came & (ends >= warm_up) & (ends < end)).sum(axis=0),
        ((arrivals < warm_up) & (ends >= warm_up)).sum(axis=0),
        (came & (ends >= end)).sum(axis=0),
        np.where(came, inside, 0.0).sum(axis=0) / seconds,
    )
    for arrived, completed, at_start, at_end, mean_in_flight in zip(*(c.tolist() for c in columns), strict=True):
        yield Flow(
            arrivals=arrived,
            completions=completed,
            in_flight_start=at_start,
            in_flight_end=at_end,
            mean_in_flight=mean_in_flight,
            seconds=seconds,
            service_seconds=1.0,
        )
