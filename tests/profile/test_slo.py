from typing import Any

import msgspec
import pytest

from loadgen.profile.decoding import DecodingError, decode, encode
from loadgen.profile.slo import RequestLimit, RequestLimits, Slo, request_limits, slo_of
from loadgen.units import NS_PER_MS, Duration, Rate

MS = NS_PER_MS


def duration(ms: int) -> Duration:
    return Duration(ms * MS)


def test_without_a_table_of_its_own_a_request_is_held_to_the_largest_limit_of_each_latency() -> None:
    slo = Slo(
        ttft={"p50": duration(100), "p99": duration(300)},
        queued={"p99": duration(50)},
        itl={"p50": duration(20), "p99": duration(60)},
    )
    assert request_limits(slo) == [
        RequestLimit("ttft", 300 * MS),
        RequestLimit("queued", 50 * MS),
        RequestLimit("itl", 20 * MS, 0.5),
        RequestLimit("itl", 60 * MS, 0.99),
    ]


def test_the_lowest_speed_is_a_limit_on_tpot() -> None:
    # 1 / 30 s is 33,333,333.3 ns.
    assert request_limits(Slo(tokens_per_second_per_user={"p50": 60, "p99": 30})) == [RequestLimit("tpot", 33_333_333)]


def test_limits_of_a_request_stand_in_place_of_those_of_percentiles() -> None:
    slo = Slo(ttft={"p99": duration(300)}, request=RequestLimits(itl=duration(200), service=duration(4000)))
    assert request_limits(slo) == [RequestLimit("itl", 200 * MS), RequestLimit("service", 4000 * MS)]


@pytest.mark.parametrize("slo", [Slo(), Slo(error_rate=0.01)])
def test_promises_that_bear_on_no_request_limit_none(slo: Slo) -> None:
    assert request_limits(slo) == []


WHOLE = {
    "ttft": {"p99": "500ms"},
    "tokens_per_second_per_user": {"p99": 20.0},
    "error_rate": 0.01,
    "goodput": "18/s",
    "attainment": 0.95,
    "request": {"ttft": "1s", "itl": "200ms"},
}


def test_the_table_is_read_from_a_profile_and_written_to_it() -> None:
    slo = decode(Slo, WHOLE)
    assert slo.goodput == Rate(18)
    assert slo.request == RequestLimits(ttft=duration(1000), itl=duration(200))
    assert decode(Slo, encode(slo)) == slo


def test_a_journal_holds_the_table_of_its_profile() -> None:
    assert slo_of(encode(decode(Slo, WHOLE))) == decode(Slo, WHOLE)
    with pytest.raises(msgspec.ValidationError):
        slo_of({"ttft": {"p98": "1s"}})


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"goodput": 20}, "slo: goodput needs per-request limits: [slo.request], or a limit on a latency"),
        (
            {"attainment": 0.9, "error_rate": 0.1},
            "slo: attainment needs per-request limits: [slo.request], or a limit on a latency",
        ),
        ({"goodput": 0, "ttft": {"p99": "1s"}}, "slo: goodput = 0.0: must be above 0 and finite"),
        ({"goodput": -1, "ttft": {"p99": "1s"}}, "slo: goodput = -1.0: must be above 0 and finite"),
        ({"attainment": 1.5, "ttft": {"p99": "1s"}}, 'slo.attainment = 1.5: allowed: a number from 0 to 1 or "none"'),
        (
            {"tokens_per_second_per_user": {"p99": 0}},
            "slo.tokens_per_second_per_user.p99 = 0: allowed: a number above 0",
        ),
        ({"request": {}}, "slo.request: needs a limit: ttft, itl, tpot, response, service"),
        ({"lateness": {"p99": "1s"}}, "slo.lateness"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_in_one_line(table: dict[str, Any], fault: str) -> None:
    with pytest.raises(DecodingError) as refused:
        decode(Slo, table, "slo")
    (line,) = refused.value.faults
    assert line.startswith(fault)
