"""What all searches need: their stages as plans, and what in a measured stage ends any search.

What a stage says to the question of one search is that search's own (`probe`, `rate`).
"""

from typing import Any, Final

from loadgen.judge.verdict import LATENESS_SHARE
from loadgen.load.stages import StagePlan
from loadgen.profile import Concurrency, Saturate
from loadgen.profile.load import process_at
from loadgen.summary.summary import Stage
from loadgen.units import NS_PER_SECOND, Duration

LOW_LOAD_REQUESTS: Final = 12
"""One after the other: the mean of exponential service times is known to 30 % from so few, and all of them miss a
median by chance in 1 of 4,096 cases only."""
MOSTLY_FAILED: Final = 0.9
MEASURED_WHOLLY: Final = ("duration", "requests", "decided")
"""How a stage ends (`Stage.ended_by`) that is a point of a search; any other was cut short together with its run."""


def low_load(load: Saturate) -> StagePlan:
    """The first stage of a search: a few requests one after the other, for the service time of an idle target.

    It is given up after `max_stage`.
    """
    return StagePlan(
        name="low load",
        load=Concurrency(concurrency=1, requests=LOW_LOAD_REQUESTS, duration=load.max_stage, **_shared(load)),
        purpose="low load",
    )


def at_rate(
    load: Saturate,
    rate: float,
    seconds: float,
    purpose: str,
    *,
    warmup_seconds: float = 0.0,
    first_look_seconds: float | None = None,
) -> StagePlan:
    """A stage at a rate (per second), with the arrivals that the search was asked to have.

    It lasts `seconds`, but never longer than `max_stage`. Give no warm-up together with a first look.
    """
    process = process_at(load, rate, **_shared(load), **_lengths(load, seconds, warmup_seconds))
    name = f"{load.arrivals} {rate:g}/s"
    return StagePlan(name=name, load=process, purpose=purpose, first_look_ns=_ns(first_look_seconds))


def at_concurrency(
    load: Saturate,
    slots: int,
    seconds: float,
    purpose: str,
    *,
    warmup_seconds: float = 0.0,
    first_look_seconds: float | None = None,
) -> StagePlan:
    """A stage of a closed loop of so many slots; lengths as in `at_rate`."""
    closed = Concurrency(concurrency=slots, **_shared(load), **_lengths(load, seconds, warmup_seconds))
    return StagePlan(name=f"concurrency {slots}", load=closed, purpose=purpose, first_look_ns=_ns(first_look_seconds))


def mean_service_seconds(stage: Stage) -> float | None:
    """The mean service time of the requests that completed; None where none did."""
    service = stage.latency_seconds.service
    return None if service is None else service.mean


def silence(stage: Stage) -> str | None:
    """Why the target of this stage cannot be searched, in a sentence: it completed nothing, or hardly anything.

    None where it answers.
    """
    books = stage.books
    tried = books.completed + books.failures + books.unfinished
    failed = f": {_failures(stage)}" if books.failures else ""
    if not books.completed:
        return f"the target completed none of {books.intended} requests{failed}"
    if books.failures + books.unfinished > MOSTLY_FAILED * tried:
        return f"the target completed only {books.completed} of {tried} requests{failed}"
    return None


def generator_fault(stage: Stage, *, latencies: bool = True) -> str | None:
    """Why the generator and not the target was the limit of this stage, in a sentence; None where it was not.

    Where the target's backlog grows it is overloaded, whatever the generator did besides, unless it is the generator's
    own backlog: requests that it did not send although their slots were free.

    latencies: whether the search looks at them. Whether a backlog grows does not depend on a few late requests; it
        takes a mean lateness of 5 % of the mean service time.
    """
    if not stage.books.completed:
        return None  # the target does not answer
    if not stage.generator_faults or (stage.stationary.growing and not _mostly_unsent(stage)):
        return None
    if not latencies and not _hindered(stage):
        return None
    return f"the generator was the bottleneck at {offered(stage)}: {'; '.join(stage.generator_faults)}"


def offered(stage: Stage) -> str:
    """The load of a stage in words: its rate, or its concurrency."""
    if stage.offered_rate is not None:
        return f"{stage.offered_rate:.4g}/s"
    return f"concurrency {stage.intended_concurrency}"


def arrivals_seconds(stage: Stage) -> float:
    """How long the arrivals of a stage lasted: what came before its window, and the window."""
    return stage.window.start + stage.window.seconds


def _hindered(stage: Stage) -> bool:
    """Whether requests were lost, or sent so late that the target's load was another one than was asked for."""
    lateness, service = stage.latency_seconds.lateness, stage.latency_seconds.service
    if stage.window.books.lost or lateness is None or service is None:
        return True
    return lateness.mean > LATENESS_SHARE * service.mean


def _mostly_unsent(stage: Stage) -> bool:
    """Whether at least half of the window's backlog was not even sent, and not for want of a slot."""
    books, latencies = stage.window.books, stage.latency_seconds
    backlog = books.intended - books.dropped - stage.throughput.requests * stage.window.seconds
    unsent = books.intended - books.dropped - stage.window.sent
    late, queued = (0.0 if each is None else each.mean for each in (latencies.lateness, latencies.queued))
    return late > queued and 2 * unsent >= backlog


def _failures(stage: Stage) -> str:
    kinds = sorted(stage.books.failed.items(), key=lambda item: (-item[1], item[0]))
    words = (f" ({message})" if (message := stage.failure_messages.get(kind)) else "" for kind, _ in kinds)
    return ", ".join(f"{count} {kind}{said}" for (kind, count), said in zip(kinds, words, strict=True))


def _shared(load: Saturate) -> dict[str, Any]:
    return {"drain": load.drain, "overflow": load.overflow, "abort_when": load.abort_when}


def _lengths(load: Saturate, seconds: float, warmup_seconds: float) -> dict[str, Any]:
    """`duration` and `warmup`; a stage that `max_stage` cuts short keeps the same share of warm-up."""
    duration_ns = min(int(load.max_stage), max(1, round(seconds * NS_PER_SECOND)))
    share = min(0.5, warmup_seconds / seconds)
    return {"duration": Duration(duration_ns), "warmup": Duration(int(duration_ns * share))}


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NS_PER_SECOND)
