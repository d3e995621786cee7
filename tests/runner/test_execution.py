"""Runs of many stages in virtual time: grids, repeats, probes that end when they are decided, ramps that stop, and runs
that are gone on with."""

from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from trio.testing import MockClock

from loadgen.clock import LoopClock
from loadgen.errors import ProfileError, one_failure
from loadgen.load.halt import Halt
from loadgen.measure.journal import FOLDER
from loadgen.profile import (
    Concurrency,
    Constant,
    Fixed,
    Profile,
    Ramp,
    SimTarget,
    Steps,
    StopWhen,
    Sweep,
    SweepAxis,
    Workers,
    Workload,
)
from loadgen.profile.slo import Slo
from loadgen.runner.execution import Execution, processes_for
from loadgen.runner.results import summary_of
from loadgen.runner.resume import RunLock, what_is_complete
from loadgen.search.program import planned
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.summary.summary import Summary
from loadgen.targets.kinds import checked_target
from loadgen.units import NS_PER_SECOND, Duration, Rate
from loadgen.workers.launch import InlineLauncher


def seconds(count: float) -> Duration:
    return Duration(round(count * NS_PER_SECOND))


def profile(load, sweep=(), slo=None, **faults) -> Profile:
    """A load on a simulated engine in the worker; answers take 0.1 s where nothing else is said."""
    faults.setdefault("response_delay_seconds", 0.1)
    return Profile(
        name="run",
        target=SimTarget(transport="in-process", faults=SimFaults(**faults)),
        workload=Workload(prompt_tokens=16, output_tokens=Fixed(value=4)),
        load=load,
        sweep=sweep,
        slo=slo,
    )


@pytest.fixture
def run_profile(tmp_path):
    """Run a profile, its target opened as often as its stages ask for it; `meanwhile(halt)` runs beside it."""

    def run(profile: Profile, folder: str = "run", meanwhile=None, *, resume: bool = False) -> Summary:
        directory = tmp_path / folder
        opened: list[Profile] = []

        async def main() -> None:
            clock, halt = LoopClock(), Halt()

            @asynccontextmanager
            async def open_target(profile: Profile, processes: int):
                opened.append(profile)
                async with checked_target(profile, clock) as checked:
                    yield checked, InlineLauncher(clock)

            async with anyio.create_task_group() as tasks:
                if meanwhile is not None:
                    tasks.start_soon(meanwhile, halt)
                await Execution(profile, open_target, clock, directory, halt=halt, nonce=0, resume=resume).run()
                tasks.cancel_scope.cancel()

        with one_failure():
            anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
        run.opened = opened
        return summary_of(directory)

    return run


TEN_SECONDS = Constant(rate=Rate(10), duration=seconds(10))


def test_a_grid_has_a_stage_for_each_of_its_points_with_its_values(run_profile):
    axes = (
        SweepAxis(key="workload.output_tokens", values=(2, 8)),
        SweepAxis(key="load.rate", values=(5, 10)),
    )
    summary = run_profile(profile(TEN_SECONDS, axes))
    assert [(stage.settings["workload.output_tokens"], stage.offered_rate) for stage in summary.stages] == [
        (2, 5), (2, 10), (8, 5), (8, 10),
    ]  # fmt: skip
    assert [stage.tokens.output for stage in summary.stages] == [2, 2, 8, 8]
    assert [stage.books.completed for stage in summary.stages] == [50, 100, 50, 100]
    assert len({stage.name for stage in summary.stages}) == 4
    assert len(run_profile.opened) == 1  # workload and load do not need another target


def test_keys_of_the_target_open_it_anew_and_workers_that_were_not_needed_any_more_did_not_die(run_profile):
    axes = (SweepAxis(key="target.faults.response_delay_seconds", values=(0.1, 0.4)),)
    summary = run_profile(profile(TEN_SECONDS, axes))
    first, second = summary.stages
    assert first.latency_seconds.response.p50 == pytest.approx(0.1, rel=2e-3)
    assert second.latency_seconds.response.p50 == pytest.approx(0.4, rel=2e-3)
    assert len(run_profile.opened) == 2
    assert [worker.restarts for worker in summary.generator.workers] == [0]
    assert summary.verdict.valid, summary.verdict.reasons


def test_an_answer_that_is_streamed_or_not_has_the_latencies_that_it_has(run_profile):
    axes = (SweepAxis(key="target.stream", values=(True, False)),)
    streamed, whole = run_profile(profile(TEN_SECONDS, axes)).stages
    assert streamed.latency_seconds.ttft is not None
    assert whole.latency_seconds.ttft is None


def test_slos_can_be_swept_and_each_stage_is_held_against_its_own(run_profile):
    axes = (SweepAxis(key="slo.response.p50", values=("50ms", "200ms")),)
    slo = Slo(response={"p50": seconds(1)})
    summary = run_profile(profile(TEN_SECONDS, axes, slo))
    assert [(check.limit, check.outcome) for check in summary.verdict.slo.checks] == [(0.05, "missed"), (0.2, "met")]


