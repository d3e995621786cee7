"""The profile: one load test as frozen data. The names are those of the TOML file (docs/formats.md)."""

import json
import math
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from loadgen.metrics.slo import Slo
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.units import NS_PER_MS, NS_PER_SECOND, Duration, Rate

Positive = Annotated[int, msgspec.Meta(ge=1)]
TokenCount = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the profile."""


# --- target -----------------------------------------------------------------------------------------------------------


class HttpTarget(_Table, frozen=True, kw_only=True, tag_field="kind", tag="http"):
    """A server that speaks the OpenAI API as vLLM does."""

    url: str
    """Scheme, host and port, with or without a path such as `/v1`."""
    model: str = "auto"
    """`auto`: the first of `/v1/models`."""
    api_key_env: str | None = None
    """The name of the environment variable that holds the API key."""
    headers: dict[str, str] = {}
    stream: bool = True
    timeout: Duration = Duration(600 * NS_PER_SECOND)
    """For a whole request, from its send."""
    connect_timeout: Duration = Duration(10 * NS_PER_SECOND)
    preflight_timeout: Duration = Duration(10 * NS_PER_SECOND)
    """For the check before the load, its trial request included."""
    verify_tls: bool = True

    def __post_init__(self) -> None:
        _server(self.url)
        _positive(timeout=self.timeout, connect_timeout=self.connect_timeout, preflight_timeout=self.preflight_timeout)


class SimTarget(_Table, frozen=True, kw_only=True, tag_field="kind", tag="sim"):
    """The simulated vLLM: a server of its own on loopback, or a model inside each worker."""

    transport: Literal["http", "in-process"] = "http"
    stream: bool = True
    timeout: Duration = Duration(600 * NS_PER_SECOND)
    engine: SimConfig = SimConfig()
    faults: SimFaults = SimFaults()

    def __post_init__(self) -> None:
        _positive(timeout=self.timeout)


def _server(url: str) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, an IPv6 address without its end
        sound = False
    if not sound or any(character.isspace() for character in url):
        raise ValueError(
            f"url = {json.dumps(url)}: must be http://HOST:PORT or https://HOST:PORT, with or without a path"
        )
    if parts.query or parts.fragment:
        raise ValueError("url must have no ? or #")


def _positive(**durations: int) -> None:
    for name, duration in durations.items():
        if duration <= 0:
            raise ValueError(f"{name} must be longer than 0")


Target = HttpTarget | SimTarget

# --- workload ---------------------------------------------------------------------------------------------------------


class Fixed(_Table, frozen=True, kw_only=True, tag_field="dist", tag="fixed"):
    value: TokenCount


class Uniform(_Table, frozen=True, kw_only=True, tag_field="dist", tag="uniform"):
    """Every whole number from `min` to `max`, both included, equally likely."""

    min: TokenCount
    max: TokenCount

    def __post_init__(self) -> None:
        _ordered(self.min, self.max)


class Normal(_Table, frozen=True, kw_only=True, tag_field="dist", tag="normal"):
    """Normal of this mean and standard deviation, rounded, then clamped to [min, max]."""

    mean: Annotated[float, msgspec.Meta(gt=0, le=1e7)]
    sd: Annotated[float, msgspec.Meta(ge=0, le=1e7)]
    min: TokenCount = 1
    max: TokenCount | None = None

    def __post_init__(self) -> None:
        _ordered(self.min, self.max)


class Lognormal(_Table, frozen=True, kw_only=True, tag_field="dist", tag="lognormal"):
    """Lognormal of this mean and coefficient of variation (before clamping), rounded, then clamped to [min, max]."""

    mean: Annotated[float, msgspec.Meta(gt=0, le=1e7)]
    cv: Annotated[float, msgspec.Meta(ge=0, le=100)]
    min: TokenCount = 1
    max: TokenCount | None = None

    def __post_init__(self) -> None:
        _ordered(self.min, self.max)


class Choice(_Table, frozen=True, kw_only=True, tag_field="dist", tag="choice"):
    """One of `values`, equally likely or by `weights`."""

    values: Annotated[tuple[TokenCount, ...], msgspec.Meta(min_length=1)]
    weights: tuple[Annotated[float, msgspec.Meta(ge=0)], ...] | None = None

    def __post_init__(self) -> None:
        _weighted(self.weights, len(self.values), "values")


class Histogram(_Table, frozen=True, kw_only=True, tag_field="dist", tag="histogram"):
    """Uniform within the bin [edges[i], edges[i+1]) that is chosen with weight `weights[i]`."""

    edges: Annotated[tuple[TokenCount, ...], msgspec.Meta(min_length=2)]
    weights: tuple[Annotated[float, msgspec.Meta(ge=0)], ...]

    def __post_init__(self) -> None:
        if any(high <= low for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("edges must increase")
        _weighted(self.weights, len(self.edges) - 1, "bins")


Lengths = TokenCount | Fixed | Uniform | Normal | Lognormal | Choice | Histogram


def _ordered(low: int, high: int | None) -> None:
    if high is not None and high < low:
        raise ValueError(f"max = {high} is below min = {low}")


def _weighted(weights: tuple[float, ...] | None, count: int, what: str) -> None:
    if weights is None:
        return
    if len(weights) != count:
        raise ValueError(f"{len(weights)} weights for {count} {what}")
    if sum(weights) <= 0:
        raise ValueError("weights must not all be 0")


class Workload(_Table, frozen=True, kw_only=True):
    """What each request says: a pure function of (seed, nonce, index)."""

    kind: Literal["chat", "completion"] = "chat"
    source: Literal["synthetic"] = "synthetic"
    prompt_tokens: Lengths = 256
    output_tokens: Lengths | None = 64
    """Asked for with `max_tokens`, `min_tokens` and `ignore_eos`; `"none"` lets the model end by itself."""
    prompt_format: Literal["text", "tokens"] = "text"
    """`tokens`: prompts of token ids, exact in length, for `kind = "completion"`."""
    seed: Annotated[int, msgspec.Meta(ge=0)] = 1
    nonce: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Drawn afresh for each run where absent, so that no earlier run has warmed a prefix cache."""
    cache_bust: bool = True
    """False: nonce 0, the same prompts in every run."""
    tokenizer: str | None = None
    """A `tokenizer.json` or a folder that holds one (extra `tokenizers`); otherwise the server is asked."""
    body: dict[str, Any] = {}
    """Fields put into each request's body as they are."""

    def __post_init__(self) -> None:
        if self.prompt_format == "tokens" and self.kind != "completion":
            raise ValueError('prompt_format = "tokens" needs kind = "completion"')


