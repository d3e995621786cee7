"""The `[slo]` table: what is promised of a target, and which limits that sets on each single request."""

from math import isfinite
from typing import Annotated, Any, Final, Literal

import msgspec

from loadgen.units import NS_PER_SECOND, Duration, Rate, parse_duration, parse_rate

LATENCIES: Final = (
    "ttft",
    "ttft_content",
    "service_ttft",
    "itl",
    "tpot",
    "response",
    "service",
    "queued",
    "connect",
)
"""The latencies that limits may be set on: all but lateness, which is the generator's."""

Percentile = Literal["p50", "p90", "p95", "p99", "p99.9"]
Limits = dict[Percentile, Duration]
Speed = Annotated[float, msgspec.Meta(gt=0.0)]


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request must keep by its own values to be good. What it does not have it does not miss."""

    ttft: Duration | None = None
    itl: Duration | None = None
    """On the longest of its gaps."""
    tpot: Duration | None = None
    response: Duration | None = None
    service: Duration | None = None

    def __post_init__(self) -> None:
        if all(getattr(self, name) is None for name in self.__struct_fields__):
            raise ValueError(f"needs a limit: {', '.join(self.__struct_fields__)}")


class Slo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on percentiles of latencies and of speed, on the share of failures, and on how many requests are good.

    A request is good where it completed within `request`, or without that table within the largest limit of each
    latency (see `request_limits`).
    """

    ttft: Limits = {}
    ttft_content: Limits = {}
    service_ttft: Limits = {}
    itl: Limits = {}
    tpot: Limits = {}
    response: Limits = {}
    service: Limits = {}
    queued: Limits = {}
    connect: Limits = {}
    tokens_per_second_per_user: dict[Percentile, Speed] = {}
    """`p99 = 20`: 99 % of the requests get their tokens at 20 a second or faster."""
    error_rate: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None
    """At most this share of the requests that completed or failed."""
    goodput: Rate | None = None
    """At least so many good requests per second."""
    attainment: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None
    """At least this share of the requests is good."""
    request: RequestLimits | None = None

    def __post_init__(self) -> None:
        if self.goodput is not None and not (self.goodput > 0 and isfinite(self.goodput)):
            raise ValueError(f"goodput = {self.goodput}: must be above 0 and finite")
        if not request_limits(self):
            for name in ("goodput", "attainment"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} needs per-request limits: [slo.request], or a limit on a latency")


class RequestLimit(msgspec.Struct, frozen=True):
    """One limit on the own values of a request: of a latency at most `limit_ns`.

    fraction: which percentile of its values, where a request has several (gaps); 1 is the largest.
    """

    metric: str
    limit_ns: int
    fraction: float = 1.0


def request_limits(slo: Slo) -> list[RequestLimit]:
    """What makes a request good: the limits of `slo.request`, or else the largest limit of each latency.

    The latter holds for `itl` by percentile, of the request's own gaps. The lowest speed of
    `tokens_per_second_per_user` is a limit on TPOT. Empty where a request cannot be told good from bad.
    """
    if slo.request is not None:
        own = ((name, getattr(slo.request, name)) for name in slo.request.__struct_fields__)
        return [RequestLimit(name, limit) for name, limit in own if limit is not None]
    largest = [
        RequestLimit(name, max(limits.values()))
        for name in LATENCIES
        if name != "itl" and (limits := getattr(slo, name))
    ]
    gaps = [RequestLimit("itl", limit, PERCENTILES[percentile]) for percentile, limit in slo.itl.items()]
    speeds = slo.tokens_per_second_per_user.values()
    # TPOT is in whole ns, so that the whole part of the limit says the same.
    slowest = [RequestLimit("tpot", int(NS_PER_SECOND / min(speeds)))] if speeds else []
    return largest + gaps + slowest


def slo_of(plain: Any) -> Slo:
    """The table from plain data, as a resolved profile holds it.

    Raises:
        msgspec.ValidationError: it is no such table.
    """
    return msgspec.convert(plain, Slo, dec_hook=_read)


def _read(kind: type, value: Any) -> Any:
    """Durations and rates as profiles write them; durations in ns as well."""
    if kind is Duration:
        return parse_duration(value) if isinstance(value, str) else Duration(value)
    if kind is Rate:
        return parse_rate(value)
    raise NotImplementedError(kind)


PERCENTILES: Final = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
