from typing import Any

import pytest

from loadgen.report.tables import (
    brief,
    checks_by_stage,
    percent,
    printable,
    setting_text,
    shown_in_one_unit,
    significant,
    slo_rows,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.061234, "0.0612"),
        (0.9999, "1.00"),
        (1.234, "1.23"),
        (9.999, "10.0"),
        (12.34, "12.3"),
        (99.96, "100"),
        (123.4, "123"),
        (1234.4, "1,234"),
        (1234567.0, "1,234,567"),
        (-0.5, "-0.500"),
        (float("nan"), "-"),
        (float("inf"), "-"),
    ],
)
def test_a_number_has_three_significant_digits_and_all_before_the_point(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.00004, "0.004 %"), (0.0009, "0.09 %"), (0.0123, "1.2 %"), (0.31, "31 %"), (1.0, "100 %")],
)
def test_a_share_is_never_rounded_to_nothing(share: float, text: str) -> None:
    assert percent(share) == text


def test_what_cannot_be_printed_is_spelt_out_on_one_line() -> None:
    assert printable("a\n  b\x1b[0m \u202e\x00é") == "a b\\x1b[0m \\u202e\\x00é"


def test_a_long_text_is_cut_to_400_characters_on_one_line() -> None:
    assert brief("a\n" + "x" * 398) == "a " + "x" * 398  # 400 with the space
    assert brief("a\n" + "x" * 399) == "a " + "x" * 397 + "…"


@pytest.mark.parametrize(
    ("fields", "promise", "value"),
    [
        ({"limit": 0.5, "value": 0.1, "ci": (0.09, None)}, "ttft p99 ≤ 500 ms", "100 ms [90 ms, ?]"),
        (
            {"metric": "error_rate", "percentile": None, "limit": 0.01, "value": 0.002, "ci": None, "unit": "share"},
            "error_rate ≤ 1.0 %",
            "0.2 %",
        ),
        (
            {
                "metric": "goodput",
                "percentile": None,
                "limit": 20.0,
                "value": 21.0,
                "ci": (20.5, 21.5),
                "unit": "requests/s",
                "at_least": True,
            },
            "goodput ≥ 20.0/s",
            "21.0/s [20.5, 21.5]",
        ),
        (
            {
                "metric": "tokens_per_second_per_user",
                "limit": 20.0,
                "value": 41.0,
                "ci": (40.0, 42.0),
                "unit": "tokens/s",
                "at_least": True,
            },
            "tokens_per_second_per_user p99 ≥ 20.0 tokens/s",
            "41.0 tokens/s [40.0, 42.0]",
        ),
    ],
)
def test_a_promise_stands_in_its_own_unit_and_direction(
    build: Any, fields: dict[str, Any], promise: str, value: str
) -> None:
    (row,) = slo_rows([build.check(**fields)])
    assert (row.promise, str(row.value)) == (promise, value)


def test_checks_go_to_their_stages_and_of_stages_of_one_name_one_after_the_other(build: Any) -> None:
    stages = [build.stage("a"), build.stage("b"), build.stage("a"), build.stage("c")]
    checks = [build.check(stage=name, metric=metric) for name in "aba" for metric in ("ttft", "itl")]
    assert checks_by_stage(stages, checks) == [checks[0:2], checks[2:4], checks[4:6], []]


@pytest.mark.parametrize(
    ("p50", "ci", "text"),
    [
        (0.5, (0.95, 1.05), "1.00 s [0.950, 1.05]"),  # p99 is twice the median
        (0.05, (0.095, None), "100 ms [95.0, ?]"),
        (0.00025, (0.0004, 0.0012), "500 us [400, 1,200]"),
    ],
)
def test_an_interval_can_be_written_in_the_unit_of_its_value(
    build: Any, p50: float, ci: tuple[float, float | None], text: str
) -> None:
    assert str(shown_in_one_unit(build.latency(p50, ci={"p99": ci}), "p99")) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(64, "64"), (0.5, "0.5"), (True, "true"), ("a\nb", "a b"), ({"dist": "fixed"}, '{"dist":"fixed"}')],
)
def test_a_setting_is_written_as_people_write_it(value: object, text: str) -> None:
    assert setting_text(value) == text
