"""What became of the promises of `[slo]`, as data; `slo` judges them. Part of the summary of a run."""

import msgspec


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


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value with its 95 % confidence interval, None where the window is too short to tell."""

    value: float
    ci: tuple[float, float] | None = None
