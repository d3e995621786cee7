"""`[load]`: when requests start."""

import math
from typing import Annotated, Any, Literal

import msgspec

from loadgen.profile.decoding import Fraction, Positive, Table, positive
from loadgen.units import NS_PER_SECOND, Duration, Rate


class AbortWhen(Table, frozen=True, kw_only=True):
    """End the run early once `after` requests have ended and at least `error_rate` of them failed."""

    error_rate: Fraction
    after: Positive = 50


class StopWhen(Table, frozen=True, kw_only=True):
    """End a ramp at the first look, one a second, at which one of these holds over its last stretch."""

    slo_missed: bool = False
    """An SLO is missed."""
    backlog_growing: bool = False
    """More comes than goes, beyond the noise."""
    error_rate: Fraction | None = None
    """At least this share of the requests that ended failed."""

    def __post_init__(self) -> None:
        if not self.slo_missed and not self.backlog_growing and self.error_rate is None:
            raise ValueError("needs slo_missed, backlog_growing or error_rate")


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
    repeat: Positive = 1
    """How often each stage is run; where there are several, each is run once before any is run again."""

    def __post_init__(self) -> None:
        if self.duration is None and self.requests is None:
            raise ValueError("needs duration or requests (or both)")
        if self.duration is not None and self.duration <= 0:
            raise ValueError("duration must be longer than 0")
        if isinstance(self.warmup, int) and self.duration is not None and self.warmup >= self.duration:
            raise ValueError("warmup must be shorter than duration")

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def mean_rate(self) -> float | None:
        """Requests per second that are offered; None where starts do not follow a rate."""
        return None

    @property
    def title(self) -> str:
        """What a stage of it is called, such as `poisson 20/s`."""
        return self.kind


class _AtRate(_Load, frozen=True, kw_only=True):
    rate: Rate

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive_rates(rate=self.rate)

    @property
    def mean_rate(self) -> float:
        return float(self.rate)

    @property
    def title(self) -> str:
        return f"{self.kind} {self.rate:g}/s"


class Constant(_AtRate, frozen=True, kw_only=True, tag_field="kind", tag="constant"):
    """Equal gaps of 1/rate, the first request at 0."""


class Poisson(_AtRate, frozen=True, kw_only=True, tag_field="kind", tag="poisson"):
    """Independent exponential gaps of mean 1/rate."""


class Gamma(_AtRate, frozen=True, kw_only=True, tag_field="kind", tag="gamma"):
    """Independent gamma gaps of mean 1/rate; `burstiness` is their shape: 1 is Poisson, below 1 is burstier."""

    burstiness: Annotated[float, msgspec.Meta(gt=0)] = 1.0


class Ramp(_Load, frozen=True, kw_only=True, tag_field="kind", tag="ramp"):
    """A Poisson process whose rate goes linearly from `start_rate` to `end_rate` over `duration`."""

    start_rate: Rate
    end_rate: Rate
    stop_when: StopWhen | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.duration is None:
            raise ValueError("needs duration")
        if min(self.start_rate, self.end_rate) < 0 or max(self.start_rate, self.end_rate) <= 0:
            raise ValueError("start_rate and end_rate must not be negative, nor both 0")

    @property
    def mean_rate(self) -> float:
        return (self.start_rate + self.end_rate) / 2

    @property
    def title(self) -> str:
        return f"ramp {self.start_rate:g}/s to {self.end_rate:g}/s"


Step = Constant | Poisson | Gamma | Ramp


class Steps(Table, frozen=True, kw_only=True, tag_field="kind", tag="steps"):
    """Open-loop stages one after the other without a pause; each step is a load of its own."""

    steps: Annotated[tuple[Step, ...], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        if any(step.repeat != 1 for step in self.steps):
            raise ValueError("a step takes no repeat: steps follow each other without a pause")


class Concurrency(_Load, frozen=True, kw_only=True, tag_field="kind", tag="concurrency"):
    """Closed loop: `concurrency` requests in flight at all times, each started the moment a slot is free."""

    concurrency: Positive

    @property
    def title(self) -> str:
        return f"concurrency {self.concurrency}"


class Offline(_Load, frozen=True, kw_only=True, tag_field="kind", tag="offline"):
    """All `requests` at once, as MLPerf's offline scenario."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.requests is None or self.duration is not None:
            raise ValueError("needs requests, and takes no duration")

    @property
    def title(self) -> str:
        return f"offline {self.requests}"


class Sweep(_Load, frozen=True, kw_only=True, tag_field="kind", tag="sweep"):
    """One stage for each of `rates` (or of `concurrency`), the target drained in between; or for each of `points`
    rates between low load and the highest rate that the target completes, both of which are measured first."""

    rates: tuple[Rate, ...] = ()
    concurrency: tuple[Positive, ...] = ()
    points: Annotated[int, msgspec.Meta(ge=2)] | None = None
    spacing: Literal["linear", "geometric"] = "linear"
    """How `points` are spread."""
    arrivals: Literal["constant", "poisson", "gamma"] = "poisson"
    burstiness: Annotated[float, msgspec.Meta(gt=0)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.rates) + bool(self.concurrency) + (self.points is not None) != 1:
            raise ValueError("needs one of rates, concurrency and points")
        values: tuple[float, ...] = self.rates or self.concurrency
        if len(set(values)) != len(values):
            raise ValueError("repeats a value")
        for rate in self.rates:
            _positive_rates(rates=rate)


class Saturate(Table, frozen=True, kw_only=True, tag_field="kind", tag="saturate"):
    """A search for the highest rate, or concurrency, that the target sustains: under the profile's SLO, or without one
    before its queue grows. Its stages are as long as their questions need."""

    objective: Literal["rate", "concurrency"] = "rate"
    arrivals: Literal["constant", "poisson", "gamma"] = "poisson"
    burstiness: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    start_rate: Rate | None = None
    """The first rate tried; absent: a few times what one request after the other makes."""
    tolerance: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    """The ends of the bracket lie at most this far apart, as a share, where a bisection decides."""
    max_stage: Duration = Duration(600 * NS_PER_SECOND)
    """The longest stage."""
    max_time: Duration = Duration(3600 * NS_PER_SECOND)
    """For the whole search; then the best bracket so far is the answer."""
    drain: Duration = Duration(60 * NS_PER_SECOND)
    overflow: Literal["wait", "drop"] = "wait"
    abort_when: AbortWhen | None = None

    def __post_init__(self) -> None:
        if self.start_rate is not None:
            _positive_rates(start_rate=self.start_rate)
        if self.objective == "concurrency" and (self.start_rate is not None or self.arrivals != "poisson"):
            raise ValueError('objective = "concurrency" takes no start_rate and no arrivals: a closed loop has none')
        positive(max_stage=self.max_stage, max_time=self.max_time)


Load = Constant | Poisson | Gamma | Ramp | Steps | Concurrency | Offline | Sweep | Saturate


def process_at(load: Sweep | Saturate, rate: float, **settings: Any) -> Constant | Poisson | Gamma:
    """The arrivals that a sweep or a search was asked to have, at a rate. `settings`: the other keys of the process."""
    if load.arrivals == "gamma":
        return Gamma(rate=Rate(rate), burstiness=load.burstiness, **settings)
    return (Constant if load.arrivals == "constant" else Poisson)(rate=Rate(rate), **settings)


def is_search(load: Load) -> bool:
    """Whether the stages of a load are decided as it goes."""
    return isinstance(load, Saturate) or (isinstance(load, Sweep) and load.points is not None)


def _positive_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"{name} = {rate}: must be above 0 and finite")
