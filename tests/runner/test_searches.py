"""Whole searches in virtual time, from the profile to the report, against engines whose truth is known."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import pytest
from msgspec.structs import replace

from loadgen.cli.interactive import exit_code
from loadgen.errors import ExitCode
from loadgen.load.halt import Halt
from loadgen.profile import (
    Concurrency,
    Fixed,
    Load,
    Poisson,
    Profile,
    Saturate,
    SimTarget,
    Sweep,
    SweepAxis,
    Workers,
    Workload,
)
from loadgen.profile.file import load_profile
from loadgen.profile.slo import Slo
from loadgen.runner.execution import Execution
from loadgen.runner.results import regenerate, summary_of
from loadgen.runner.simulate import Fleet, simulate
from loadgen.runner.virtual_time import VirtualClock, run_virtually
from loadgen.search.sweep import POINT
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine.capacity import capacity
from loadgen.summary.summary import SearchResult, Summary
from loadgen.targets.kinds import checked_target
from loadgen.units import NS_PER_SECOND, Duration, Rate
from loadgen.workers.launch import InlineLauncher

PROMPT_TOKENS: Final = 32
OUTPUT_TOKENS: Final = 16
# Eight slots; a step of 10 ms and 1 ms for each sequence that decodes: an answer takes 0.18 s alone and 0.28 s where
# all slots are taken, which makes 28/s.
ENGINE: Final = SimConfig(
    max_num_seqs=8, step_base_seconds=0.01, seconds_per_decode_seq=1e-3, seconds_per_kv_token=0, max_model_len=512
)
TRUTH: Final = capacity(ENGINE, PROMPT_TOKENS, OUTPUT_TOKENS).requests_per_second


def seconds(count: float) -> Duration:
    return Duration(round(count * NS_PER_SECOND))


def profile(load: Load, slo: Slo | None = None, sweep: tuple[SweepAxis, ...] = (), **target) -> Profile:
    """A load on the small engine in the worker, or on one of other settings."""
    return Profile(
        name="search",
        target=SimTarget(transport="in-process", **{"engine": ENGINE, **target}),
        workload=Workload(prompt_tokens=PROMPT_TOKENS, output_tokens=Fixed(value=OUTPUT_TOKENS)),
        load=load,
        slo=slo,
        sweep=sweep,
    )


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[..., Summary]:
    """Run a profile as `loadgen simulate` does; the report that is made again from its journal is checked each time."""

    def run(profile: Profile, fleet: Fleet | None = None) -> Summary:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        summary = run_virtually(partial(simulate, profile, directory=folder, fleet=fleet))
        assert regenerate(folder) == summary
        return summary

    return run


def found(summary: Summary) -> SearchResult:
    assert summary.search is not None
    return summary.search


def assert_proved(search: SearchResult, truth: float, within: float) -> None:
    """The answer is near the truth, and the truth lies in the bracket, whose ends were measured."""
    low, high = search.bracket
    assert search.ended_by == "found", search.reason
    assert search.saturation == pytest.approx(truth, rel=within)
    assert low is not None
    assert high is not None
    assert low <= truth <= high
    passed, failed = search.evidence
    assert passed is not None
    assert failed is not None
    assert (search.points[passed].outcome, search.points[failed].outcome) == ("pass", "fail")


# --- the saturation rate ----------------------------------------------------------------------------------------------


def test_the_ready_search_finds_what_its_engine_can_do(simulated):
    asked = load_profile("saturate")
    summary = simulated(asked)
    truth = capacity(asked.target.engine, 64, 32).requests_per_second
    assert_proved(found(summary), truth, 0.05)
    assert len(summary.stages) < 15
    assert summary.verdict.valid, summary.verdict.reasons
    assert exit_code(summary) == ExitCode.OK


def test_two_replicas_sustain_twice_as_much(simulated):
    search = found(simulated(profile(Saturate(max_stage=seconds(120))), Fleet(2, "least-loaded")))
    assert_proved(search, 2 * TRUTH, 0.05)


@pytest.mark.parametrize("slots", [8, 64])
def test_a_search_that_runs_out_of_time_answers_with_the_best_bracket_so_far(simulated, slots):
    # The low load takes 12 answers of 0.18 s and more, and the first rates some seconds each: after 35 s some rate has
    # passed or failed (with 8 slots the first is 1.6 times too much), but nothing is confirmed to 5 %.
    engine = replace(ENGINE, max_num_seqs=slots)
    truth = capacity(engine, PROMPT_TOKENS, OUTPUT_TOKENS).requests_per_second
    summary = simulated(profile(Saturate(max_time=seconds(35)), engine=engine))
    search = found(summary)
    assert search.ended_by == "max_time"
    assert "max_time" in search.reason
    low, high = search.bracket
    assert low is None or low <= 1.02 * truth
    assert high is None or high >= 0.98 * truth
    assert (low, high) != (None, None)
    # It ends when its time is over, but for the drain of what is in flight.
    assert sum(stage.window.start + stage.window.seconds for stage in summary.stages) < 36
    assert summary.verdict.valid, summary.verdict.reasons


def test_what_never_answers_ends_the_search_in_one_line(simulated):
    load = Saturate(max_stage=seconds(20), drain=seconds(5))
    summary = simulated(profile(load, faults=SimFaults(response_delay_seconds=1e6)))
    assert found(summary).ended_by == "target"
    assert found(summary).reason.count("\n") == 0
    assert "the target completed none of 1 requests" in found(summary).reason
    assert len(summary.stages) == 1
    assert exit_code(summary) == ExitCode.UNREACHABLE


def test_a_target_on_which_all_requests_fail_ends_the_search_with_the_reason(simulated):
    faults = SimFaults(response_delay_seconds=1e6)
    summary = simulated(profile(Saturate(), faults=faults, timeout=seconds(2)))
    assert found(summary).ended_by == "target"
    assert "none of 12 requests: 12 timeout (no end after 2 s)" in found(summary).reason
    assert len(summary.stages) == 1
    assert exit_code(summary) == ExitCode.UNREACHABLE


def test_under_an_slo_the_answer_keeps_it_and_what_lies_above_the_bracket_does_not(simulated):
    slo = Slo(response={"p95": seconds(0.6)})
    search = found(simulated(profile(Saturate(tolerance=0.2, max_stage=seconds(120)), slo)))
    assert search.ended_by == "found", search.reason
    low, high = search.bracket
    assert search.saturation == low
    assert low < high < 1.1 * TRUTH
    # Judged by runs of their own, of which each has two thousand requests, clear of both ends.
    outcomes = []
    for rate in (0.9 * low, 1.1 * high):
        run = simulated(profile(Poisson(rate=Rate(rate), duration=seconds(100)), slo))
        outcomes.append(run.verdict.slo.met)
    assert outcomes == [True, False]


# --- a concurrency ----------------------------------------------------------------------------------------------------


def test_the_fewest_slots_that_bring_all_the_throughput_are_those_of_the_engine(simulated):
    # Each more of the eight slots brings at least 5 % more throughput; a ninth request in flight only waits.
    search = found(simulated(profile(Saturate(objective="concurrency"))))
    assert (search.objective, search.ended_by) == ("concurrency", "found"), search.reason
    assert search.saturation == 8


def test_the_most_slots_under_an_slo_are_those_whose_wait_it_allows(simulated):
    # Answers of one length that begin together end together. So eight of them take 0.28 s each, and of nine the ninth
    # waits for all the others, and takes 0.55 s: that is one in nine, more than the 5 % that a p95 leaves out.
    search = found(simulated(profile(Saturate(objective="concurrency"), Slo(response={"p95": seconds(0.4)}))))
    assert search.ended_by == "found", search.reason
    assert (search.saturation, search.bracket) == (8, (8, 9))


# --- sweeps -----------------------------------------------------------------------------------------------------------


def test_a_sweep_of_points_measures_its_ends_first_and_then_each_rate_once(simulated):
    summary = simulated(profile(Sweep(points=5, duration=seconds(20))))
    purposes = [stage.purpose for stage in summary.stages]
    assert purposes[0] == "low load"
    assert purposes[-5:] == [POINT] * 5
    assert POINT not in purposes[:-5]
    rates = [stage.offered_rate for stage in summary.stages if stage.purpose == POINT]
    assert rates == sorted(set(rates))
    assert rates[0] == pytest.approx(1 / summary.stages[0].latency_seconds.service.mean, rel=1e-4)
    assert [point.purpose for point in found(summary).points] == purposes


@pytest.mark.parametrize("slots", [8, 64])
def test_the_highest_rate_of_a_sweep_of_points_is_what_the_overloaded_engine_completes(simulated, slots):
    engine = replace(ENGINE, max_num_seqs=slots)
    truth = capacity(engine, PROMPT_TOKENS, OUTPUT_TOKENS).requests_per_second
    summary = simulated(profile(Sweep(points=2, duration=seconds(10)), engine=engine))
    assert found(summary).saturation == pytest.approx(truth, rel=0.05)
    assert summary.stages[-1].offered_rate == pytest.approx(truth, rel=0.05)


def test_a_grid_over_the_engines_settings_has_an_engine_for_each_point(simulated):
    axes = (SweepAxis(key="target.engine.max_num_seqs", values=(4, 8)),)
    load = Concurrency(concurrency=24, duration=seconds(60), warmup=seconds(5))
    summary = simulated(profile(load, sweep=axes), Fleet(2, "round-robin"))
    truths = [
        2 * capacity(replace(ENGINE, max_num_seqs=slots), PROMPT_TOKENS, OUTPUT_TOKENS).requests_per_second
        for slots in (4, 8)
    ]
    assert [stage.throughput.requests for stage in summary.stages] == [pytest.approx(t, rel=0.03) for t in truths]
    assert summary.simulated


# --- going on ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_profile(tmp_path: Path) -> Callable[..., Summary]:
    """Run a profile in a folder, interrupted at an instant of virtual time if one is given, or go on with it."""

    def run(profile: Profile, folder: str, interrupted_at: float | None = None, *, resume: bool = False) -> Summary:
        async def main(clock: VirtualClock) -> None:
            halt = Halt()

            @asynccontextmanager
            async def open_target(profile: Profile, processes: int):
                async with checked_target(profile, clock) as checked:
                    yield checked, InlineLauncher(clock)

            async def interrupt(instant: float) -> None:
                await anyio.sleep(instant)
                halt.ask("interrupted")

            async with anyio.create_task_group() as tasks:
                if interrupted_at is not None:
                    tasks.start_soon(interrupt, interrupted_at)
                await Execution(profile, open_target, clock, tmp_path / folder, halt=halt, nonce=0, resume=resume).run()
                tasks.cancel_scope.cancel()

        run_virtually(main)
        return summary_of(tmp_path / folder)

    return run


@pytest.mark.parametrize("load", [Saturate(), Sweep(points=3, duration=seconds(30))], ids=["saturate", "sweep"])
def test_a_search_that_was_interrupted_is_gone_on_with_to_the_same_answer(run_profile, load):
    asked = profile(load)
    whole = run_profile(asked, "whole")
    cut = run_profile(asked, "cut", interrupted_at=25)
    assert cut.interrupted
    assert 1 < len(cut.stages) < len(whole.stages)
    assert found(cut).ended_by == "interrupted"
    resumed = run_profile(asked, "cut", resume=True)
    assert found(resumed) == found(whole)
    assert [stage.books for stage in resumed.stages] == [stage.books for stage in whole.stages]


def test_where_max_inflight_is_the_limit_the_report_says_so(simulated):
    # 2 of the engine's 8 slots can be used; that other requests wait for them outside does not make them more.
    asked = profile(Saturate(max_time=seconds(600)))
    capped = simulated(replace(asked, workers=Workers(max_inflight=2)))
    assert found(capped).saturation is not None
    assert found(capped).saturation < 0.7 * TRUTH
    assert any("workers.max_inflight" in warning for warning in capped.verdict.warnings)
    assert not any("workers.max_inflight" in warning for warning in simulated(asked).verdict.warnings)


def test_a_search_that_finds_no_load_at_which_the_slo_is_kept_ends_as_a_missed_one(simulated):
    slo = Slo(ttft={"p95": Duration(1_000_000)})
    summary = simulated(replace(profile(Saturate()), slo=slo))
    assert found(summary).saturation is None
    assert exit_code(summary) == ExitCode.SLO_MISSED
