"""A load as stages, and the time axis on which a stage is measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.load.stages import MIN_INTERVALS, StagePlan, plan_stages
from loadgen.profile import Concurrency, Constant, Gamma, Poisson, Ramp, Steps, Sweep
from loadgen.units import NS_PER_SECOND, Duration, Rate


def seconds(count: float) -> Duration:
    return Duration(round(count * NS_PER_SECOND))


def test_a_plain_load_is_one_stage():
    (plan,) = plan_stages(Poisson(rate=Rate(20), duration=seconds(60)))
    assert (plan.kind, plan.offered_rate, plan.concurrency, plan.drained) == ("poisson", 20, None, True)


def test_steps_follow_each_other_without_a_drain_in_between():
    steps = (Constant(rate=Rate(1), duration=seconds(1)), Poisson(rate=Rate(2), duration=seconds(1)))
    assert [(plan.kind, plan.drained) for plan in plan_stages(Steps(steps=steps))] == [
        ("constant", False),
        ("poisson", True),
    ]


def test_a_sweep_has_one_drained_stage_a_rate_with_everything_else_shared():
    sweep = Sweep(
        rates=(Rate(0.5), Rate(2000)), duration=seconds(5), warmup=seconds(1), arrivals="gamma", burstiness=2.0
    )
    plans = plan_stages(sweep)
    assert [plan.load for plan in plans] == [
        Gamma(rate=rate, burstiness=2.0, duration=seconds(5), warmup=seconds(1)) for rate in (Rate(0.5), Rate(2000))
    ]
    assert all(plan.drained for plan in plans)


def test_a_sweep_over_concurrency_has_closed_loop_stages():
    plans = plan_stages(Sweep(concurrency=(1, 8), requests=100))
    assert [(plan.kind, plan.concurrency, plan.arrivals) for plan in plans] == [
        ("concurrency", 1, None),
        ("concurrency", 8, None),
    ]


def test_a_ramps_offered_rate_is_its_mean():
    (plan,) = plan_stages(Ramp(start_rate=Rate(10), end_rate=Rate(30), duration=seconds(5)))
    assert plan.offered_rate == 20


@pytest.mark.parametrize(
    ("duration", "warmup", "interval"),
    [
        (60, 0, 1.0),  # at most a second
        (65, 5, 1.0),
        (12, 0, 0.5),  # 24 of them
        (2.4, 0, 0.1),
        (90.5, 0, 90.5 / 91),  # the window divided evenly into intervals of about a second
    ],
)
def test_an_interval_lasts_a_second_or_a_24th_of_a_short_window(duration, warmup, interval):
    plan = StagePlan(name="x", load=Poisson(rate=Rate(1), duration=seconds(duration), warmup=seconds(warmup)))
    grid = plan.grid(origin_ns=7)
    assert grid.window_ns == 7 + seconds(warmup)
    assert grid.interval_ns / NS_PER_SECOND == pytest.approx(interval, abs=1e-6)


@given(st.integers(10_000_000, 10**12))
def test_a_window_holds_at_least_24_intervals_and_ends_with_one(duration):
    plan = StagePlan(name="x", load=Constant(rate=Rate(1), duration=Duration(duration)))
    grid = plan.grid(origin_ns=0)
    intervals = duration // grid.interval_ns
    assert intervals >= MIN_INTERVALS
    # Rounding an interval to whole bins loses less than ten nanoseconds in each.
    assert duration - intervals * grid.interval_ns < 10 * (intervals + 1)


def test_a_stage_bounded_by_requests_is_as_long_as_its_rate_makes_it():
    assert StagePlan(name="x", load=Poisson(rate=Rate(20), requests=100)).expected_ns() == seconds(5)
    assert StagePlan(name="x", load=Concurrency(concurrency=2, requests=100)).expected_ns() is None
