"""Service level objectives: whether what the profile's `[slo]` table promises (`profile.slo`) was kept."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from loadgen.profile.slo import LATENCIES, PERCENTILES, Slo
from loadgen.statistics.proportion import wilson_interval
from loadgen.summary.summary import Latency, SloCheck, SloVerdict, Stage
from loadgen.units import NS_PER_SECOND

MET: Final = "met"
MISSED: Final = "missed"
UNDECIDED: Final = "undecided"

ONE_TAIL: Final = 0.025

Interval = tuple[float, float | None]


def check(slo: Slo, stages: Sequence[Stage]) -> SloVerdict:
    """Hold each promise against each stage.

    A promise is judged by a 95 % confidence interval, not by a value: of what must be at most its limit, *met* where
    the upper end is at most the limit, *missed* where the lower end is above it, else *undecided*; of what must be at
    least its limit (speed, goodput, attainment) the other way round. Without a sample it is undecided.

    **Latencies.** An interval that is open above never lets a limit be met, however low the value: a run that is too
    short has not seen its bursts yet, and early values pass too easily. It can let one be missed, as what is not known
    can only add to the latency. A lower end that is the smallest sample bounds nothing by itself; the limit is missed
    then only if so many samples would hardly all lie above a percentile (`(1 - p)^n <= 2.5 %`).

    **Tokens per second per user.** That 99 % of the requests get at least r tokens a second says the same as that the
    p99 of TPOT is at most 1/r: it is judged as that and told in tokens per second. The open end is then the lower one,
    and stands as 0, below which no speed lies.

    **The share of failures**, among requests of the window that completed or failed, has Wilson's interval; a limit
    of 0 speaks of this run alone and is met where nothing failed.

    **Goodput and attainment** have the intervals of `attainment.attained`, which the stage holds. An attainment of 1
    speaks of this run alone and is met where every request was good.
    """
    checks = [one for stage in stages for promise in PROMISES for one in promise(slo, stage)]
    return verdict_of(checks)


def verdict_of(checks: list[SloCheck]) -> SloVerdict:
    """All promises together: missed where one is, undecided where one is and none is missed."""
    outcomes = {one.outcome for one in checks}
    met = False if MISSED in outcomes else None if UNDECIDED in outcomes else True
    return SloVerdict(met, checks)


def _latencies(slo: Slo, stage: Stage) -> Iterator[SloCheck]:
    for metric in LATENCIES:
        for percentile, limit_ns in getattr(slo, metric).items():
            yield _check_latency(stage, metric, percentile, limit_ns / NS_PER_SECOND)


def _check_latency(stage: Stage, metric: str, percentile: str, limit: float) -> SloCheck:
    latency = stage.latency_seconds.named().get(metric)
    if latency is None:
        return SloCheck(stage.name, metric, percentile, limit, UNDECIDED)
    ci = latency.ci.get(percentile)
    outcome = UNDECIDED if ci is None else _judge_latency(latency, PERCENTILES[percentile], ci, limit)
    value, enough = latency.percentile(percentile), latency.sufficient.get(percentile, True)
    return SloCheck(stage.name, metric, percentile, limit, outcome, value, ci, sufficient=enough)


def _judge_latency(latency: Latency, fraction: float, ci: Interval, limit: float) -> str:
    low, high = ci
    if low > limit and (low > latency.min or (1 - fraction) ** latency.count <= ONE_TAIL):
        return MISSED
    return MET if high is not None and high <= limit else UNDECIDED


def _speeds(slo: Slo, stage: Stage) -> Iterator[SloCheck]:
    for percentile, limit in slo.tokens_per_second_per_user.items():
        tpot = _check_latency(stage, "tpot", percentile, 1 / limit)
        yield msgspec.structs.replace(
            tpot,
            metric="tokens_per_second_per_user",
            limit=limit,
            value=None if not tpot.value else 1 / tpot.value,
            ci=None if tpot.ci is None else _inverse(tpot.ci),
            unit="tokens/s",
            at_least=True,
        )


def _inverse(seconds: Interval) -> Interval:
    """The interval of a speed, from that of the time a token takes."""
    low, high = seconds
    return 0.0 if high is None else 1 / high if high else 0.0, 1 / low if low else None


def _errors(slo: Slo, stage: Stage) -> Iterator[SloCheck]:
    limit = slo.error_rate
    if limit is None:
        return
    books = stage.window.books
    ended = books.completed + books.failures
    if not ended:
        yield SloCheck(stage.name, "error_rate", None, limit, UNDECIDED, unit="share")
        return
    low, high = wilson_interval(books.failures, ended)
    if low > limit:
        outcome = MISSED
    elif high <= limit or (limit == 0 and not books.failures):
        outcome = MET
    else:
        outcome = UNDECIDED
    yield SloCheck(stage.name, "error_rate", None, limit, outcome, books.failures / ended, (low, high), unit="share")


def _goodput(slo: Slo, stage: Stage) -> Iterator[SloCheck]:
    limit = slo.goodput
    if limit is None:
        return
    value, ci = stage.throughput.goodput, stage.throughput.goodput_ci
    outcome = _judge_floor(ci, limit)
    yield SloCheck(stage.name, "goodput", None, limit, outcome, value, ci, unit="requests/s", at_least=True)


def _attainment(slo: Slo, stage: Stage) -> Iterator[SloCheck]:
    limit, share = slo.attainment, stage.attainment
    if limit is None:
        return
    value, ci = (None, None) if share is None else (share.value, share.ci)
    outcome = MET if limit == 1 and value == 1 else _judge_floor(ci, limit)
    yield SloCheck(stage.name, "attainment", None, limit, outcome, value, ci, unit="share", at_least=True)


def _judge_floor(ci: tuple[float, float] | None, limit: float) -> str:
    """The outcome where the quantity must be at least its limit."""
    if ci is None:
        return UNDECIDED
    low, high = ci
    return MISSED if high < limit else MET if low >= limit else UNDECIDED


PROMISES: Final[list[Callable[[Slo, Stage], Iterator[SloCheck]]]] = [
    _latencies,
    _speeds,
    _errors,
    _goodput,
    _attainment,
]
"""What each kind of promise says of a stage. A new one is a key of `[slo]` (`profile/slo.py`), a function, and a name
here."""
