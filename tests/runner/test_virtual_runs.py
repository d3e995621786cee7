"""Whole runs in virtual time: what DESIGN promises of a run, with truths that are known exactly.

The simulated engine answers in the time it is told, workers are tasks, and an hour is a moment.
"""

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from loadgen.profile import (
    AbortWhen,
    Concurrency,
    Constant,
    Fixed,
    Offline,
    Poisson,
    Profile,
    SimTarget,
    Steps,
    Sweep,
    Workers,
    Workload,
)
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.targets import kinds
from loadgen.units import NS_PER_SECOND, Duration, Rate
from tests.mortal_target import ENGINE_DEAD, Lives

WORKLOAD = Workload(prompt_tokens=16, output_tokens=Fixed(value=4))


def seconds(count: float) -> Duration:
    return Duration(round(count * NS_PER_SECOND))


def profile(load, *, processes=1, max_inflight=4096, timeout=600.0, **faults) -> Profile:
    """A load on a simulated engine in the worker; answers take 0.1 s where nothing else is said."""
    faults.setdefault("response_delay_seconds", 0.1)
    target = SimTarget(transport="in-process", faults=SimFaults(**faults), timeout=seconds(timeout))
    workers = Workers(processes=processes, max_inflight=max_inflight)
    return Profile(name="virtual", target=target, workload=WORKLOAD, load=load, workers=workers)


def assert_balanced(summary):
    for stage in summary.stages:
        assert stage.books.ended == stage.books.intended
        assert stage.window.books.ended == stage.window.books.intended


def test_an_open_loop_run_measures_what_the_target_did_and_no_lateness(run_virtually):
    summary = run_virtually(profile(Poisson(rate=Rate(50), duration=seconds(60)), processes=3))
    (stage,) = summary.stages
    assert summary.verdict.valid, summary.verdict.reasons
    assert_balanced(summary)
    assert stage.books.completed == stage.books.intended
    # A count of mean 3,000 stays within 5 sqrt(3,000) = 274 of it.
    assert stage.books.intended == pytest.approx(3000, abs=274)
    # Values are kept to three significant digits.
    assert stage.latency_seconds.response.p99 == pytest.approx(0.1, rel=2e-3)
    assert stage.latency_seconds.ttft.p50 == pytest.approx(0.025, rel=2e-3)
    assert stage.latency_seconds.itl.p50 == pytest.approx(0.025, rel=2e-3)
    assert stage.latency_seconds.tpot.max == pytest.approx(0.025, rel=2e-3)
    assert stage.latency_seconds.lateness.max == 0
    assert stage.throughput.requests == pytest.approx(stage.books.intended / 60, rel=0.01)
    # Little's law: 50/s x 0.1 s.
    assert stage.concurrency.mean == pytest.approx(stage.books.intended / 60 * 0.1, rel=0.01)


def test_a_run_is_the_same_whatever_the_number_of_workers(run_virtually):
    load = Poisson(rate=Rate(40), duration=seconds(30), warmup=seconds(5))
    one, three = (run_virtually(profile(load, processes=n)).stages[0] for n in (1, 3))
    assert one.books == three.books
    assert one.window == three.window
    assert one.latency_seconds.response == three.latency_seconds.response


def test_a_stall_of_the_target_shows_in_the_response_times_of_all_who_waited_for_it(run_virtually):
    # 10/s for 60 s; the engine stalls for 1.5 s at 20 s. The 15 requests of that time wait from 0 to 1.5 s, those in
    # flight too: 2.5 % of 600, so that p99 (the 6th largest) shows at least 1.5 - 5 x 0.1 s.
    load = Constant(rate=Rate(10), duration=seconds(60))
    (stage,) = run_virtually(profile(load, stall_at_seconds=20.0, stall_seconds=1.5)).stages
    assert stage.books.completed == 600
    assert stage.latency_seconds.response.p99 >= 1.0
    assert stage.latency_seconds.response.p50 == pytest.approx(0.1, rel=2e-3)
    assert stage.latency_seconds.lateness.max == 0


