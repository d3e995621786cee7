"""When requests start, as pure numbers: offsets in ns from the origin of a stage, drawn lazily in batches.

No clock and no sleeping here. Every process draws from the one seeded generator that it is given, and is bounded by the
stage's duration and number of requests; nothing conditions a random process on its count.
"""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.profile import Constant, Gamma, Offline, Poisson, Ramp
from loadgen.units import NS_PER_SECOND

OpenLoop = Constant | Poisson | Gamma | Ramp | Offline
Offsets = NDArray[np.int64]
"""Offsets in ns from the origin of the stage, never decreasing."""

_BATCH: Final = 4096


def arrivals(load: OpenLoop, rng: np.random.Generator) -> Iterator[Offsets]:
    """Draw the arrivals of one stage, batch by batch, until its duration or its number of requests is reached.

    An arrival belongs to the stage when its offset is below `duration`. The stream is endless only where the load has
    neither bound, which a profile refuses.
    """
    unbounded = PROCESSES[type(load)].draw(load, rng)
    left = load.requests
    for offsets in unbounded:
        within = offsets if load.duration is None else offsets[: np.searchsorted(offsets, load.duration, side="left")]
        batch = within if left is None else within[:left]
        if len(batch):
            yield batch
        if len(batch) < len(offsets):
            return
        if left is not None:
            left -= len(batch)
            if left == 0:
                return


def _constant(load: Constant, rng: np.random.Generator) -> Iterator[Offsets]:
    """Arrival i at i/rate, computed from i so that rounding does not add up."""
    first = 0
    while True:
        yield np.rint(np.arange(first, first + _BATCH) / load.rate * NS_PER_SECOND).astype(np.int64)
        first += _BATCH


def _poisson(load: Poisson, rng: np.random.Generator) -> Iterator[Offsets]:
    return _renewal(lambda: rng.exponential(1 / load.rate, _BATCH))


def _gamma(load: Gamma, rng: np.random.Generator) -> Iterator[Offsets]:
    """Gamma gaps of shape k and scale 1/(k rate): mean 1/rate, coefficient of variation 1/sqrt(k)."""
    return _renewal(lambda: rng.gamma(load.burstiness, 1 / (load.burstiness * load.rate), _BATCH))


def _renewal(draw_gaps: Callable[[], NDArray[np.float64]]) -> Iterator[Offsets]:
    elapsed = 0.0
    while True:
        instants = elapsed + np.cumsum(draw_gaps())
        elapsed = float(instants[-1])
        yield _to_ns(instants)


def _ramp(load: Ramp, rng: np.random.Generator) -> Iterator[Offsets]:
    r"""A Poisson process of rate r(t) = r0 + (r1 - r0) t/D, by inversion of its cumulative rate.

    With a unit-rate Poisson process at u_i, arrivals are at t_i = L^-1(u_i), where L(t) = r0 t + s t^2/2 and
    s = (r1 - r0)/D (Cinlar's method). L^-1(u) = 2u / (r0 + sqrt(r0^2 + 2 s u)), written so that s = 0 and r0 = 0 are
    no special cases. Beyond L(D) the stage is over.
    """
    assert load.duration is not None  # a ramp without one is no valid profile
    seconds = load.duration.seconds
    slope = (load.end_rate - load.start_rate) / seconds
    total = (load.start_rate + load.end_rate) / 2 * seconds
    cumulative = 0.0
    while True:
        unit = cumulative + np.cumsum(rng.exponential(1.0, _BATCH))
        cumulative = float(unit[-1])
        inside = unit[unit < total]
        root = np.sqrt(np.maximum(load.start_rate**2 + 2 * slope * inside, 0.0))
        beyond = np.full(len(unit) - len(inside), load.duration + 1, dtype=np.int64)
        yield np.concatenate((_to_ns(2 * inside / (load.start_rate + root)), beyond))


def _offline(load: Offline, rng: np.random.Generator) -> Iterator[Offsets]:
    while True:
        yield np.zeros(_BATCH, dtype=np.int64)


def _to_ns(seconds: NDArray[np.float64]) -> Offsets:
    return np.rint(seconds * NS_PER_SECOND).astype(np.int64)


# --- how many requests to expect, and by when -------------------------------------------------------------------------


def _by_rate(load: Constant | Poisson | Gamma, requests: float) -> float:
    return requests / load.rate


