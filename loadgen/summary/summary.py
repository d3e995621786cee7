"""The summary of a run as data: what `summary.json` holds, field for field (docs/formats.md). No arithmetic here.

Times are in seconds, rates per second. A field that is absent was not measured; nothing stands as 0 for "unknown".
"""

from typing import Any, Final

import msgspec

from loadgen.measure.outcome import Books

SCHEMA: Final = 1


class Latency(msgspec.Struct, frozen=True, omit_defaults=True):
    """One latency over the window of a stage.

    `ci[p]` is the 95 % confidence interval of percentile p, its upper end None where the run is too short to close it;
    `sufficient[p]` says that at least 10 samples lie beyond the percentile; `at_least[p]` that requests which had not
    ended are among the samples so that the value is a lower bound.
    """

    count: int
    mean: float
    stddev: float
    min: float
    max: float
    p50: float
    p90: float
    p95: float
    p99: float
    p99_9: float = msgspec.field(name="p99.9")
    ci: dict[str, tuple[float, float | None]] = {}
    sufficient: dict[str, bool] = {}
    at_least: dict[str, bool] = {}
    lower_bounds: int = 0
    """How many of `count` are ages of requests that had not ended."""
    clamped: int = 0
    """How many lay outside 1 us .. 1 h and were counted at the end of that range."""

    def percentile(self, name: str) -> float:
        """The value of `p50`, `p90`, `p95`, `p99` or `p99.9`, in seconds."""
        return float(getattr(self, name.replace(".", "_")))


class Latencies(msgspec.Struct, frozen=True, omit_defaults=True):
    """The latencies that a stage has; one with no sample is None."""

    ttft: Latency | None = None
    ttft_content: Latency | None = None
    service_ttft: Latency | None = None
    itl: Latency | None = None
    tpot: Latency | None = None
    response: Latency | None = None
    service: Latency | None = None
    queued: Latency | None = None
    lateness: Latency | None = None
    connect: Latency | None = None
    failed: dict[str, Latency] = {}
    """Response time of failed requests by kind of failure."""

    def named(self) -> dict[str, Latency]:
        """The latencies that exist, by name, in the order of the fields; failures left out."""
        names = (field for field in self.__struct_fields__ if field != "failed")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Window(msgspec.Struct, frozen=True):
    """The measured part of a stage, in seconds from the stage's first intended instant."""

    start: float
    seconds: float
    books: Books
    sent: int
    """Requests intended in the window that were sent before the end of its last interval."""


class Throughput(msgspec.Struct, frozen=True, omit_defaults=True):
    """Events per second whose own instant lies in the window."""

    requests: float
    output_tokens: float
    prompt_tokens: float
    goodput: float | None = None
    """Of requests that met every limit of the SLO by their own values; None where there are no such limits."""
    goodput_ci: tuple[float, float] | None = None
    """Its 95 % confidence interval; None where none is promised, or the window is too short to tell."""
    items: float | None = None
    """Of what a request has several of, see `Items`."""


class Concurrency(msgspec.Struct, frozen=True):
    """Requests in flight over the window: the time-weighted mean, and the largest seen."""

    mean: float
    max: int


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was asked for and what came, as means per completed request of the window; None where not known."""

    counted_by: str
    """`usage`, `token_ids` or `chunks`: where output token counts come from, the poorest of any request."""
    prompt_asked: float | None = None
    prompt: float | None = None
    output_asked: float | None = None
    output: float | None = None
    per_chunk: float | None = None
    """Mean output tokens of a token-bearing chunk."""
    events_per_read: float | None = None


class Items(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a request has several of, as means per completed request of the window; None where not known."""

    what: str
    """Such as `vectors`."""
    mean: float | None = None
    dimensions: float | None = None
    """Length of a vector."""
    real_time_factor: float | None = None
    """Of sounds: mean service time by their length; below 1 is faster than speech."""


class Stationary(msgspec.Struct, frozen=True, omit_defaults=True):
    """`verdict` is `stable`, `unstable` or `too_short`; `reason` says in a sentence why, and how long would do."""

    verdict: str
    reason: str
    growing: bool = False
    """More came than went, beyond the noise, whether or not the window is long enough to rely on it."""


