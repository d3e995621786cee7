"""Durations and rates: how people write them, and the integers and floats that the code computes with."""

import math
import re
from fractions import Fraction
from typing import Final

NS_PER_SECOND: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
NS_PER_US: Final = 1_000

_NS_PER_UNIT: Final = {
    "ns": 1,
    "us": NS_PER_US,
    "ms": NS_PER_MS,
    "s": NS_PER_SECOND,
    "m": 60 * NS_PER_SECOND,
    "h": 3600 * NS_PER_SECOND,
}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)")
_LONGEST_NS: Final = 100_000 * 3600 * NS_PER_SECOND
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+")
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*/\s*(s|sec|second|min|minute|h|hour)")
_SECONDS_PER_PERIOD: Final = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600}


class Duration(int):
    """A length of time in whole nanoseconds, written `"500ms"`, `"2m"` or `"1h30m"`; an int wherever it is used."""

    @property
    def seconds(self) -> float:
        return int(self) / NS_PER_SECOND


class Rate(float):
    """Events per second, written `20.0`, `"20/s"`, `"300/min"` or `"90/h"`; a float wherever it is used."""


def parse_duration(text: str) -> Duration:
    """Read a duration such as `"1h30m"`.

    Raises:
        ValueError: the text is no sequence of number and unit (ns, us, ms, s, m, h), or exceeds 100,000 h.
    """
    compact = text.replace(" ", "")
    if not _DURATION.fullmatch(compact):
        raise ValueError('a duration such as "500ms", "60s", "2m" or "1h30m"')
    # Fractions, because a float does not hold every nanosecond beyond 104 days.
    ns = sum(round(Fraction(number) * _NS_PER_UNIT[unit]) for number, unit in _PART.findall(compact))
    if ns > _LONGEST_NS:
        raise ValueError("a duration of at most 100000h")
    return Duration(ns)


def parse_rate(value: str | float) -> Rate:
    """Read a rate: a number of events per second, or text such as `"300/min"`.

    Raises:
        ValueError: the text is neither, or not finite.
    """
    if not isinstance(value, str):
        return Rate(value)
    match = _RATE.fullmatch(value.strip())
    try:
        rate = float(match[1]) / _SECONDS_PER_PERIOD[match[2]] if match else float(value)
    except ValueError:
        rate = math.nan
    if not math.isfinite(rate):
        raise ValueError('requests per second such as 20.0, "20/s" or "300/min"')
    return Rate(rate)


def format_duration(ns: int) -> str:
    """Write a duration (not negative) so that `parse_duration` reads the same number of nanoseconds back."""
    if ns == 0:
        return "0s"
    parts = []
    for unit in ("h", "m", "s", "ms", "us", "ns"):
        count, ns = divmod(ns, _NS_PER_UNIT[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def format_seconds(seconds: float) -> str:
    """Write a measured time for people: three significant digits, in us, ms or s."""
    if seconds >= 1:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    if seconds >= 0.9995e-3:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e6:.3g} us"
