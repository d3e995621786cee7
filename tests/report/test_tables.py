import pytest

from loadgen.report.tables import brief, percent, printable, significant


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