def test_repeats_are_interleaved_and_their_spread_is_told(run_profile):
    load = Sweep(rates=(Rate(20), Rate(40)), duration=seconds(30), repeat=3)
    summary = run_profile(profile(load))
    assert [(stage.offered_rate, stage.repeat) for stage in summary.stages] == [
        (20, 1), (40, 1), (20, 2), (40, 2), (20, 3), (40, 3),
    ]  # fmt: skip
    twenty, forty = summary.repeats
    assert (twenty.stages, forty.stages) == ([0, 2, 4], [1, 3, 5])
    requests = twenty.values["throughput.requests"]
    assert requests.count == 3
    assert requests.ci[0] < requests.mean < requests.ci[1]
    # Each repeat has arrivals of its own: were they the same, there would be no spread.
    assert len({stage.books.intended for stage in summary.stages if stage.offered_rate == 20}) > 1


def test_one_failed_stage_does_not_lose_the_others(run_profile):
    # Every request of the second point fails; the others are measured.
    axes = (SweepAxis(key="target.timeout", values=("1s", "50ms", "2s")),)
    summary = run_profile(profile(TEN_SECONDS, axes))
    assert [stage.books.completed for stage in summary.stages] == [100, 0, 100]
    assert summary.stages[1].books.failed == {"timeout": 100}


# --- ramps ------------------------------------------------------------------------------------------------------------

ENGINE = SimConfig(
    max_num_seqs=8, step_base_seconds=0.01, seconds_per_decode_seq=1e-3, seconds_per_kv_token=0, max_model_len=512
)


def ramp(rule: StopWhen, slo: Slo | None = None) -> Profile:
    """From 1/s to 100/s in 200 s. Eight slots, each held for 16 steps of 18 ms when all are taken: about 28/s."""
    return Profile(
        name="ramp",
        target=SimTarget(transport="in-process", engine=ENGINE),
        workload=Workload(prompt_tokens=16, output_tokens=Fixed(value=16)),
        load=Ramp(start_rate=Rate(1), end_rate=Rate(100), duration=seconds(200), stop_when=rule),
        slo=slo,
    )


def test_a_ramp_stops_when_its_backlog_grows(run_profile):
    (stage,) = run_profile(ramp(StopWhen(backlog_growing=True))).stages
    assert stage.ended_by == "stop_when"
    assert "backlog" in stage.end_reason
    # The rate passes 28/s at 55 s; a stretch of 10 s shows it soon after, and the whole ramp would have taken 200 s.
    assert 50 < stage.window.seconds < 90
    assert stage.books.ended == stage.books.intended


def test_looks_are_taken_beside_the_loop_where_they_could_hold_up_the_producer(run_profile, monkeypatch):
    taken = []

    async def beside(self, work):
        taken.append(work)
        return work()

    monkeypatch.setattr(LoopClock, "beside", beside)
    run_profile(ramp(StopWhen(backlog_growing=True)))
    assert len(taken) > 5
    assert {look.func for look in taken} == {taken[0].func}


@pytest.mark.parametrize(
    ("concurrency", "asked", "processes"),
    # As many as asked for, though the first stage has one slot; but never more than the most slots of a stage.
    [((1, 64, 512), 8, 8), ((1, 4), 8, 4), ((2,), 1, 1)],
)
def test_the_stage_with_the_most_slots_says_how_many_workers_there_can_be(concurrency, asked, processes):
    wanted = profile(Sweep(concurrency=concurrency, requests=1000))
    wanted = replace(wanted, workers=replace(wanted.workers, processes=asked))
    assert processes_for(wanted, planned(wanted)) == processes


def test_a_stage_with_fewer_slots_than_there_are_workers_is_run_all_the_same(run_profile):
    wanted = profile(Sweep(concurrency=(1, 6), requests=30))
    summary = run_profile(replace(wanted, workers=replace(wanted.workers, processes=3)))
    assert [stage.books.completed for stage in summary.stages] == [30, 30]
    assert [stage.concurrency.max for stage in summary.stages] == [1, 6]


def test_a_ramp_stops_when_its_slo_is_missed(run_profile):
    (stage,) = run_profile(ramp(StopWhen(slo_missed=True), Slo(response={"p90": seconds(1)}))).stages
    assert stage.ended_by == "stop_when"
    assert "response p90" in stage.end_reason
    assert 50 < stage.window.seconds < 90


def test_what_is_dropped_is_no_backlog(run_profile):
    # Eight slots at most are taken, however many come: their number rises with the rate, and no backlog does.
    base = ramp(StopWhen(backlog_growing=True))
    dropping = replace(base, load=replace(base.load, overflow="drop"), workers=Workers(max_inflight=8))
    (stage,) = run_profile(dropping).stages
    assert stage.ended_by == "duration"
    assert stage.books.dropped > 1000


