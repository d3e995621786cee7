"""What one stage of a search under an SLO says: the target sustains this load, or does not, or that cannot be told.

`probe` judges a stage that has ended; `decided` whether a look at one that is under way has seen enough.
"""

from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from loadgen.judge.slo import MET, MISSED, UNDECIDED, check
from loadgen.profile.slo import PERCENTILES, Slo
from loadgen.statistics.proportion import Z_975, wilson_interval
from loadgen.summary.summary import SloCheck, Stage
from loadgen.units import format_seconds

Outcome = Literal["pass", "fail", "undecided", "measured"]

ENOUGH_REQUESTS: Final = 1_000
ENOUGH_BEYOND: Final = 15
CLEAR_REQUESTS: Final = 100

GROWTH_ARRIVALS: Final = 2_000
CLEAR_UNSERVED: Final = 0.25
CLEAR_ARRIVALS: Final = 200

FEWEST_FAILURES: Final = 5
"""Fewer are no sign of a share of failures: one of twelve is more than 1 %, by Wilson's interval."""
CLUSTERED: Final = 4
"""Failures and drops come in clusters: their share varies as that of so many fewer independent requests would."""
TURNED_AWAY: Final = 0.01
"""Without a promise on failures, the share of requests that a target which sustains its load may turn away."""


class Probe(msgspec.Struct, frozen=True):
    """The outcome of one stage and why, in words with the numbers; `measured` where it was there to measure."""

    outcome: Outcome
    reason: str


def probe(slo: Slo | None, stage: Stage) -> Probe:
    """What a stage that has ended says of the load it offered.

    It fails where the backlog grows, where the target turns requests away, or where a promise is missed; passes where
    all promises are met; and is undecided where the interval of one has its limit inside. Promises are judged by
    `judge.slo.check`.
    """
    failed = _overloaded(stage) or _turned_away(slo, stage)
    if failed is not None:
        return Probe("fail", failed)
    if stage.stationary.verdict == "unstable":
        return Probe("fail", f"unstable: {stage.stationary.reason}")
    checks = [] if slo is None else promises(slo, stage)
    missed, untold = ([one for one in checks if one.outcome == told] for told in (MISSED, UNDECIDED))
    if missed:
        return Probe("fail", _said(missed))
    return Probe("undecided", _said(untold)) if untold else Probe("pass", _said(checks) or "the backlog does not grow")


def decided(slo: Slo | None, stage: Stage) -> bool:
    """Whether a look at a stage under way decides it, so that it need not go on.

    stage: measured without its first quarter, up to where all that was intended has ended.

    A 95 % interval that is looked at again and again, and first at a few correlated samples, errs more often than its
    2.5 % on one side, most of it at the first looks: p99 of M/M/1 and M/M/4 at .95 of the rate that keeps its limit is
    called missed by 2.5 to 4 % of the looks at 750 samples alone, by 2.5 to 3 % at 1,500, by 1 to 2 % at 3,000. So a
    look decides by an interval of at least 1,000 requests with 15 samples beyond the percentile (p99: 1,500); by fewer
    only where the interval of a lower percentile, of at least 100 requests, is above the limit too: no near miss.

    Nor does growth of few requests say much: a single slot at load .8 looks as if it grew at one of five looks in 22 %
    of the cases. It counts from 2,000 arrivals on, or where a quarter of at least 200 requests is not served.

    By simulation of M/M/c queues, with looks at 15 mean service times S, 30 S, ..., at .8, .95 and 1.05 times the rate
    that keeps the limit (c servers, load there, percentile; 100 to 150 queues each, so wrong +- 2 %):

        c, load     of               within     wrong         decided
        128, .9     p99 of the wait  240 S      0,  2,  1 %   100, 19, 91 %
         64, .9     p99 of the wait  240 S      0,  1,  1 %    73,  3, 83 %
         64, .9     p99 of the wait  20,000     0,  1,  0 %    77,  6, 87 %   (arrivals)
         64, .9     p95 of the wait  240 S      0,  1,  0 %    97, 41, 82 %
          4, .8     p99 of the wait  20,000     1,  3,  0 %    88, 28, 71 %
          1, .7     p95 of response  20,000     1,  1,  5 %    96, 45, 60 %
          1, .8     p50 of response  20,000     0,  1,  2 %   100, 89, 77 %

    Near the limit most stages stay undecided, which is what the search says of them.
    """
    if _overloaded(stage) is not None or _turned_away(slo, stage) is not None:
        return True
    checks = [] if slo is None else promises(slo, stage)
    told = [one.outcome if _enough(stage, one) or _clear(stage, one) else UNDECIDED for one in checks]
    return MISSED in told or (bool(told) and all(outcome == MET for outcome in told))


