"""A sweep whose rates are found: between low load and what the target completes at most."""

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadgen.profile import Concurrency, Gamma, Sweep
from loadgen.search import sweep
from loadgen.search.sweep import rates_between
from loadgen.sim.config import SimConfig
from loadgen.sim.engine.capacity import capacity
from loadgen.summary.summary import Stage
from loadgen.units import NS_PER_SECOND, Duration, Rate
from tests.search.seeking import failing, limited, seek

ENGINE = SimConfig(max_num_seqs=64, seconds_per_decode_seq=2e-4, jitter_cv=0.1)
SHAPE = (ENGINE, 64, 32)
TRUTH = capacity(*SHAPE).requests_per_second


def points(count: int, **settings) -> Sweep:
    return Sweep(points=count, duration=Duration(4 * NS_PER_SECOND), **settings)


def swept(load: Sweep, shape=SHAPE, seen=lambda stage: stage) -> tuple[list[Stage], list[Stage]]:
    """All stages, and those of them that are the sweep itself."""
    stages = seek(partial(sweep.next_stage, load), *shape, 1, seen)
    return stages, [stage for stage in stages if stage.purpose == sweep.POINT]


def test_the_rates_go_linearly_from_low_load_to_what_the_target_completes():
    load = points(5)
    stages, own = swept(load)
    rates = [stage.offered_rate or 0 for stage in own]
    service = stages[0].latency_seconds.service
    assert service is not None
    assert rates[0] == pytest.approx(1 / service.mean, rel=1e-4)
    assert rates[-1] == pytest.approx(TRUTH, rel=0.05)
    steps = [high - low for low, high in pairwise(rates)]
    assert steps == pytest.approx([steps[0]] * 4, rel=1e-3)
    answer = sweep.result(load, stages, None)
    assert answer is not None
    assert (answer.kind, answer.ended_by, answer.saturation) == ("sweep", "found", pytest.approx(rates[-1], rel=1e-4))
    assert [point.stage for point in answer.points] == list(range(len(stages)))


def test_geometric_rates_have_equal_ratios():
    _, own = swept(points(4, spacing="geometric"))
    rates = [stage.offered_rate or 0 for stage in own]
    ratios = [high / low for low, high in pairwise(rates)]
    assert ratios == pytest.approx([ratios[0]] * 3, rel=1e-3)


def test_every_rate_has_the_settings_of_the_sweep():
    load = points(
        2, arrivals="gamma", burstiness=2.0, requests=50, warmup=Duration(NS_PER_SECOND), drain=Duration(7), repeat=1
    )
    stages, own = swept(load)
    plan = sweep.next_stage(load, stages[: -len(own)])
    assert plan is not None
    assert plan.load == Gamma(
        rate=Rate(own[0].offered_rate or 0),
        burstiness=2.0,
        duration=load.duration,
        requests=50,
        warmup=load.warmup,
        drain=load.drain,
    )
    assert plan.repeat is None


def test_repeats_are_interleaved_and_told_apart():
    _, own = swept(points(2, repeat=3))
    rates = [stage.offered_rate for stage in own]
    assert rates == rates[:2] * 3
    assert [stage.repeat for stage in own] == [1, 1, 2, 2, 3, 3]
    assert len({stage.name for stage in own}) == 6


def test_a_target_that_serves_one_at_a_time_is_swept_from_a_part_of_its_ceiling():
    # Low load, one request after the other, is all that it can do.
    shape = (SimConfig(max_num_seqs=1), 8, 8)
    _, own = swept(points(4), shape)
    most = capacity(*shape).requests_per_second
    assert [stage.offered_rate for stage in own] == pytest.approx([most * i / 4 for i in (1, 2, 3, 4)], rel=0.05)


def test_a_generator_that_is_the_bottleneck_sweeps_what_it_can_make():
    load = points(3)
    stages, own = swept(load, seen=partial(limited, 60.0))
    answer = sweep.result(load, stages, None)
    assert answer is not None
    assert answer.ended_by == "generator"
    assert len(own) == 3
    assert max(stage.offered_rate or 0 for stage in own) < 60


def test_a_target_that_fails_from_the_first_has_no_rates():
    load = points(3)
    stages, own = swept(load, seen=failing)
    answer = sweep.result(load, stages, None)
    assert answer is not None
    assert (answer.ended_by, own, len(stages)) == ("target", [], 1)


def test_a_stage_of_a_rate_that_failed_does_not_lose_the_others():
    load = points(3)

    def aborted(stage: Stage) -> Stage:
        return replace(stage, ended_by="abort_when") if stage.purpose == sweep.POINT else stage

    _, own = swept(load, seen=aborted)
    assert len(own) == 3


def test_a_sweep_that_was_cut_has_the_points_so_far():
    load = points(3)
    stages, _ = swept(load)
    answer = sweep.result(load, stages[:-1], "interrupted")
    assert answer is not None
    assert (answer.ended_by, len(answer.points)) == ("interrupted", len(stages) - 1)


def test_given_rates_are_no_search():
    assert sweep.result(Sweep(rates=(Rate(1),), duration=Duration(1)), [], None) is None


def test_it_begins_with_one_request_after_the_other():
    plan = sweep.next_stage(points(2), [])
    assert plan is not None
    assert isinstance(plan.load, Concurrency)
    assert (plan.load.concurrency, plan.purpose) == (1, "low load")


@given(
    low=st.floats(1e-4, 1e5),
    times=st.floats(0.5, 1e4),
    count=st.integers(2, 200),
    spacing=st.sampled_from(["linear", "geometric"]),
)
def test_no_rate_repeats_and_none_lies_beyond_the_ends(low, times, count, spacing):
    high = low * times
    rates = rates_between(low, high, count, spacing)
    assert len(rates) == len(set(rates)) == count
    assert list(rates) == sorted(rates)
    assert rates[-1] == pytest.approx(high, rel=1e-5)
    assert rates[0] == pytest.approx(low if 2 * low <= high else high / count, rel=1e-5)
