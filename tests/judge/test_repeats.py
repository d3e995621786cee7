from math import sqrt

import numpy as np
import pytest
from msgspec.structs import replace

from loadgen.judge.repeats import across, repeats_of
from loadgen.summary.summary import Latencies, Latency, Stage, Stationary, Throughput, Window
from tests import handmade


def test_the_interval_of_a_mean_is_students() -> None:
    # 1, 2, 3: mean 2, s = 1, t(2) = 4.3027.
    found = across([1.0, 2.0, 3.0])
    assert (found.count, found.mean) == (3, 2.0)
    assert found.ci == pytest.approx((2 - 4.3027 / sqrt(3), 2 + 4.3027 / sqrt(3)))


def test_one_repeat_has_no_interval() -> None:
    assert across([5.0]).ci is None


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(10, 3, (4000, 5))
    covered = sum(low <= 10 <= high for row in rows if (found := across(row.tolist()).ci) for low, high in [found])
    # 95 % of 4,000, to within four standard deviations of sqrt(.05 * .95 / 4000) = .34 %.
    assert covered / 4000 == pytest.approx(0.95, abs=0.014)


def stage(repeat: int | None, rate: float, p99: float, *, enough: bool = True) -> Stage:
    latency = Latency(
        count=2000, mean=0.1, stddev=0.01, min=0.05, max=0.3, p50=0.1, p90=0.15, p95=0.2, p99=p99, p99_9=0.29,
        sufficient={"p50": True, "p90": True, "p95": True, "p99": enough, "p99.9": False},
    )  # fmt: skip
    return handmade.stage(
        f"poisson {rate:g}/s" if repeat is None else f"poisson {rate:g}/s (repeat {repeat})",
        Window(0, 10, handmade.books(10), 10),
        throughput=Throughput(requests=rate, output_tokens=0, prompt_tokens=0),
        latency_seconds=Latencies(ttft=latency),
        stationary=Stationary("stable", "it was"),
        offered_rate=rate,
        repeat=repeat,
    )


def test_repeats_are_grouped_by_their_condition_in_whatever_order_they_were_run() -> None:
    stages = [stage(1, 5, 0.2), stage(1, 10, 0.4), stage(2, 5, 0.3), stage(2, 10, 0.6)]
    five, ten = repeats_of(stages)
    assert (five.name, five.stages) == ("poisson 5/s", [0, 2])
    assert (ten.name, ten.stages) == ("poisson 10/s", [1, 3])
    assert five.values["ttft.p99"].mean == pytest.approx(0.25)
    assert ten.values["throughput.requests"].mean == 10


def test_points_of_a_grid_are_no_repeats_of_each_other() -> None:
    stages = [
        replace(stage(repeat, 5, 0.2), settings={"workload.output_tokens": tokens})
        for repeat in (1, 2)
        for tokens in (4, 8)
    ]
    assert [group.stages for group in repeats_of(stages)] == [[0, 2], [1, 3]]


def test_a_percentile_that_one_repeat_does_not_suffice_for_is_absent() -> None:
    (group,) = repeats_of([stage(1, 5, 0.2), stage(2, 5, 0.3, enough=False)])
    assert "ttft.p99" not in group.values
    assert "ttft.p50" in group.values
    assert "throughput.goodput" not in group.values


def test_stages_that_were_run_once_are_no_repeats() -> None:
    assert repeats_of([stage(None, 5, 0.2), stage(None, 10, 0.2)]) == []