def test_where_max_inflight_delays_response_and_service_time_are_told_apart(run_virtually):
    # One slot and answers of 0.2 s at 10/s: half of the load is served. Service stays at 0.2 s, response grows, and
    # the wait is queued, not lateness; the verdict names the cap.
    load = Constant(rate=Rate(10), duration=seconds(19.9), drain=seconds(5))
    summary = run_virtually(profile(load, max_inflight=1, response_delay_seconds=0.2))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.latency_seconds.service.p99 == pytest.approx(0.2, rel=2e-3)
    assert stage.latency_seconds.response.p50 > 2
    assert stage.latency_seconds.queued.p50 > 2
    assert stage.latency_seconds.lateness.max == 0
    assert summary.verdict.valid, summary.verdict.reasons
    assert any("max_inflight" in warning for warning in summary.verdict.warnings)
    # 199 starts, and one slot that is taken anew at 0, 0.2, ..., 19.8 s: 100 answers, and the rest was not sent by the
    # end and is unfinished.
    assert (stage.books.completed, stage.books.unfinished) == (100, 99)


@pytest.mark.parametrize("seed", range(1, 7))
def test_what_waited_for_a_slot_is_excused_also_where_one_comes_free_in_the_last_moment(run_virtually, seed):
    # 16 slots of 0.64 s serve 25/s of 40/s: at the end 90 of 240 wait for a slot. Whether one has just been freed then,
    # with its credit on the way, is chance, and must not make their wait the generator's.
    base = profile(Poisson(rate=Rate(40), duration=seconds(6)), max_inflight=16, response_delay_seconds=0.64)
    summary = run_virtually(msgspec.structs.replace(base, workload=msgspec.structs.replace(WORKLOAD, seed=seed)))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.books.unfinished > 30
    assert summary.verdict.valid, summary.verdict.reasons
    assert any("max_inflight" in warning for warning in summary.verdict.warnings)


def test_where_nobody_in_the_window_gets_a_slot_the_cap_is_named(run_virtually):
    load = Constant(rate=Rate(40), duration=seconds(10), warmup=seconds(8), drain=seconds(5))
    summary = run_virtually(profile(load, max_inflight=1, response_delay_seconds=1.0))
    (stage,) = summary.stages
    assert stage.window.sent == 0
    assert any("max_inflight" in warning for warning in summary.verdict.warnings)


def test_a_target_that_never_answers_leaves_every_request_unfinished_at_the_end_of_the_drain(run_virtually):
    load = Constant(rate=Rate(10), duration=seconds(10), drain=seconds(5))
    summary = run_virtually(profile(load, response_delay_seconds=1e6))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.books.unfinished == stage.books.intended == 100
    # Ages from 5.1 s (the last one) to 15 s (the first) are lower bounds of response time and TTFT.
    response = stage.latency_seconds.response
    assert (response.count, response.lower_bounds) == (100, 100)
    assert response.min == pytest.approx(5.1, rel=2e-3)
    assert response.max == pytest.approx(15, rel=2e-3)
    assert response.at_least["p50"]
    assert response.ci["p50"][1] is None
    assert stage.latency_seconds.ttft.lower_bounds == 100


def test_a_timeout_is_a_failure_whose_age_is_a_lower_bound(run_virtually):
    load = Constant(rate=Rate(10), duration=seconds(10))
    (stage,) = run_virtually(profile(load, timeout=2.0, response_delay_seconds=10.0)).stages
    assert stage.books.failed == {"timeout": 100}
    assert stage.failure_messages == {"timeout": "no end after 2 s"}
    assert stage.latency_seconds.response.lower_bounds == 100
    assert stage.latency_seconds.response.max == pytest.approx(2, rel=2e-3)


@pytest.mark.parametrize("processes", [1, 3, 7])
def test_a_closed_loop_keeps_its_concurrency_and_never_exceeds_it(run_virtually, processes):
    load = Concurrency(concurrency=50, duration=seconds(30))
    summary = run_virtually(profile(load, processes=processes, response_delay_seconds=1.0))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert summary.verdict.valid, summary.verdict.reasons
    assert stage.concurrency.max == 50
    assert stage.concurrency.mean > 49
    assert stage.books.completed == stage.books.intended == 50 * 30
    assert stage.latency_seconds.lateness.max == 0


