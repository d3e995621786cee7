"""A look at a stage that is under way, and what of it can be told already.

A request that has not ended has no latency yet, and those that take longest end last. So a look goes only as far as
every request has ended; how many are in flight is known up to the moment.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from loadgen.measure.delta import COMPLETIONS, FAILURES
from loadgen.measure.outcome import Grid
from loadgen.statistics.stationarity import Flow, Stability, Stationarity, judge
from loadgen.summary.counts import Bins
from loadgen.summary.window import Span
from loadgen.units import NS_PER_MS, NS_PER_SECOND

_UNTOLD_NS: Final = 600 * NS_PER_MS
"""What happened so shortly ago may not have been told by every worker."""


class InterimLook(msgspec.Struct, frozen=True):
    """How far a stage that is under way can be looked at.

    now_ns: the moment.
    ended_before_ns: every request intended before this instant has ended.
    arrivals_by: how many requests were intended by an instant; None where nobody knows (closed loop).
    stretch_ns: how much of the end of it to look at; None: all but its first quarter.
    """

    now_ns: int
    ended_before_ns: int
    arrivals_by: Callable[[int], int] | None = None
    stretch_ns: int | None = None

    def intervals(self, grid: Grid) -> int:
        """Whole intervals of the stage that all of whose requests have ended."""
        return max(0, grid.interval_of(min(self.ended_before_ns, self.now_ns - _UNTOLD_NS)))

    def window(self, grid: Grid) -> Span:
        """What is looked at: whole intervals, at least one."""
        end = max(1, self.intervals(grid))
        if self.stretch_ns is None:
            first = end // 4
        else:
            first = max(0, min(end - 1, end - round(self.stretch_ns / grid.interval_ns)))
        return Span(grid, first, grid.window_ns + end * grid.interval_ns, cut=True)

    def stationarity(self, span: Span, bins: Bins, service_seconds: float | None) -> Stationarity:
        """Whether more comes than goes, from the start of the window to the moment; never so in a closed loop."""
        end_bin = span.grid.bin_of(self.now_ns - _UNTOLD_NS)
        if self.arrivals_by is None or end_bin <= span.first_bin:
            return Stationarity(Stability.TOO_SHORT, "it is under way", None)
        gone = [self._gone(bins, bin_number) for bin_number in (span.first_bin, end_bin)]
        come = [self.arrivals_by(span.grid.window_ns + edge * span.grid.bin_ns) for edge in (span.first_bin, end_bin)]
        inside = [came - went for came, went in zip(come, gone, strict=True)]
        return judge(
            Flow(
                arrivals=come[1] - come[0],
                completions=gone[1] - gone[0],
                in_flight_start=inside[0],
                in_flight_end=inside[1],
                mean_in_flight=max(0.0, sum(inside) / 2),
                seconds=(end_bin - span.first_bin) * span.grid.bin_ns / NS_PER_SECOND,
                service_seconds=service_seconds,
            )
        )

    @staticmethod
    def _gone(bins: Bins, end_bin: int) -> int:
        return round(sum(float(bins.slice(name, bins.first, end_bin).sum()) for name in (COMPLETIONS, FAILURES)))