# --- load -------------------------------------------------------------------------------------------------------------


class AbortWhen(_Table, frozen=True, kw_only=True):
    """End the run early once `after` requests have ended and at least `error_rate` of them failed."""

    error_rate: Fraction
    after: Positive = 50


class _Load(_Table, frozen=True, kw_only=True):
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


class Steps(_Table, frozen=True, kw_only=True, tag_field="kind", tag="steps"):
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


# --- the rest ---------------------------------------------------------------------------------------------------------


class Workers(_Table, frozen=True, kw_only=True):
    processes: Positive | Literal["auto"] = "auto"
    max_inflight: Positive = 4096
    """Requests in flight at once, over all workers."""
    launcher: Literal["local"] = "local"
    max_restarts: Annotated[int, msgspec.Meta(ge=0)] = 2
    """How often one worker is started again after it died."""
    lookahead: Duration = Duration(250 * NS_PER_MS)
    """How long before its due time a request is handed to a worker."""


class Output(_Table, frozen=True, kw_only=True):
    dir: str = "runs/{name}-{time}"
    formats: tuple[Literal["json", "csv", "html", "hlog"], ...] = ("json", "csv", "html", "hlog")
    records: bool = False
    """Write `requests.jsonl`, one line for each request that a worker ended."""


class Profile(_Table, frozen=True, kw_only=True):
    """One load test, complete: what `profile.toml` of a run holds."""

    name: str = "run"
    target: Target = SimTarget()
    workload: Workload = Workload()
    load: Load
    workers: Workers = Workers()
    slo: Slo | None = None
    output: Output = Output()
