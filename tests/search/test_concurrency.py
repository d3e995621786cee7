from collections.abc import Callable, Generator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.load.stages import StagePlan
from loadgen.profile import Saturate
from loadgen.profile.slo import Slo
from loadgen.search.concurrency import conclude, concurrency_search
from loadgen.search.probe import decided
from loadgen.sim.config import SimConfig
from loadgen.summary.summary import SearchPoint, SearchResult, Stage
from loadgen.units import NS_PER_MS, Duration
from tests.handmade import books
from tests.search.handmade import latency, stage
from tests.search.queue_sim import run_stage

SLO = Slo(ttft={"p99": Duration(100 * NS_PER_MS)})
WITHIN, AROUND, ABOVE = (0.01, 0.02, 0.03), (0.08, 0.09, 0.11), (0.11, 0.2, None)

Target = Callable[[StagePlan], Stage]


def breaking_above(slots: int, full: int = 1 << 30, blurred: float = 1.0) -> Target:
    """A target that keeps the SLO up to so many slots, and completes as many requests per second as slots up to `full`.

    Undecided from there up to `blurred` times as many.
    """

    def measured(plan: StagePlan) -> Stage:
        given_slots = plan.concurrency or 0
        ends = WITHIN if given_slots <= slots else AROUND if given_slots <= slots * blurred else ABOVE
        completed = float(min(given_slots, full))
        return stage(plan, ttft=latency(*ends), completed=completed, service=given_slots / completed)

    return measured


def run(search: Generator[StagePlan, Stage, SearchResult], target: Target, most: int = 60) -> SearchResult:
    plan = next(search)
    for _ in range(most):
        try:
            plan = search.send(target(plan))
        except StopIteration as over:
            result: SearchResult = over.value
            return result
    raise AssertionError(f"not over after {most} stages")


@settings(max_examples=60, deadline=None)
@given(slots=st.integers(1, 5000), blurred=st.floats(1.0, 1.5), tolerance=st.floats(0.01, 0.3))
def test_under_an_slo_the_most_slots_that_keep_it_are_found(slots: int, blurred: float, tolerance: float) -> None:
    found = run(concurrency_search(Saturate(tolerance=tolerance), SLO, []), breaking_above(slots, blurred=blurred))
    low, high = found.bracket
    assert low is not None
    assert high is not None
    assert low <= slots
    assert int(slots * blurred) < high
    # Closed in to the tolerance, or to neighbours.
    below, above = found.undecided or (high, low)
    assert below <= max(low * (1 + tolerance), low + 1)
    assert high <= max(above * (1 + tolerance), above + 1)
    assert found.objective == "concurrency"
    assert all(point.offered == int(point.offered or 0) for point in found.points)


def test_where_more_slots_bring_no_more_throughput_an_slo_that_is_kept_ends_the_search() -> None:
    # 2, 4, 8 and 16 double it up to 8; 16 and 32 bring no more.
    found = run(concurrency_search(Saturate(objective="concurrency"), SLO, []), breaking_above(1 << 20, full=8))
    assert found.ended_by == "found"
    assert found.bracket == (32, None)
    assert found.reason == "beyond concurrency 32 throughput no longer grows; the SLO is kept at concurrency 32"


def test_a_target_that_fails_one_request_after_the_other_ends_the_search() -> None:
    def failing(plan: StagePlan) -> Stage:
        return stage(plan, counted=books(12, failed=12), service=None)

    for slo in (SLO, None):
        found = run(concurrency_search(Saturate(), slo, []), failing, most=1)
        assert found.ended_by == "target"
        assert found.reason.startswith("the target completed none of 12 requests: 12 http_503")
        assert found.saturation is None


@settings(max_examples=60, deadline=None)
@given(full=st.integers(1, 5000), tolerance=st.floats(0.01, 0.3))
def test_without_an_slo_the_fewest_slots_that_bring_the_throughput_are_found(full: int, tolerance: float) -> None:
    # The throughput is min(slots, full), so that (1 - tolerance) full slots bring enough of it.
    found = run(concurrency_search(Saturate(tolerance=tolerance), None, []), breaking_above(0, full))
    assert found.ended_by == "found"
    assert found.saturation is not None
    enough = (1 - tolerance) * full
    assert found.saturation >= enough * (1 - 1e-12)
    below = found.bracket[0]
    if below is not None:
        assert below < enough
        assert found.saturation <= max(below * (1 + tolerance), below + 1)
    offered = [point.offered for point in found.points]
    assert len(set(offered)) == len(offered)