def promises(slo: Slo, stage: Stage) -> list[SloCheck]:
    """The promises that this load can keep: good requests come no faster than they are asked for.

    A handful of failures does not break one, where any are allowed.
    """
    asked = stage.throughput.requests if stage.offered_rate is None else stage.offered_rate
    few = stage.window.books.failures < FEWEST_FAILURES
    return [
        replace(one, outcome=UNDECIDED)
        if one.metric == "error_rate" and one.outcome == MISSED and one.limit > 0 and few
        else one
        for one in check(slo, [stage]).checks
        if one.metric != "goodput" or one.limit <= asked
    ]


# --- growth and failures ----------------------------------------------------------------------------------------------


def _overloaded(stage: Stage) -> str | None:
    """In words that the backlog grows, where there are arrivals enough to rely on it."""
    arrivals = stage.window.books.intended
    if not stage.stationary.growing or not arrivals:
        return None
    ended = round(stage.throughput.requests * stage.window.seconds) + stage.window.books.failures
    unserved = 1 - ended / arrivals
    if arrivals < GROWTH_ARRIVALS and (arrivals < CLEAR_ARRIVALS or unserved < CLEAR_UNSERVED):
        return None
    return f"the backlog grows: of {arrivals} requests that came in {stage.window.seconds:.3g} s {ended} ended"


def _turned_away(slo: Slo | None, stage: Stage) -> str | None:
    """In words that more than 1 % of the requests failed or were dropped, by the lower end of Wilson's interval, which
    is made twice as wide since they come in clusters.

    Who refuses what is too much keeps its latencies. Where the SLO says how many may fail, that alone counts.
    """
    books = stage.window.books
    failed = 0 if slo is not None and slo.error_rate is not None else books.failures
    tried = books.completed + books.failures + books.dropped
    if failed + books.dropped < FEWEST_FAILURES or _lowest_share(failed + books.dropped, tried) <= TURNED_AWAY:
        return None
    parts = (f"{failed} failed" if failed else "", f"{books.dropped} were dropped" if books.dropped else "")
    return f"of {tried} requests {' and '.join(filter(None, parts))} (at most {TURNED_AWAY:.0%})"


def _lowest_share(turned_away: int, tried: int) -> float:
    return wilson_interval(turned_away, tried, CLUSTERED * Z_975 * Z_975)[0]


# --- how much a look must have seen -----------------------------------------------------------------------------------


def _enough(stage: Stage, one: SloCheck) -> bool:
    books = stage.window.books
    if books.completed + books.failures < ENOUGH_REQUESTS:
        return False
    if one.percentile is None:
        return True
    latency = stage.latency_seconds.named().get(_latency_of(one))
    return latency is not None and latency.count * (1 - PERCENTILES[one.percentile]) >= ENOUGH_BEYOND - 1e-6


def _clear(stage: Stage, one: SloCheck) -> bool:
    """Whether a promise is missed by a lower percentile too."""
    if one.outcome != MISSED or one.percentile is None or stage.window.books.completed < CLEAR_REQUESTS:
        return False
    latency = stage.latency_seconds.named().get(_latency_of(one))
    limit = 1 / one.limit if one.at_least else one.limit
    return latency is not None and any(latency.ci[name][0] > limit for name in _below(one.percentile) & set(latency.ci))


def _below(percentile: str) -> set[str]:
    return {name for name, fraction in PERCENTILES.items() if fraction < PERCENTILES[percentile]}


def _latency_of(one: SloCheck) -> str:
    """The latency whose samples a promise is judged by: speed is judged as TPOT."""
    return "tpot" if one.metric == "tokens_per_second_per_user" else one.metric


# --- words ------------------------------------------------------------------------------------------------------------


def _said(checks: list[SloCheck]) -> str:
    return "; ".join(map(_words, checks))


def _words(one: SloCheck) -> str:
    """Such as `ttft p99 412 ms [380 ms, 455 ms] is within its limit of 500 ms`."""
    name = " ".join(filter(None, (one.metric, one.percentile)))
    if one.value is None:
        return f"{name} has no samples"
    low, high = (None, None) if one.ci is None else one.ci
    interval = f" [{_quantity(low, one.unit)}, {_quantity(high, one.unit)}]"
    limit = _quantity(one.limit, one.unit)
    verdict = {
        MET: f"is within its limit of {limit}",
        MISSED: f"misses its limit of {limit}",
        UNDECIDED: f"does not tell on which side of {limit} it is",
    }[one.outcome]
    return f"{name} {_quantity(one.value, one.unit)}{interval} {verdict}"


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return "?"
    if unit == "seconds":
        return format_seconds(value)
    return f"{value:.2%}" if unit == "share" else f"{value:.4g} {unit}"
