"""M/M/c queues, many at once, and the stages that looks at them give: what probes of an SLO are judged with.

Times are in mean service times. The percentiles of the truth are known exactly (D. Gross and C. M. Harris,
"Fundamentals of Queueing Theory", 3rd ed., section 2.3): with C the probability of Erlang's formula that an arrival
waits and d = c - a the rate at which a full system drains (a = c rho the offered load),

    P(wait > t)     = C exp(-d t)
    P(response > t) = (1 - C) exp(-t) + C (d exp(-t) - exp(-d t)) / (d - 1),

the latter from wait and service being independent; in M/M/1 (C = rho, d = 1 - rho) it is exp(-(1 - rho) t).
"""

from collections.abc import Callable
from math import exp

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.profile.slo import PERCENTILES
from loadgen.statistics.confidence import widened_ranks
from loadgen.statistics.histogram import ceiling_rank
from loadgen.statistics.stationarity import Flow, judge
from loadgen.summary.summary import Concurrency, Latencies, Latency, Stage, Stationary, Throughput, Window
from tests import handmade

Floats = NDArray[np.float64]


class Queues(msgspec.Struct, frozen=True):
    """What happened in many queues, each a row: arrivals in order, and when each departed; and the waits."""

    arrived: Floats
    departed: Floats
    wait: Floats


def simulate(servers: int, load: float, length: float, queues: int, seed: int) -> Queues:
    """M/M/c queues that begin empty, first come first served, from 0 to `length`."""
    rng = np.random.default_rng(seed)
    rate = servers * load
    count = int(rate * length + 5 * (rate * length) ** 0.5) + 20
    arrived = np.cumsum(rng.exponential(1 / rate, (count, queues)), axis=0)
    service = rng.exponential(1, (count, queues))
    begun = np.empty_like(arrived)
    free = np.zeros((queues, servers))  # when each server will be idle
    rows = np.arange(queues)
    for i in range(count):
        first = free.argmin(axis=1) if servers > 1 else 0
        begun[i] = np.maximum(arrived[i], free[rows, first])
        free[rows, first] = begun[i] + service[i]
    return Queues(arrived.T, (begun + service).T, (begun - arrived).T)


def waiting_probability(servers: int, load: float) -> float:
    """Erlang's C, from his B by the recursion B(k) = a B(k-1) / (k + a B(k-1))."""
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = load * servers * blocked / (k + load * servers * blocked)
    return blocked / (1 - load * (1 - blocked))


def beyond(latency: str, servers: int, load: float, t: float) -> float:
    """The share of requests whose `ttft` (here the wait) or `response` is longer than t."""
    waiting, drain = waiting_probability(servers, load), servers * (1 - load)
    if latency == "ttft":
        return waiting * exp(-drain * t)
    return (1 - waiting) * exp(-t) + waiting * (drain * exp(-t) - exp(-drain * t)) / (drain - 1)


def true_percentile(latency: str, servers: int, load: float, fraction: float) -> float:
    """By bisection of `beyond`."""
    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(latency, servers, load, middle) > 1 - fraction else (low, middle)
    return high


def run_probe(
    queues: Queues,
    number: int,
    rate: float,
    latency: str,
    percentile: str,
    first_look: float,
    length: float,
    decided: Callable[[Stage], bool],
) -> Stage:
    """The stage of one queue, ended by the first of the looks (at twice, four times, ... the first) that decides it."""
    arrived, departed, wait = queues.arrived[number], queues.departed[number], queues.wait[number]
    values = wait if latency == "ttft" else departed - arrived
    step = first_look * 0.75 / 24

    def measured(stop: float, *, looking: bool) -> Stage:
        come = int(np.searchsorted(arrived, stop))
        end = stop
        if looking:  # as far as all have ended
            waiting = arrived[:come][departed[:come] > stop]
            end = max(step, (min(waiting[0], stop) if waiting.size else stop) // step * step)
        start = end / step // 4 * step
        first, last = np.searchsorted(arrived, (start, end))
        flow = _flow(arrived, departed[:come], start, stop)
        judged = judge(flow)
        seconds = end - start
        intervals = max(1, round(seconds / step))
        places = np.minimum((arrived[first:last] - start) // step, intervals - 1).astype(np.int64)
        books = handmade.books(int(last - first))
        completed = float(((departed >= start) & (departed < end)).sum()) / seconds
        return handmade.stage(
            "probe",
            Window(start, seconds, books, books.intended),
            throughput=Throughput(completed, 0.0, 0.0),
            concurrency=Concurrency(flow.mean_in_flight, 0),
            latency_seconds=Latencies(**{latency: _latency(values[first:last], places, intervals, percentile)}),
            stationary=Stationary(str(judged.stability), judged.reason, judged.growing),
            offered_rate=rate,
        )

    look = first_look
    while look < length:
        if decided(measured(look, looking=True)):
            return measured(look, looking=False)
        look *= 2
    return measured(length, looking=False)


def _flow(arrived: Floats, departed: Floats, start: float, stop: float) -> Flow:
    """`departed` is of those who arrived before the stop."""
    come = np.searchsorted(arrived, (start, stop))
    gone = [int((departed < edge).sum()) for edge in (start, stop)]
    inside = np.clip(departed, start, stop) - np.clip(arrived[: departed.size], start, stop)
    return Flow(
        arrivals=int(come[1] - come[0]),
        completions=gone[1] - gone[0],
        in_flight_start=int(come[0]) - gone[0],
        in_flight_end=int(come[1]) - gone[1],
        mean_in_flight=float(inside.sum()) / (stop - start),
        seconds=stop - start,
        service_seconds=1.0,
    )


def _latency(values: Floats, places: NDArray[np.int64], intervals: int, percentile: str) -> Latency | None:
    """With the intervals of the percentile that is asked for and of the median."""
    if not values.size:
        return None
    ordered = np.sort(values)
    samples = np.bincount(places, minlength=intervals).astype(np.int64)
    at = {name: float(ordered[ceiling_rank(fraction, values.size) - 1]) for name, fraction in PERCENTILES.items()}
    ci: dict[str, tuple[float, float | None]] = {}
    for name, fraction in PERCENTILES.items():
        if name not in ("p50", percentile):
            continue
        below = np.bincount(places[values <= at[name]], minlength=intervals).astype(np.int64)
        ranks = widened_ranks(samples, below, fraction)
        ci[name] = (ordered[ranks.lower - 1], None if ranks.upper is None else ordered[ranks.upper - 1])
    return Latency(
        count=values.size, mean=float(values.mean()), stddev=float(values.std()), min=float(ordered[0]),
        max=float(ordered[-1]), p50=at["p50"], p90=at["p90"], p95=at["p95"], p99=at["p99"], p99_9=at["p99.9"], ci=ci,
    )  # fmt: skip