class Series(msgspec.Struct, frozen=True):
    """Columns of equal length, one entry an interval of `interval` seconds from the stage's origin; None: no sample."""

    interval: float
    start: list[float]
    arrivals: list[int]
    completed: list[int]
    failed: list[int]
    output_tokens: list[float]
    """Per second."""
    in_flight: list[float]
    ttft_p50: list[float | None]
    ttft_p99: list[float | None]
    response_p50: list[float | None]
    response_p99: list[float | None]


SWEEP_POINT: Final = "sweep"
"""The purpose of a stage that a search was made for, and that is none of its questions."""


class Accuracy(msgspec.Struct, frozen=True):
    """How often the answers of a choice were the expected ones, over the completed requests of the window whose right
    label is known."""

    share: float
    correct: int
    judged: int


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value with its 95 % confidence interval, None where the window is too short to tell."""

    value: float
    ci: tuple[float, float] | None = None


class Stage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One stage: a stretch of the run under one condition."""

    name: str
    kind: str
    books: Books
    window: Window
    throughput: Throughput
    concurrency: Concurrency
    latency_seconds: Latencies
    tokens: Tokens
    stationary: Stationary
    short: int
    """Completed requests whose output was shorter than asked for under `ignore_eos`."""
    ended_by: str
    """What ended the arrivals: `duration`, `requests`, `decided` (a look at a probe), `stop_when`, `max_time`,
    `interrupted`, `abort_when`, `failure`, or `killed`."""
    offered_rate: float | None = None
    """Requests per second that the load asked for; None in a closed loop and offline."""
    intended_concurrency: int | None = None
    """The slots of a closed loop."""
    failure_messages: dict[str, str] = {}
    """By kind of failure the words of one, of the first that was heard of; a kind that came without words has none."""
    items: Items | None = None
    """None for kinds of workload whose requests have one answer each."""
    labels: dict[str, int] = {}
    """By label, the completed requests of the window whose answer it was; empty where answers are no labels."""
    accuracy: Accuracy | None = None
    """None where no request says which label is right."""
    rows_again: int = 0
    """Requests that were sent and said what an earlier one of the run had said: the dataset has fewer rows."""
    retries: int = 0
    """How often requests were sent again since the server asked them to wait (`target.retry`)."""
    end_reason: str | None = None
    """What ended it early, in a sentence, where there is more to say than `ended_by` does."""
    attainment: Estimate | None = None
    """The share of the window's requests that were good; None where none is promised."""
    purpose: str | None = None
    """What a search asked this stage for, such as `low load`; None where the load itself has it."""
    settings: dict[str, Any] = {}
    """The values of the profile's swept keys in this stage, by key."""
    repeat: int | None = None
    """Which of the repeats of its condition this is, from 1 on; None where there is one only."""
    generator_faults: list[str] = []
    """Why the numbers of this stage are the generator's rather than the target's, a sentence each."""
    series: Series | None = None
    curves: dict[str, list[tuple[float, float]]] = {}
    """For each latency the points (fraction, seconds) of its percentile curve."""

    @property
    def asked_by_search(self) -> bool:
        """Whether it answers a question of a search, which judges it; otherwise it is held against the SLO."""
        return self.purpose not in (None, SWEEP_POINT)


class TargetStart(msgspec.Struct, frozen=True):
    """The last start of a target that a worker holds itself, such as an engine."""

    start_seconds: float
    memory_bytes: int
    """Of the worker and of all processes below it, after the start."""


class WorkerReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one worker cost. `cpu` is its share of one core over the run, `deaths` how each of its processes died."""

    worker: int
    pid: int | None
    cpu: float
    rss_bytes: int
    restarts: int
    deaths: list[str]
    gc_seconds: float
    gc_max_seconds: float
    target: TargetStart | None = None
    """None where the target has no start of its own. Its earlier lives, one for each of `restarts`, had theirs."""


class Generator(msgspec.Struct, frozen=True, omit_defaults=True):
    """The generator's own error and cost."""

    workers: list[WorkerReport]
    parent_cpu: float | None = None
    """The parent's share of one core over the run; None where the run was killed."""
    credits_exhausted_seconds: float | None = None
    """How long the producer had requests due and no worker with a free credit; None where the run was killed."""
    lateness: Latency | None = None
    loop_lag: Latency | None = None


class SloCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """One promise held against one stage. `outcome` is `met`, `missed` or `undecided` (the interval has the limit).

    `value`, `ci` and `limit` are in `unit`: `seconds`, `tokens/s`, `requests/s` or `share`. `percentile` is None for
    what is no percentile.
    """

    stage: str
    metric: str
    percentile: str | None
    limit: float
    outcome: str
    value: float | None = None
    ci: tuple[float, float | None] | None = None
    unit: str = "seconds"
    sufficient: bool = True
    """Whether at least 10 samples lie beyond the percentile; else the value is hardly more than a maximum."""
    at_least: bool = False
    """The value must be at least the limit, not at most."""


class SloVerdict(msgspec.Struct, frozen=True):
    """`met` is None while no check decides it: all are met or undecided, and at least one is undecided."""

    met: bool | None
    checks: list[SloCheck]


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether the numbers are the target's and not the generator's; `reasons` says why not, one sentence each."""

    valid: bool
    reasons: list[str]
    warnings: list[str]
    slo: SloVerdict | None = None


class SearchPoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """One stage of a search and what it told. Rates are per second; `offered` is a concurrency where that is sought."""

    stage: int
    """Its place among the run's stages, from 0 on."""
    purpose: str
    outcome: str
    """`pass`, `fail` or `undecided`; `measured` where the stage was there to measure, not to decide."""
    reason: str
    """In a sentence, with its numbers."""
    offered: float | None = None
    seconds: float = 0.0
    """Length of its arrivals."""


class Overload(msgspec.Struct, frozen=True):
    """What an overloaded target completes, against its saturation rate."""

    offered: float
    completed: float
    """Requests per second, of the most overloaded stage once its slots were full."""
    loss: float
    """The share of the saturation rate that overload costs; 0 where it costs nothing."""


class SearchResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a search for the saturation rate, or concurrency, found, with the evidence (docs/metrics.md)."""

    kind: str
    """`saturate`, or `sweep` where the rates of a sweep lie between measured ends."""
    objective: str
    """`rate` or `concurrency`: what `saturation`, `bracket` and `offered` mean."""
    ended_by: str
    """`found`; `undecided`: only undecided points are left; `max_time`; `interrupted`; `target`: it does not answer,
    or fails from the first; `generator`: it was the bottleneck and the target was not reached; `abort_when`; `killed`;
    `failure`."""
    reason: str
    """In a sentence: how the search ended and what its answer is."""
    points: list[SearchPoint]
    saturation: float | None = None
    """The answer: the highest offered rate, or concurrency, that the target sustains, under the SLO if there is one."""
    bracket: tuple[float | None, float | None] = (None, None)
    """The highest that passed and the lowest that failed; None where there is none."""
    tolerance: float | None = None
    evidence: tuple[int | None, int | None] = (None, None)
    """The stages that prove the ends of the bracket."""
    undecided: tuple[float, float] | None = None
    """The lowest and the highest rate between the ends that could not be decided."""
    overload: Overload | None = None
    knee: float | None = None
    """Where the latency curve bends (Kneedle). For the eye only."""


class AcrossRepeats(msgspec.Struct, frozen=True):
    """A quantity over the repeats of a stage: its mean, and Student's 95 % interval of it; None with fewer than two."""

    count: int
    mean: float
    ci: tuple[float, float] | None


class Repeated(msgspec.Struct, frozen=True):
    """The repeats of one condition. `values` by name, such as `ttft.p99` (seconds) and `throughput.requests`."""

    name: str
    stages: list[int]
    values: dict[str, AcrossRepeats]


class Summary(msgspec.Struct, frozen=True):
    """A whole run."""

    name: str
    started_at: str
    """Wall time, ISO 8601 with offset; labels the run and is used for nothing else."""
    verdict: Verdict
    stages: list[Stage]
    generator: Generator
    environment: dict[str, Any]
    """loadgen, Python, machine, and what the target said of itself."""
    profile: dict[str, Any]
    """As resolved and run, secrets out."""
    search: SearchResult | None = None
    repeats: list[Repeated] = []
    simulated: bool = False
    """In virtual time, on a simulated target: `loadgen simulate`."""
    interrupted: bool = False
    """A person ended the run early."""
    failure: str | None = None
    """What ended the run early, in one line, where the generator or the target failed."""
    schema: int = SCHEMA
