from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measure.delta import RATIO_ONE
from loadgen.measure.outcome import CANCELLED, DROPPED, FAILED, UNFINISHED, Outcome
from loadgen.profile.slo import RequestLimits, Slo
from loadgen.statistics.histogram import Histogram
from loadgen.statistics.sparse import Table
from loadgen.units import NS_PER_MS, Duration, Rate


def duration(ms: int) -> Duration:
    return Duration(ms * NS_PER_MS)


def good(build: Any, slo: Slo, **request: Any) -> bool:
    return bool(build.series(build.delta(build.outcome(**request), slo=slo), "good"))


def test_goodput_holds_each_request_to_the_largest_limit(build: Any) -> None:
    slo = Slo(ttft={"p50": duration(100), "p99": duration(300)})
    assert good(build, slo, tokens=(0.3,))
    assert not good(build, slo, tokens=(0.301,))


def test_goodput_holds_itl_to_the_share_of_the_requests_own_gaps(build: Any) -> None:
    slo = Slo(itl={"p90": duration(50)})
    gaps_of_10 = [0.1 + 0.01 * i for i in range(10)]
    one_of_ten = [*gaps_of_10, 0.19 + 0.06]  # 9 gaps of 10 ms and one of 60 ms: 10 % over, 10 % allowed
    assert good(build, slo, tokens=one_of_ten)
    assert not good(build, slo, tokens=[*one_of_ten, 0.25 + 0.06])


def test_what_a_request_does_not_have_it_does_not_miss(build: Any) -> None:
    slo = Slo(ttft={"p99": duration(1)}, itl={"p99": duration(1)}, tpot={"p99": duration(1)})
    assert good(build, slo, streamed=False, took=5)


def test_only_completed_requests_are_good(build: Any) -> None:
    assert not good(build, Slo(response={"p99": duration(10_000)}), account=FAILED + "http_503")


def test_the_longest_gap_counts_where_a_request_has_a_limit_of_its_own(build: Any) -> None:
    slo = Slo(itl={"p50": duration(20)}, request=RequestLimits(itl=duration(60)))
    gaps = [0.1, 0.12, 0.18]  # of 20 and 60 ms
    assert good(build, slo, tokens=gaps)
    assert not good(build, slo, tokens=[*gaps, 0.241])


@pytest.mark.parametrize("name", ["ttft", "tpot", "response", "service"])
def test_each_limit_of_a_request_counts(build: Any, name: str) -> None:
    # Sent .1 s late; ttft .4 s, tpot .3 s (two gaps), response 1.0 s, service .9 s.
    took = {"ttft": 400, "tpot": 300, "response": 1000, "service": 900}[name]
    request = {"late": 0.1, "tokens": (0.4, 0.7, 1.0), "output": 3}
    assert good(build, Slo(request=RequestLimits(**{name: duration(took)})), **request)
    assert not good(build, Slo(request=RequestLimits(**{name: duration(took - 1)})), **request)


def test_without_limits_on_requests_none_is_told_good(build: Any) -> None:
    assert not good(build, Slo(error_rate=0.1))


def ratios(build: Any, *outcomes: Outcome, slo: Slo) -> list[Histogram]:
    """The ratios of each of these requests."""
    found = []
    for outcome in outcomes:
        (piece,) = build.delta(outcome, slo=slo).ratios
        table = Table.open([piece])
        histogram = Histogram()
        histogram.add(table.merged(table.intervals * 0)[0][1])
        found.append(histogram)
    return found


def test_the_ratio_is_that_of_the_worst_value(build: Any) -> None:
    slo = Slo(attainment=0.9, request=RequestLimits(ttft=duration(200), response=duration(1000)))
    half, twice = ratios(build, build.outcome(tokens=(0.1, 0.4)), build.outcome(tokens=(0.1, 2.0)), slo=slo)
    assert half.max_ns == pytest.approx(RATIO_ONE / 2, rel=1e-6)
    assert twice.max_ns == pytest.approx(RATIO_ONE * 2, rel=1e-6)


@given(took=st.integers(1, 10**13), limit=st.integers(1, 10**13) | st.none())
def test_a_request_is_good_where_its_ratio_is_at_most_one(build: Any, took: int, limit: int | None) -> None:
    # None: the limit is just what it took. 10^13 ns are almost three hours, beyond what histograms hold.
    slo = Slo(attainment=0.9, response={"p99": Duration(took if limit is None else limit)})
    outcome = msgspec.structs.replace(build.outcome(tokens=()), end_ns=build.origin_ns + took)
    outcome.exchange.end_ns = outcome.end_ns
    delta = build.delta(outcome, slo=slo)
    (histogram,) = ratios(build, outcome, slo=slo)
    assert histogram.count_at_or_below(RATIO_ONE) == len(build.series(delta, "good"))


@given(
    gaps=st.lists(st.integers(1, 50), max_size=120),
    limits=st.fixed_dictionaries({"p50": st.integers(1, 50), "p90": st.integers(1, 50), "p99": st.integers(1, 50)}),
    longest=st.integers(1, 50) | st.none(),
)
def test_gaps_are_held_to_their_limits_alike_by_counting_and_by_order(
    build: Any, gaps: list[int], limits: dict[Any, int], longest: int | None
) -> None:
    request = None if longest is None else RequestLimits(itl=duration(longest))
    slo = Slo(attainment=0.9, itl={name: duration(ms) for name, ms in limits.items()}, request=request)
    outcome = build.outcome(tokens=[sum(gaps[:i]) / 1000 for i in range(len(gaps) + 1)])
    is_good = good_by_gaps(gaps, limits) if longest is None else max(gaps, default=0) <= longest
    (histogram,) = ratios(build, outcome, slo=slo)
    assert histogram.count_at_or_below(RATIO_ONE) == is_good
    assert bool(build.series(build.delta(outcome, slo=slo), "good")) == is_good


def good_by_gaps(gaps: list[int], limits: dict[str, int]) -> bool:
    """Whether at most 1 - p of the gaps are longer than the limit at p, in whole percent."""
    return all(
        100 * sum(gap > limit for gap in gaps) <= (100 - int(name[1:])) * len(gaps) for name, limit in limits.items()
    )


def test_only_a_promise_of_how_many_are_good_makes_ratios_travel(build: Any) -> None:
    assert build.delta(build.outcome(), slo=Slo(ttft={"p99": duration(1)})).ratios == []
    assert build.delta(build.outcome(), slo=Slo(ttft={"p99": duration(1)}, goodput=Rate(1))).ratios != []


@pytest.mark.parametrize("account", [CANCELLED, DROPPED, UNFINISHED, FAILED + "http_503"])
def test_what_did_not_complete_has_no_ratio(build: Any, account: str) -> None:
    slo = Slo(ttft={"p99": duration(1)}, attainment=0.9)
    assert build.delta(build.outcome(account=account), slo=slo).ratios == []
