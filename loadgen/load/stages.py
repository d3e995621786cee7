"""What a load means as successive stages, and the time axis on which each is measured."""

from typing import Any, Final, Literal

import msgspec

from loadgen.load.arrivals import OpenLoop
from loadgen.measure.outcome import BINS_PER_INTERVAL, Grid
from loadgen.profile import AbortWhen, Concurrency, Offline, Step, Steps, Sweep
from loadgen.profile.load import process_at
from loadgen.units import NS_PER_MS, NS_PER_SECOND

MIN_INTERVALS: Final = 24
"""The interval of a percentile wants at least this many (docs/metrics.md)."""


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One stage to be run: its load with a rate or a concurrency of its own."""

    name: str
    load: Step | Concurrency | Offline
    drained: bool = True
    """Whether the target drains after this stage before the next one begins."""
    purpose: str | None = None
    """What a search asks it for, such as `low load`."""
    settings: dict[str, Any] = {}
    """The values of the profile's swept keys, by key."""
    repeat: int | None = None
    """Which of the repeats of its condition this is, from 1 on."""
    first_look_ns: int | None = None
    """From then on, at twice, four times, ... that time, the stage is looked at, and it ends as soon as a look decides
    its SLO or finds it unstable. None: it runs for its whole length.

    The window of such a stage begins at a quarter of what there is of it, at each look and at its end: give it no
    warm-up."""

    @property
    def kind(self) -> str:
        return self.load.kind

    @property
    def arrivals(self) -> OpenLoop | None:
        """The arrival process; None in a closed loop."""
        return None if isinstance(self.load, Concurrency) else self.load

    @property
    def concurrency(self) -> int | None:
        return self.load.concurrency if isinstance(self.load, Concurrency) else None

    @property
    def offered_rate(self) -> float | None:
        """Requests per second (a ramp's mean); None where starts do not follow a rate."""
        return self.load.mean_rate

    @property
    def abort_when(self) -> AbortWhen | None:
        return self.load.abort_when

    @property
    def overflow(self) -> Literal["wait", "drop"]:
        return self.load.overflow

    def grid(self, origin_ns: int) -> Grid:
        """The time axis of this stage if its arrivals start at `origin_ns`.

        An interval lasts 1 s, less where the window would hold fewer than `MIN_INTERVALS` of them, and divides the
        window evenly, so that the window ends where an interval ends. A stage of unknown length has 100 ms.
        """
        warmup_ns = 0 if self.load.warmup == "auto" else int(self.load.warmup)
        # Of a stage that is looked at, the first look must have enough of them behind its first quarter.
        length_ns = self.expected_ns() if self.first_look_ns is None else self.first_look_ns * 3 // 4
        if length_ns is None:
            interval_ns = 100 * NS_PER_MS
        else:
            window_ns = max(length_ns - warmup_ns, NS_PER_MS)
            interval_ns = window_ns // max(MIN_INTERVALS, -(-window_ns // NS_PER_SECOND))
        bin_ns = max(1, interval_ns // BINS_PER_INTERVAL)
        return Grid(origin_ns, origin_ns + warmup_ns, bin_ns * BINS_PER_INTERVAL)

    def expected_ns(self) -> int | None:
        """How long the arrivals are expected to last; None where only the target's speed decides."""
        bounds = [] if self.load.duration is None else [int(self.load.duration)]
        if self.load.requests is not None and self.offered_rate:
            bounds.append(round(self.load.requests / self.offered_rate * NS_PER_SECOND))
        return min(bounds, default=None)


def plan_stages(load: Steps | Step | Concurrency | Offline | Sweep) -> tuple[StagePlan, ...]:
    """The stages of a load that are known beforehand, in order; none of a sweep whose points are to be found."""
    if isinstance(load, Steps):
        last = len(load.steps) - 1
        return tuple(
            StagePlan(name=f"step {i + 1}: {step.title}", load=step, drained=i == last)
            for i, step in enumerate(load.steps)
        )
    if isinstance(load, Sweep):
        return tuple(StagePlan(name=point.title, load=point) for point in _points(load))
    return (StagePlan(name=load.title, load=load),)


def _points(sweep: Sweep) -> list[Step | Concurrency]:
    shared: dict[str, Any] = {
        "duration": sweep.duration,
        "requests": sweep.requests,
        "warmup": sweep.warmup,
        "drain": sweep.drain,
        "overflow": sweep.overflow,
        "abort_when": sweep.abort_when,
    }
    if sweep.concurrency:
        return [Concurrency(concurrency=slots, **shared) for slots in sweep.concurrency]
    return [process_at(sweep, rate, **shared) for rate in sweep.rates]
