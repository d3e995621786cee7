from typing import Any

import pytest

from loadgen.judge.slo import check
from loadgen.profile.slo import LATENCIES, RequestLimits, Slo
from loadgen.summary.summary import (
    Estimate,
    Latencies,
    Latency,
    SloCheck,
    Stage,
    Stationary,
    Throughput,
    Window,
)
from loadgen.units import NS_PER_MS, Duration, Rate
from tests import handmade


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


def stage(
    ttft: Latency | None = None,
    *,
    completed: int = 100,
    failed: int = 0,
    goodput: tuple[float, tuple[float, float] | None] = (1.0, None),
    attainment: Estimate | None = None,
    **latencies: Latency,
) -> Stage:
    return handmade.stage(
        "one",
        Window(0, 10, handmade.books(completed + failed, failed), completed),
        throughput=Throughput(1, 1, 1, *goodput),
        latency_seconds=Latencies(ttft=ttft, **latencies),
        stationary=Stationary("stable", ""),
        attainment=attainment,
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
    assert (one.metric, one.unit, one.at_least, one.outcome) == ("error_rate", "share", False, outcome)


@pytest.mark.parametrize("metric", LATENCIES)
def test_a_limit_may_be_set_on_every_latency_that_is_the_targets_doing(metric: str) -> None:
    slo = Slo(**{metric: {"p99": Duration(500 * NS_PER_MS)}})
    (one,) = check(slo, [stage(**{metric: latency(0.4, (0.3, 0.45))})]).checks
    assert one == SloCheck("one", metric, "p99", 0.5, "met", 0.4, (0.3, 0.45), unit="seconds", at_least=False)


# --- tokens per second per user: a p99 of at least 20/s is a TPOT with a p99 of at most 50 ms -------------------------


@pytest.mark.parametrize(
    ("ci", "outcome", "speeds"),
    [
        ((0.02, 0.05), "met", (20.0, 50.0)),
        ((0.04, 0.08), "undecided", (12.5, 25.0)),
        ((0.0625, 0.1), "missed", (10.0, 16.0)),
        ((0.04, None), "undecided", (0.0, 25.0)),  # how slow it may get is not known
        ((0.0625, None), "missed", (0.0, 16.0)),
        ((0.0, 0.05), "met", (20.0, None)),
        (None, "undecided", None),
    ],
)
def test_a_speed_is_judged_by_the_time_that_a_token_takes(ci: Any, outcome: str, speeds: Any) -> None:
    slo = Slo(tokens_per_second_per_user={"p99": 20})
    (one,) = check(slo, [stage(tpot=latency(0.04, ci, least=0.0))]).checks
    assert (one.metric, one.percentile, one.unit, one.at_least) == (
        "tokens_per_second_per_user",
        "p99",
        "tokens/s",
        True,
    )
    assert (one.limit, one.value, one.outcome) == (20, pytest.approx(25), outcome)
    assert one.ci == (speeds if speeds is None else pytest.approx(speeds))


def test_a_speed_without_a_sample_is_undecided() -> None:
    (one,) = check(Slo(tokens_per_second_per_user={"p99": 20}), [stage()]).checks
    assert (one.outcome, one.value, one.ci, one.limit) == ("undecided", None, None, 20)


# --- goodput and attainment -------------------------------------------------------------------------------------------

PER_REQUEST = RequestLimits(ttft=Duration(500 * NS_PER_MS))


@pytest.mark.parametrize(
    ("ci", "outcome"),
    [((18.0, 22.0), "met"), ((17.9, 22.0), "undecided"), ((14.0, 17.9), "missed"), (None, "undecided")],
)
def test_goodput_must_be_at_least_its_limit(ci: tuple[float, float] | None, outcome: str) -> None:
    (one,) = check(Slo(goodput=Rate(18), request=PER_REQUEST), [stage(goodput=(20.0, ci))]).checks
    assert one == SloCheck("one", "goodput", None, 18.0, outcome, 20.0, ci, unit="requests/s", at_least=True)


@pytest.mark.parametrize(
    ("ci", "outcome"),
    [((0.95, 0.97), "met"), ((0.94, 0.97), "undecided"), ((0.9, 0.94), "missed"), (None, "undecided")],
)
def test_attainment_must_be_at_least_its_limit(ci: tuple[float, float] | None, outcome: str) -> None:
    (one,) = check(Slo(attainment=0.95, request=PER_REQUEST), [stage(attainment=Estimate(0.93, ci))]).checks
    assert one == SloCheck("one", "attainment", None, 0.95, outcome, 0.93, ci, unit="share", at_least=True)


@pytest.mark.parametrize(
    ("share", "outcome"),
    [
        (Estimate(1.0, (0.99, 1.0)), "met"),
        (Estimate(0.999, (0.99, 1.0)), "undecided"),
        (Estimate(0.9, (0.8, 0.95)), "missed"),
        (None, "undecided"),
    ],
)
def test_an_attainment_of_all_speaks_of_this_run_alone(share: Estimate | None, outcome: str) -> None:
    (one,) = check(Slo(attainment=1.0, request=PER_REQUEST), [stage(attainment=share)]).checks
    assert one.outcome == outcome


def test_one_missed_promise_is_a_miss_and_one_undecided_leaves_it_open() -> None:
    met, missed, undecided = (stage(latency(0.4, ci)) for ci in ((0.3, 0.4), (0.6, 0.7), (0.4, None)))
    assert check(LIMIT, [met, met]).met is True
    assert check(LIMIT, [met, undecided]).met is None
    assert check(LIMIT, [met, undecided, missed]).met is False
