"""Service level objectives: what was promised, in the words of the profile's `[slo]` table."""

from typing import Annotated, Literal

import msgspec

from loadgen.units import Duration

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