def test_a_ramp_that_nothing_stops_runs_to_its_end(run_profile):
    load = Ramp(start_rate=Rate(1), end_rate=Rate(20), duration=seconds(60), stop_when=StopWhen(error_rate=0.5))
    (stage,) = run_profile(profile(load)).stages
    assert (stage.ended_by, stage.end_reason) == ("duration", None)


# --- going on ---------------------------------------------------------------------------------------------------------


def interrupting_at(instant: float):
    async def meanwhile(halt: Halt) -> None:
        await anyio.sleep(instant)
        halt.ask("interrupted")

    return meanwhile


SWEEP = Sweep(rates=(Rate(5), Rate(10), Rate(20)), duration=seconds(20))


def without_clocks(summary: Summary):
    """What a run measured, apart from when."""
    return [(stage.name, stage.books, stage.window, stage.latency_seconds.response) for stage in summary.stages]


@pytest.mark.parametrize("instant", [5, 25, 45])
def test_a_sweep_that_was_interrupted_is_gone_on_with_and_is_then_as_if_it_had_not_been(run_profile, instant):
    whole = run_profile(profile(SWEEP), "whole")
    cut = run_profile(profile(SWEEP), "cut", interrupting_at(instant))
    assert cut.interrupted
    assert len(cut.stages) == instant // 20 + 1
    resumed = run_profile(profile(SWEEP), "cut", resume=True)
    assert not resumed.interrupted
    assert resumed.verdict.valid, resumed.verdict.reasons
    assert without_clocks(resumed) == without_clocks(whole)


@pytest.mark.parametrize("lost", [1, 100, 3000])
def test_a_journal_that_a_kill_cut_off_is_gone_on_with(run_profile, tmp_path: Path, lost):
    whole = run_profile(profile(SWEEP), "whole")
    run_profile(profile(SWEEP), "cut", interrupting_at(30))
    path = tmp_path / "cut" / FOLDER / "run.msgpack"
    path.write_bytes(path.read_bytes()[:-lost] if lost < 1000 else path.read_bytes()[:2500])
    resumed = run_profile(profile(SWEEP), "cut", resume=True)
    assert without_clocks(resumed) == without_clocks(whole)


@pytest.mark.parametrize("file", ["run.msgpack", "stage-0001.msgpack"])
def test_wherever_a_journal_is_cut_off_the_whole_stages_before_that_are_kept_and_no_other(run_profile, tmp_path, file):
    books = [stage.books for stage in run_profile(profile(SWEEP)).stages]
    path = tmp_path / "run" / FOLDER / file
    whole = path.read_bytes()
    kept: list[int] = []
    for cut in (*range(0, len(whole), max(1, len(whole) // 60)), len(whole)):
        path.write_bytes(whole[:cut])
        try:
            kept.append(what_is_complete(profile(SWEEP), tmp_path / "run").stages)
        except ProfileError:  # not even the header is left
            continue
        assert [stage.books for stage in summary_of(tmp_path / "run").stages[: kept[-1]]] == books[: kept[-1]]
    # The more is left, the more is kept.
    assert kept == sorted(kept)
    assert set(kept) == ({0, 1, 2, 3} if file == "run.msgpack" else {1, 3})


def test_only_one_process_writes_a_run(run_profile, tmp_path: Path):
    run_profile(profile(SWEEP), "run", interrupting_at(30))
    hold = RunLock(tmp_path / "run")
    with pytest.raises(ProfileError, match="still going on"):
        run_profile(profile(SWEEP), resume=True)
    hold.release()
    assert not run_profile(profile(SWEEP), resume=True).interrupted


def test_a_run_that_came_to_its_end_has_nothing_to_go_on_with(run_profile):
    whole = run_profile(profile(SWEEP))
    again = run_profile(profile(SWEEP), resume=True)
    assert run_profile.opened == []
    assert again == whole


def test_steps_without_a_pause_are_run_again_as_a_whole(run_profile):
    load = Steps(steps=(Constant(rate=Rate(5), duration=seconds(20)), Constant(rate=Rate(10), duration=seconds(20))))
    whole = run_profile(profile(load), "whole")
    run_profile(profile(load), "cut", interrupting_at(30))
    assert without_clocks(run_profile(profile(load), "cut", resume=True)) == without_clocks(whole)


def test_another_profile_is_no_run_to_go_on_with(run_profile):
    run_profile(profile(SWEEP), "cut", interrupting_at(30))
    with pytest.raises(ProfileError, match=r"changed: load\.kind"):
        run_profile(profile(Concurrency(concurrency=2, duration=seconds(5))), "cut", resume=True)


def test_an_empty_folder_is_no_run_to_go_on_with(run_profile, tmp_path: Path):
    (tmp_path / "run").mkdir()
    with pytest.raises(ProfileError, match="nothing to resume"):
        run_profile(profile(SWEEP), resume=True)