def test_a_stage_without_an_slo_is_long_enough_to_count_whole_waves() -> None:
    plans: list[StagePlan] = []

    def target(plan: StagePlan) -> Stage:
        plans.append(plan)
        return breaking_above(0, full=8)(plan)

    run(concurrency_search(Saturate(), None, []), target)
    # At 2 slots: 5 + 60 service times of 1 s are less than what 200 completions take at the 1/s of one slot, 5 + 200.
    assert plans[1].concurrency == 2
    assert plans[1].load.duration == 205_000 * NS_PER_MS
    assert plans[1].load.warmup == 5_000 * NS_PER_MS
    # At 16: 8 slots completed 8/s at 1 s each; 60 s are longer than 200 / 8.
    assert [plan.load.duration for plan in plans if plan.concurrency == 16] == [65_000 * NS_PER_MS]


@pytest.mark.parametrize("slo", [SLO, None])
@pytest.mark.parametrize("after", range(1, 9))
def test_a_search_that_is_cut_short_states_what_it_has(slo: Slo | None, after: int) -> None:
    points: list[SearchPoint] = []
    load = Saturate(objective="concurrency")
    search, target = concurrency_search(load, slo, points), breaking_above(20, full=40)
    plan = next(search)
    for _ in range(after):
        plan = search.send(target(plan))
    found = conclude(load, slo, points, "interrupted", "a person ended the search")
    assert found.ended_by == "interrupted"
    assert found.reason.startswith("a person ended the search")
    assert len(found.points) == after
    assert [point.stage for point in found.points] == list(range(after))


def test_the_generators_bottleneck_ends_the_search() -> None:
    def target(plan: StagePlan) -> Stage:
        faults = ("requests were sent late",) if (plan.concurrency or 0) > 8 else ()
        return stage(plan, ttft=latency(*WITHIN), completed=float(plan.concurrency or 0), faults=faults)

    for slo in (SLO, None):
        found = run(concurrency_search(Saturate(), slo, []), target)
        assert found.ended_by == "generator"
        assert "the generator was the bottleneck at concurrency 16: requests were sent late" in found.reason


# --- on a simulated engine --------------------------------------------------------------------------------------------

ENGINE = SimConfig(
    max_num_seqs=24,
    max_num_batched_tokens=2048,
    step_base_seconds=0.01,
    seconds_per_prefill_token=1e-5,
    seconds_per_decode_seq=0.0,
    seconds_per_kv_token=0.0,
    jitter_cv=0.2,
)
PROMPT, OUTPUT = 32, 8


def simulated(slo: Slo | None, seed: int) -> Target:
    number = iter(range(1000))

    def target(plan: StagePlan) -> Stage:
        return run_stage(ENGINE, PROMPT, OUTPUT, plan, 1000 * seed + next(number), decided=partial(decided, slo))

    return target


@pytest.mark.parametrize("seed", range(3))
def test_the_slots_of_a_simulated_engine_are_found_without_an_slo(seed: int) -> None:
    # Steps last about the same however full the batch is, so throughput grows with the slots up to the engine's 24:
    # .95 x 24 = 22.8.
    load = Saturate(objective="concurrency")
    found = run(concurrency_search(load, None, []), simulated(None, seed))
    assert found.ended_by == "found"
    assert found.saturation is not None
    assert 22 <= found.saturation <= 24


@pytest.mark.parametrize("seed", range(3))
def test_the_slots_of_a_simulated_engine_that_keep_an_slo_are_found(seed: int) -> None:
    # A first token takes a step of some 10 ms while there is a slot for it, and waits for one, up to 80 ms, beyond 24.
    slo = Slo(ttft={"p99": Duration(30 * NS_PER_MS)})
    load = Saturate(objective="concurrency", max_stage=Duration(60_000 * NS_PER_MS))
    found = run(concurrency_search(load, slo, []), simulated(slo, seed))
    low, high = found.bracket
    assert low is not None
    assert high is not None
    assert low <= 25
    assert high >= 24
    assert high <= 1.05 * low + 2
