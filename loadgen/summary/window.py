"""Which part of a stage is measured, and how much went in and out of the target during it."""

from math import ceil
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.measure.delta import (
    ARRIVALS,
    COMPLETIONS,
    FAILURES,
    IN_FLIGHT_INTEGRAL,
    IN_FLIGHT_MAX,
    TTFT_COUNT,
    TTFT_SUM,
)
from loadgen.measure.journal import StageMeta
from loadgen.measure.outcome import BINS_PER_INTERVAL, Grid
from loadgen.statistics.stationarity import Flow, Stability, Stationarity, growing, judge, warm_up
from loadgen.summary.counts import Bins
from loadgen.summary.summary import Concurrency
from loadgen.units import NS_PER_SECOND

_FILLING_SERVICE_TIMES: Final = 3
"""A target that begins empty is about full after so many mean service times (95 % of exponential ones have ended)."""


class Span(msgspec.Struct, frozen=True):
    """The window of a stage: from the start of an interval to the instant at which the arrivals stopped.

    unsettled: the warm-up was to be found, and none ended in the first half of the stage.
    cut: the stage goes on after `stop_ns`, which ends an interval; what was intended later is not looked at yet.
    """

    grid: Grid
    first_interval: int
    stop_ns: int
    unsettled: bool = False
    cut: bool = False

    @property
    def start_ns(self) -> int:
        return self.grid.window_ns + self.first_interval * self.grid.interval_ns

    @property
    def seconds(self) -> float:
        return max(0, self.stop_ns - self.start_ns) / NS_PER_SECOND

    @property
    def intervals(self) -> int:
        """Into how many intervals it is cut, at least one; a remainder of less than a bin belongs to the last."""
        return max(1, ceil((self.stop_ns - self.start_ns - self.grid.bin_ns) / self.grid.interval_ns))

    @property
    def end_interval(self) -> int:
        """One beyond the last interval that it touches."""
        return max(self.first_interval, self.grid.interval_of(self.stop_ns - 1)) + 1

    @property
    def first_bin(self) -> int:
        return self.first_interval * BINS_PER_INTERVAL

    @property
    def end_bin(self) -> int:
        """One beyond the last bin that lies wholly inside; where none does, the first stands for the window."""
        return max(self.first_bin + 1, self.grid.bin_of(self.stop_ns))

    def holds(self, interval: int) -> bool:
        """Whether requests intended in an interval count: nothing is intended after the stop of a whole stage."""
        return interval >= self.first_interval and not (self.cut and interval >= self.end_interval)

    def total(self, bins: Bins, name: str) -> float:
        """The sum of a series over the bins inside."""
        return float(bins.slice(name, self.first_bin, self.end_bin).sum())

    def rate(self, bins: Bins, name: str) -> float:
        """Events per second over the bins inside."""
        seconds = (self.end_bin - self.first_bin) * self.grid.bin_ns / NS_PER_SECOND
        return self.total(bins, name) / seconds


def choose_window(meta: StageMeta, stop_ns: int, bins: Bins) -> Span:
    """The window of a stage: what an explicit warm-up leaves of it, or what follows the warm-up that is found; of a
    stage whose length looks decide, what follows its first quarter.

    The warm-up that is found is MSER-5 over the means by bin of the number in flight and of TTFT, rounded up to the
    start of an interval, and never past half of the stage.
    """
    if meta.from_quarter:
        return Span(meta.grid, max(0, meta.grid.interval_of(stop_ns - 1) + 1) // 4, stop_ns)
    if not meta.warmup_auto:
        return Span(meta.grid, 0, stop_ns)
    count = meta.grid.bin_of(stop_ns) - bins.first
    in_flight, ttft_sum, ttft_count = (
        bins.slice(name, bins.first, bins.first + count) for name in (IN_FLIGHT_INTEGRAL, TTFT_SUM, TTFT_COUNT)
    )
    ttft = np.divide(ttft_sum, ttft_count, out=np.full(ttft_sum.size, np.nan), where=ttft_count > 0)
    found = warm_up(in_flight / meta.grid.bin_ns, ttft)
    first_interval = min(ceil((bins.first + found.cut) / BINS_PER_INTERVAL), max(0, count) // 2 // BINS_PER_INTERVAL)
    return Span(meta.grid, first_interval, stop_ns, found.at_half)


def concurrency(span: Span, bins: Bins) -> Concurrency:
    """Requests in flight over the window. The maximum is the sum of the workers' maxima within one bin."""
    integral_ns = span.total(bins, IN_FLIGHT_INTEGRAL)
    largest = bins.slice(IN_FLIGHT_MAX, span.first_bin, span.end_bin).max()
    return Concurrency(integral_ns / ((span.end_bin - span.first_bin) * span.grid.bin_ns), round(float(largest)))


def stationarity(span: Span, bins: Bins, service_seconds: float | None) -> Stationarity:
    """Whether the window was stable.

    A target that begins empty fills up first, which is growth, but no sign of overload. So where the whole window
    grows, its part after three mean service times (but at least its second half) must grow too.
    """
    whole = flow(span, bins, span.first_bin, service_seconds)
    verdict = judge(whole)
    if not verdict.growing or service_seconds is None:
        return verdict
    filled = bins.first + ceil(_FILLING_SERVICE_TIMES * service_seconds * NS_PER_SECOND / span.grid.bin_ns)
    first = max(span.first_bin, min(filled, (span.first_bin + span.end_bin) // 2))
    if growing(flow(span, bins, first, service_seconds)):
        return verdict
    if verdict.stability is Stability.TOO_SHORT:
        return replace(verdict, growing=False)
    reason = f"in flight grew from {whole.in_flight_start} while the target filled, and no more after that"
    return Stationarity(Stability.STABLE, reason, verdict.needed_seconds)


def flow(span: Span, bins: Bins, first: int, service_seconds: float | None) -> Flow:
    """What came and went in the window from bin `first` on.

    In flight is here all that came and did not go, those included that wait for a slot: with a cap on requests in
    flight it is the queue before it that grows.
    """
    arrivals = bins.slice(ARRIVALS, bins.first, span.end_bin)
    gone = bins.slice(COMPLETIONS, bins.first, span.end_bin) + bins.slice(FAILURES, bins.first, span.end_bin)
    inside = np.concatenate(([0.0], np.cumsum(arrivals - gone)))[first - bins.first :]
    return Flow(
        arrivals=round(float(arrivals[first - bins.first :].sum())),
        completions=round(float(gone[first - bins.first :].sum())),
        in_flight_start=round(float(inside[0])),
        in_flight_end=round(float(inside[-1])),
        mean_in_flight=float(inside.mean()),
        seconds=(span.end_bin - first) * span.grid.bin_ns / NS_PER_SECOND,
        service_seconds=service_seconds,
    )