def _by_ramp(load: Ramp, requests: float) -> float:
    """Solves r0 t + s t^2/2 = n with s = (r1 - r0)/D, in the form that s = 0 and r0 = 0 leave whole."""
    assert load.duration is not None  # a ramp without one is no valid profile
    slope = (load.end_rate - load.start_rate) / load.duration.seconds
    return 2 * requests / (load.start_rate + math.sqrt(max(load.start_rate**2 + 2 * slope * requests, 0.0)))


def _at_once(load: Offline, requests: float) -> float:
    return 0.0


def expected(load: OpenLoop) -> tuple[float, float]:
    """How many requests a stage is expected to have, and the seconds that their arrivals take."""
    process, rate = PROCESSES[type(load)], load.mean_rate
    most = math.inf if load.requests is None else float(load.requests)
    seconds = math.inf if load.duration is None else load.duration.seconds
    requests = most if rate is None or math.isinf(seconds) else min(most, seconds * rate)
    if process.exact:
        # The first arrival is at 0, and one at `duration` is none any more; 1e-9 absorbs the product's rounding.
        requests = float(math.ceil(requests - 1e-9))
    return requests, min(seconds, process.seconds(load, requests))


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """An arrival process: how its arrivals are drawn, from offset 0 on and without an end; the instant in seconds by
    which it is expected to have made so many; and whether their number is no matter of chance."""

    draw: Callable[[Any, np.random.Generator], Iterator[Offsets]]
    seconds: Callable[[Any, float], float]
    exact: bool = False


PROCESSES: Final[dict[type, Process]] = {
    Constant: Process(draw=_constant, seconds=_by_rate, exact=True),
    Poisson: Process(draw=_poisson, seconds=_by_rate),
    Gamma: Process(draw=_gamma, seconds=_by_rate),
    Ramp: Process(draw=_ramp, seconds=_by_ramp),
    Offline: Process(draw=_offline, seconds=_at_once),
}
"""By their table of the profile. A new process is such a table (`profile/load.py`), its functions above, and a line."""


class Schedule:
    """The arrivals of one stage as absolute instants, taken as far as somebody wants to look ahead.

    The process is drawn once, in order, from `rng`. How many arrivals there are, and when the last one is, comes from
    walking a copy of the generator beforehand, which costs about 20 ns an arrival and no memory.
    """

    def __init__(self, load: OpenLoop, rng: np.random.Generator, origin_ns: int) -> None:
        self._load = load
        self._rng_at_start = deepcopy(rng)
        self._batches = arrivals(load, rng)
        self._origin_ns = origin_ns
        self._instants = np.empty(0, dtype=np.int64)
        self.count, last = self._walk(None)
        by_requests = load.requests is not None and self.count >= load.requests
        length_ns = last if by_requests or load.duration is None else int(load.duration)
        self.ended_by = "requests" if by_requests else "duration"
        """Which bound ends the arrivals."""
        self.end_ns = origin_ns + length_ns
        """When they end: at the last arrival of a given number, else when the duration is over."""

    def intended_by(self, instant_ns: int) -> int:
        """How many arrivals there are at or before an instant."""
        return self._walk(instant_ns - self._origin_ns)[0]

    def _walk(self, until: int | None) -> tuple[int, int]:
        count, last = 0, 0
        for batch in arrivals(self._load, deepcopy(self._rng_at_start)):
            within = batch if until is None else batch[: np.searchsorted(batch, until, side="right")]
            if len(within):
                count, last = count + len(within), int(within[-1])
            if len(within) < len(batch):
                break
        return count, last

    @property
    def next_ns(self) -> int | None:
        """The instant of the next arrival that has not been taken; None when all have been."""
        while not len(self._instants):
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._instants = batch + self._origin_ns
        return int(self._instants[0])

    def take(self, until_ns: int, limit: int) -> list[int]:
        """At most `limit` of the arrivals at or before `until_ns`, in order; each is handed out once."""
        taken: list[int] = []
        while len(taken) < limit and (first := self.next_ns) is not None and first <= until_ns:
            due = int(np.searchsorted(self._instants, until_ns, side="right"))
            count = min(due, limit - len(taken))
            taken.extend(self._instants[:count].tolist())
            self._instants = self._instants[count:]
        return taken