@pytest.mark.parametrize("requests", [1, 49, 50, 51, 500])
def test_a_closed_loop_of_a_given_number_of_requests_does_exactly_these(run_virtually, requests):
    load = Concurrency(concurrency=50, requests=requests)
    (stage,) = run_virtually(profile(load, processes=3, response_delay_seconds=1.0)).stages
    assert stage.books.completed == stage.books.intended == requests
    assert stage.concurrency.max == min(50, requests)
    assert stage.ended_by == "requests"


def test_offline_sends_all_at_once_and_is_measured_to_its_last_end(run_virtually):
    # 1,000 requests through 100 slots of 0.1 s: ten rounds, 1 s, 1,000/s.
    summary = run_virtually(profile(Offline(requests=1000), max_inflight=100))
    (stage,) = summary.stages
    assert stage.books.completed == 1000
    assert stage.window.seconds == pytest.approx(1, rel=0.15)
    assert stage.throughput.requests == pytest.approx(1000, rel=0.15)
    assert summary.verdict.valid, summary.verdict.reasons


def test_a_sweep_has_a_stage_for_each_rate_with_the_target_drained_in_between(run_virtually):
    summary = run_virtually(profile(Sweep(rates=(Rate(5), Rate(50)), duration=seconds(20)), response_delay_seconds=2.0))
    assert [stage.offered_rate for stage in summary.stages] == [5, 50]
    assert_balanced(summary)
    for stage in summary.stages:
        assert stage.books.completed == stage.books.intended
        # Were the stage before still in flight, its 2 s of requests would add to this one's.
        assert stage.concurrency.mean == pytest.approx(stage.books.intended / 20 * 2, rel=0.15)


def test_steps_follow_each_other_without_a_pause_and_each_has_its_own_books(run_virtually):
    steps = tuple(Constant(rate=Rate(rate), duration=seconds(5)) for rate in (10, 40, 20))
    summary = run_virtually(profile(Steps(steps=steps), response_delay_seconds=3.0))
    assert [stage.books.completed for stage in summary.stages] == [50, 200, 100]
    assert summary.verdict.valid, summary.verdict.reasons
    assert all(stage.latency_seconds.lateness.max == 0 for stage in summary.stages)


def test_the_window_leaves_out_the_warm_up(run_virtually):
    load = Constant(rate=Rate(10), duration=seconds(30), warmup=seconds(5))
    (stage,) = run_virtually(profile(load)).stages
    assert (stage.window.start, stage.window.seconds) == (5, 25)
    assert (stage.books.completed, stage.window.books.completed) == (300, 250)
    assert stage.latency_seconds.response.count == 250


def test_dropping_books_what_finds_no_slot(run_virtually):
    # One slot, answers of 0.15 s, a start every 0.1 s: every second one finds the slot taken.
    load = Constant(rate=Rate(10), duration=seconds(10), overflow="drop")
    summary = run_virtually(profile(load, max_inflight=1, response_delay_seconds=0.15))
    (stage,) = summary.stages
    assert (stage.books.completed, stage.books.dropped) == (50, 50)
    assert_balanced(summary)


def test_asking_to_stop_ends_the_arrivals_and_drains_what_is_in_flight(run_virtually):
    async def stop_at_five(halt):
        await anyio.sleep(5.35)
        halt.ask("interrupted")

    load = Constant(rate=Rate(10), duration=seconds(60))
    summary = run_virtually(profile(load, response_delay_seconds=2.0), stop_at_five)
    (stage,) = summary.stages
    assert summary.interrupted
    assert stage.ended_by == "interrupted"
    assert stage.books.completed == stage.books.intended
    # From 0.1 s (when the stage begins) to 5.35 s there are 53 starts; the stop is heeded within 0.1 s.
    assert stage.books.intended == pytest.approx(53, abs=1)


def test_asking_twice_cancels_what_is_in_flight(run_virtually):
    async def insist(halt):
        await anyio.sleep(5)
        halt.ask("interrupted")
        await anyio.sleep(1)
        halt.ask("interrupted")

    summary = run_virtually(profile(Constant(rate=Rate(10), duration=seconds(60)), response_delay_seconds=1e5), insist)
    (stage,) = summary.stages
    assert stage.books.cancelled == stage.books.intended > 0
    assert_balanced(summary)


