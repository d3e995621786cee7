import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.units import NS_PER_SECOND, Duration, Rate, format_duration, format_seconds, parse_duration, parse_rate

LONGEST_NS = 100_000 * 3600 * NS_PER_SECOND


@given(st.integers(0, LONGEST_NS))
@example(2**53 + 1)
def test_a_written_duration_reads_back_to_the_nanosecond(ns: int) -> None:
    assert parse_duration(format_duration(ns)) == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0s", 0),
        ("1ns", 1),
        ("250us", 250_000),
        ("500ms", 500_000_000),
        ("1.5s", 1_500_000_000),
        ("2m", 120_000_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1h 30m", 5_400_000_000_000),
        ("9007199254740993ns", 9007199254740993),  # 2^53 + 1, which a float does not hold
    ],
)
def test_a_duration_is_a_sequence_of_numbers_and_units(text: str, ns: int) -> None:
    duration = parse_duration(text)
    assert duration == ns
    assert isinstance(duration, Duration)


@pytest.mark.parametrize("text", ["", "60", "s", "-1s", "1 day", "1e3s", "5 minutes", "1s2", ".5s", "100001h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration"):
        parse_duration(text)


def test_a_duration_tells_its_seconds() -> None:
    assert parse_duration("1500ms").seconds == 1.5


@pytest.mark.parametrize(
    ("value", "per_second"),
    [(20, 20.0), (0.5, 0.5), ("20", 20.0), ("20/s", 20.0), ("300/min", 5.0), ("90 / hour", 0.025), ("1e3/s", 1000.0)],
)
def test_a_rate_is_a_number_or_a_number_per_period(value: str | float, per_second: float) -> None:
    rate = parse_rate(value)
    assert rate == per_second
    assert isinstance(rate, Rate)


@pytest.mark.parametrize("text", ["", "fast", "20/day", "/s", "20 per second", "inf", "nan", "1e999/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="requests per second"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.000_002_5, "2.5 us"),
        (0.000_999_4, "999 us"),
        (0.000_999_7, "1 ms"),  # never "1e+03 us"
        (0.012_345, "12.3 ms"),
        (0.25, "250 ms"),
        (1.234, "1.23 s"),
        (12.34, "12.3 s"),
    ],
)
def test_a_measured_time_is_shown_in_its_own_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
