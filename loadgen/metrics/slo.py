"""Service level objectives: what was promised, in the words of the profile's `[slo]` table, and whether it was kept."""

from collections.abc import Sequence
from math import sqrt
from typing import Annotated, Final, Literal

import msgspec

from loadgen.metrics.summary import PERCENTILES, SloCheck, SloVerdict, Stage
from loadgen.units import NS_PER_SECOND, Duration

LATENCIES: Final = ("ttft", "itl", "tpot", "response", "service")
"""The latencies that limits may be set on."""

MET: Final = "met"
MISSED: Final = "missed"
UNDECIDED: Final = "undecided"

ONE_TAIL: Final = 0.025
Z_975: Final = 1.959964
"""The .975 quantile of the normal distribution (any table of it)."""

Percentile = Literal["p50", "p90", "p95", "p99", "p99.9"]
Limits = dict[Percentile, Duration]


class Slo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on percentiles of a latency, and on the share of requests that may fail.

    Goodput holds each request to the same limits by its own values: to the largest limit of each latency, and for
    `itl` to the request's own percentile of its gaps.
    """

    ttft: Limits = {}
    itl: Limits = {}
    tpot: Limits = {}
    response: Limits = {}
    service: Limits = {}
    error_rate: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None


def check(slo: Slo, stages: Sequence[Stage]) -> SloVerdict:
    """Hold each promise against each stage.

    A limit on a percentile is judged by the percentile's 95 % confidence interval, not by its value: *met* where the
    upper end is at most the limit, *missed* where the lower end is above it, else *undecided*, also where the interval
    is open above or there is no sample. An open interval never lets a limit be met, however low the value: a run that
    is too short has not seen its bursts yet, and early values pass too easily. It can let one be missed, as what is
    not known can only add to the latency. A lower end that is the smallest sample bounds nothing by itself; the limit
    is missed then only if so many samples would hardly all lie above a percentile (`(1 - p)^n <= 2.5 %`).

    The share of failures, among requests of the window that completed or failed, is judged in the same way by Wilson's
    interval; a limit of 0 speaks of this run alone and is met where nothing failed.
    """
    checks: list[SloCheck] = []
    for stage in stages:
        checks += [
            _check_latency(stage, metric, percentile, limit)
            for metric in LATENCIES
            for percentile, limit in getattr(slo, metric).items()
        ]
        if slo.error_rate is not None:
            checks.append(_check_errors(stage, slo.error_rate))
    outcomes = {one.outcome for one in checks}
    met = False if MISSED in outcomes else None if UNDECIDED in outcomes else True
    return SloVerdict(met, checks)


def wilson_interval(failures: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share (E. B. Wilson, 1927); there is at least one trial."""
    share = failures / trials
    z_squared = Z_975 * Z_975
    centre = share + z_squared / (2 * trials)
    half = Z_975 * sqrt(share * (1 - share) / trials + z_squared / (4 * trials * trials))
    scale = 1 + z_squared / trials
    # At the ends the formula gives 0 and 1, which rounding must not move.
    low = (centre - half) / scale if failures else 0.0
    high = (centre + half) / scale if failures < trials else 1.0
    return low, high


def _check_latency(stage: Stage, metric: str, percentile: str, limit_ns: int) -> SloCheck:
    limit = limit_ns / NS_PER_SECOND
    latency = stage.latency_seconds.named().get(metric)
    if latency is None:
        return SloCheck(stage.name, metric, percentile, limit, UNDECIDED)
    ci = latency.ci.get(percentile)
    outcome = UNDECIDED
    if ci is not None:
        low, high = ci
        bounded = low > latency.min or (1 - PERCENTILES[percentile]) ** latency.count <= ONE_TAIL
        if low > limit and bounded:
            outcome = MISSED
        elif high is not None and high <= limit:
            outcome = MET
    return SloCheck(stage.name, metric, percentile, limit, outcome, latency.percentile(percentile), ci)


def _check_errors(stage: Stage, limit: float) -> SloCheck:
    books = stage.window.books
    ended = books.completed + books.failures
    if not ended:
        return SloCheck(stage.name, "error_rate", None, limit, UNDECIDED)
    low, high = wilson_interval(books.failures, ended)
    if low > limit:
        outcome = MISSED
    elif high <= limit or (limit == 0 and not books.failures):
        outcome = MET
    else:
        outcome = UNDECIDED
    return SloCheck(stage.name, "error_rate", None, limit, outcome, books.failures / ended, (low, high))
