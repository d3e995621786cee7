"""`[load]`: when requests start."""

import math
from typing import Annotated, Literal

import msgspec

from loadgen.profile.table import Fraction, Positive, Table
from loadgen.units import NS_PER_SECOND, Duration, Rate


class AbortWhen(Table, frozen=True, kw_only=True):
    """End the run early once `after` requests have ended and at least `error_rate` of them failed."""

    error_rate: Fraction
    after: Positive = 50


class _Load(Table, frozen=True, kw_only=True):
    duration: Duration | None = None
    """Length of the arrivals of one stage."""
    requests: Positive | None = None
    """Number of requests of one stage."""
    warmup: Duration | Literal["auto"] = Duration(0)
    drain: Duration = Duration(60 * NS_PER_SECOND)
    """How long requests are followed after the last arrival of a stage."""
    overflow: Literal["wait", "drop"] = "wait"
    abort_when: AbortWhen | None = None

    def __post_init__(self) -> None:
        if self.duration is None and self.requests is None:
            raise ValueError("needs duration or requests (or both)")
        if self.duration is not None and self.duration <= 0:
            raise ValueError("duration must be longer than 0")
        if isinstance(self.warmup, int) and self.duration is not None and self.warmup >= self.duration:
            raise ValueError("warmup must be shorter than duration")


class Constant(_Load, frozen=True, kw_only=True, tag_field="kind", tag="constant"):
    """Equal gaps of 1/rate, the first request at 0."""

    rate: Rate

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive_rates(rate=self.rate)


class Poisson(_Load, frozen=True, kw_only=True, tag_field="kind", tag="poisson"):
    """Independent exponential gaps of mean 1/rate."""

    rate: Rate

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive_rates(rate=self.rate)


class Gamma(_Load, frozen=True, kw_only=True, tag_field="kind", tag="gamma"):
    """Independent gamma gaps of mean 1/rate; `burstiness` is their shape: 1 is Poisson, below 1 is burstier."""

    rate: Rate
    burstiness: Annotated[float, msgspec.Meta(gt=0)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive_rates(rate=self.rate)


class Ramp(_Load, frozen=True, kw_only=True, tag_field="kind", tag="ramp"):
    """A Poisson process whose rate goes linearly from `start_rate` to `end_rate` over `duration`."""

    start_rate: Rate
    end_rate: Rate

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.duration is None:
            raise ValueError("needs duration")
        if min(self.start_rate, self.end_rate) < 0 or max(self.start_rate, self.end_rate) <= 0:
            raise ValueError("start_rate and end_rate must not be negative, nor both 0")


Step = Constant | Poisson | Gamma | Ramp


class Steps(Table, frozen=True, kw_only=True, tag_field="kind", tag="steps"):
    """Open-loop stages one after the other without a pause; each step is a load of its own."""

    steps: Annotated[tuple[Step, ...], msgspec.Meta(min_length=1)]


class Concurrency(_Load, frozen=True, kw_only=True, tag_field="kind", tag="concurrency"):
    """Closed loop: `concurrency` requests in flight at all times, each started the moment a slot is free."""

    concurrency: Positive


class Offline(_Load, frozen=True, kw_only=True, tag_field="kind", tag="offline"):
    """All `requests` at once, as MLPerf's offline scenario."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.requests is None or self.duration is not None:
            raise ValueError("needs requests, and takes no duration")


class Sweep(_Load, frozen=True, kw_only=True, tag_field="kind", tag="sweep"):
    """One stage for each of `rates` (or of `concurrency`), the target drained in between."""

    rates: tuple[Rate, ...] = ()
    concurrency: tuple[Positive, ...] = ()
    arrivals: Literal["constant", "poisson", "gamma"] = "poisson"
    burstiness: Annotated[float, msgspec.Meta(gt=0)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.rates) == bool(self.concurrency):
            raise ValueError("needs either rates or concurrency")
        values: tuple[float, ...] = self.rates or self.concurrency
        if len(set(values)) != len(values):
            raise ValueError("repeats a value")
        for rate in self.rates:
            _positive_rates(rates=rate)


Load = Constant | Poisson | Gamma | Ramp | Steps | Concurrency | Offline | Sweep


def _positive_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"{name} = {rate}: must be above 0 and finite")
