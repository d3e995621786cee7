"""What a simulated engine and its server count of themselves: their own truth, for `/metrics` and for tests."""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from loadgen.clock import Clock
from loadgen.units import NS_PER_SECOND

# Upper bounds in seconds, those of vLLM's histograms.
TTFT_BOUNDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
ITL_BOUNDS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
LATENCY_BOUNDS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip


class Buckets:
    """A histogram of seconds in fixed buckets, cheap enough for every token."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One count for each bound, not cumulative, and the last for what is above them all."""
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


class EngineStatistics:
    """Totals and histograms since the engine began."""

    def __init__(self) -> None:
        self.requests = 0
        """Requests given to the engine."""
        self.finished = 0
        """Requests that got all of their tokens."""
        self.aborted = 0
        """Requests given up before that by whoever asked."""
        self.prompt_tokens = 0
        """Prompt tokens of requests that got their first token."""
        self.generation_tokens = 0
        self.ttft = Buckets(TTFT_BOUNDS)
        self.itl = Buckets(ITL_BOUNDS)
        self.queue = Buckets(LATENCY_BOUNDS)
        self.e2e = Buckets(LATENCY_BOUNDS)


class Concurrency(msgspec.Struct, frozen=True):
    """How many requests were in the server over a stretch of time."""

    seconds: float
    requests: int
    """Requests that came in that time."""
    mean: float
    """Time-weighted."""
    max: int


class ConcurrencyMeter:
    """Follows how many requests are in the server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.current = 0
        self.total = 0
        """Requests since the server began, resets apart."""
        self.max = 0
        """Most at once since the server began, resets apart."""
        self._changed_ns = clock.now_ns()
        self.reset()

    def reset(self) -> None:
        """Begin a new stretch."""
        self._advance()
        self._since_ns = self._changed_ns
        self._area_ns = 0
        self._stretch_requests = 0
        self._stretch_max = self.current

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one request while the block runs."""
        self._advance()
        self.current += 1
        self.total += 1
        self._stretch_requests += 1
        self._stretch_max = max(self._stretch_max, self.current)
        self.max = max(self.max, self.current)
        try:
            yield
        finally:
            self._advance()
            self.current -= 1

    def stretch(self) -> Concurrency:
        """What was seen since the last `reset`."""
        self._advance()
        elapsed_ns = self._changed_ns - self._since_ns
        mean = self._area_ns / elapsed_ns if elapsed_ns else float(self.current)
        return Concurrency(elapsed_ns / NS_PER_SECOND, self._stretch_requests, mean, self._stretch_max)

    def _advance(self) -> None:
        now_ns = self._clock.now_ns()
        if self.current:
            self._area_ns += self.current * (now_ns - self._changed_ns)
        self._changed_ns = now_ns