def test_a_run_is_aborted_once_too_many_of_its_requests_fail(run_virtually):
    rule = AbortWhen(error_rate=0.5, after=50)
    load = Constant(rate=Rate(10), duration=seconds(600), abort_when=rule)
    summary = run_virtually(profile(load, timeout=0.05))
    (stage,) = summary.stages
    assert stage.ended_by == "abort_when"
    assert any("abort_when" in warning for warning in summary.verdict.warnings)
    assert 50 <= stage.books.failed["timeout"] <= 60
    assert_balanced(summary)


def test_the_simulated_engine_serves_below_its_capacity_and_is_unstable_above_it(run_virtually):
    # 8 slots, a step of 10 ms + 1 ms for each decoding sequence: 8 / (16 steps of 18 ms) is about 28/s.
    engine = SimConfig(
        max_num_seqs=8, step_base_seconds=0.01, seconds_per_decode_seq=1e-3, seconds_per_kv_token=0, max_model_len=512
    )
    verdicts = []
    for rate in (16, 48):
        # 2,000 arrivals are what the rule needs with few slots.
        load = Poisson(rate=Rate(rate), duration=seconds(2400 / rate))
        workload = Workload(prompt_tokens=16, output_tokens=Fixed(value=16))
        target = SimTarget(transport="in-process", engine=engine)
        run = run_virtually(Profile(name="engine", target=target, workload=workload, load=load))
        verdicts.append(run.stages[0].stationary.verdict)
    assert verdicts == ["stable", "unstable"]


def test_what_waits_for_a_target_that_died_waited_for_the_target_and_not_for_the_generator(run_virtually, monkeypatch):
    # 10/s for 60 s from 0.1 s on, answers of 0.5 s. The target dies at 20.05 s with those of 19.6 to 20.0 s in flight:
    # five fail. Its worker says so 0.5 s later, and another target is there at 25.55 s: those of 20.1 to 25.5 s, 55 of
    # 600, wait for it for 5.45 to 0.05 s, and have their answers 0.5 s later.
    monkeypatch.setitem(
        kinds.KINDS,
        SimTarget,
        replace(kinds.KINDS[SimTarget], open=Lives([20.05], start_seconds=5.0, answer_seconds=0.5)),
    )
    summary = run_virtually(profile(Constant(rate=Rate(10), duration=seconds(60))))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert (stage.books.intended, stage.books.completed, stage.books.failed) == (600, 595, {ENGINE_DEAD: 5})
    latency = stage.latency_seconds
    assert latency.service.max == pytest.approx(0.5, rel=2e-3)
    assert latency.response.max == pytest.approx(5.95, rel=2e-3)
    assert latency.queued.max == pytest.approx(5.45, rel=2e-3)
    # The sixth largest of 595 is that of 20.6 s.
    assert latency.response.p99 == pytest.approx(5.45, rel=2e-2)
    assert latency.lateness.max == 0
    # What failed is there too, with its age.
    assert latency.failed[ENGINE_DEAD].max == pytest.approx(0.45, rel=2e-3)
    assert summary.verdict.valid, summary.verdict.reasons


def test_the_worker_that_takes_over_the_jobs_of_a_dead_target_is_not_late_with_them(run_virtually, monkeypatch):
    # Two workers with 10/s each; one target dies at 10.05 s, and its worker says so at 10.55 s. What was due at it by
    # then goes to the other one at once, as does all that follows until it is there again.
    monkeypatch.setitem(
        kinds.KINDS, SimTarget, replace(kinds.KINDS[SimTarget], open=Lives([10.05], workers=2, answer_seconds=0.5))
    )
    summary = run_virtually(profile(Constant(rate=Rate(20), duration=seconds(20)), processes=2))
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.books.failed == {ENGINE_DEAD: 5}
    assert stage.books.completed == 395
    assert stage.latency_seconds.response.max <= 0.5 + 0.5 + 0.03
    assert stage.latency_seconds.lateness.max == 0
    assert summary.verdict.valid, summary.verdict.reasons
