from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.slo import Slo, check, wilson_interval
from loadgen.metrics.summary import (
    Books,
    Concurrency,
    Latencies,
    Latency,
    Stage,
    Stationary,
    Throughput,
    Tokens,
    Window,
)
from loadgen.units import NS_PER_MS, Duration


def latency(p99: float, ci: tuple[float, float | None] | None, *, count: int = 10_000, least: float = 0.01) -> Latency:
    return Latency(
        count=count,
        mean=0.1,
        stddev=0.1,
        min=least,
        max=1.0,
        p50=0.1,
        p90=0.1,
        p95=0.1,
        p99=p99,
        p99_9=p99,
        ci={} if ci is None else {"p99": ci},
    )


def stage(ttft: Latency | None = None, *, completed: int = 100, failed: int = 0) -> Stage:
    books = Books(completed + failed, completed, {"http_503": failed} if failed else {}, 0, 0, 0, 0)
    return Stage(
        name="one",
        kind="poisson",
        books=books,
        window=Window(0, 10, books, completed),
        throughput=Throughput(1, 1, 1),
        concurrency=Concurrency(1, 1),
        latency_seconds=Latencies(ttft=ttft),
        tokens=Tokens("usage"),
        stationary=Stationary("stable", ""),
        short=0,
        ended_by="duration",
    )


LIMIT = Slo(ttft={"p99": Duration(500 * NS_PER_MS)})


@pytest.mark.parametrize(
    ("ci", "outcome"),
    [
        ((0.3, 0.5), "met"),  # the whole interval is within the limit
        ((0.3, 0.6), "undecided"),  # it spans the limit
        ((0.51, 0.6), "missed"),  # the whole interval is above
        ((0.3, None), "undecided"),  # open: it may yet be above
        ((0.51, None), "missed"),  # what is not known can only add
        (None, "undecided"),
    ],
)
def test_a_limit_is_judged_by_the_interval(ci: tuple[float, float | None] | None, outcome: str) -> None:
    verdict = check(LIMIT, [stage(latency(0.4, ci))])
    (one,) = verdict.checks
    assert (one.outcome, one.limit, one.value, one.ci) == (outcome, 0.5, 0.4, ci)


def test_a_value_above_the_limit_is_no_proof_where_the_interval_spans_it() -> None:
    assert check(LIMIT, [stage(latency(0.55, (0.4, 0.7)))]).checks[0].outcome == "undecided"


@pytest.mark.parametrize(
    ("percentile", "count", "outcome"), [("p50", 5, "undecided"), ("p50", 6, "missed"), ("p99", 1, "missed")]
)
def test_the_smallest_sample_is_a_lower_end_only_if_all_samples_would_hardly_lie_above(
    percentile: Any, count: int, outcome: str
) -> None:
    # All above the median: .5^5 = 3.1 %, .5^6 = 1.6 %. One sample above p99: 1 %.
    all_above = latency(0.6, None, count=count, least=0.6)
    all_above.ci[percentile] = (0.6, None)
    assert check(Slo(ttft={percentile: Duration(500 * NS_PER_MS)}), [stage(all_above)]).checks[0].outcome == outcome


def test_a_latency_without_a_sample_is_undecided() -> None:
    (one,) = check(LIMIT, [stage(None)]).checks
    assert (one.outcome, one.value) == ("undecided", None)


@pytest.mark.parametrize(
    ("completed", "failed", "limit", "outcome"),
    [
        (1000, 0, 0.01, "met"),  # Wilson: 0 .. .38 %
        (100, 0, 0.01, "undecided"),  # 0 .. 3.7 %
        (95, 5, 0.01, "missed"),  # 2.2 % .. 11 %
        (100, 0, 0.0, "met"),
        (9999, 1, 0.0, "missed"),
        (0, 0, 0.01, "undecided"),
    ],
)
def test_the_share_of_failures_is_judged_by_its_interval(
    completed: int, failed: int, limit: float, outcome: str
) -> None:
    (one,) = check(Slo(error_rate=limit), [stage(completed=completed, failed=failed)]).checks
    assert (one.metric, one.outcome) == ("error_rate", outcome)


def test_wilsons_interval_of_5_in_100_is_that_of_the_tables() -> None:
    assert wilson_interval(5, 100) == pytest.approx((0.02154, 0.11175), abs=1e-4)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilsons_interval_holds_the_share(counts: tuple[int, int]) -> None:
    low, high = wilson_interval(*counts)
    assert 0 <= low <= counts[0] / counts[1] <= high <= 1


def test_one_missed_promise_is_a_miss_and_one_undecided_leaves_it_open() -> None:
    met, missed, undecided = (stage(latency(0.4, ci)) for ci in ((0.3, 0.4), (0.6, 0.7), (0.4, None)))
    assert check(LIMIT, [met, met]).met is True
    assert check(LIMIT, [met, undecided]).met is None
    assert check(LIMIT, [met, undecided, missed]).met is False
