"""The scheduler: what one step does, and what holds over any course of steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine.scheduler import Scheduler, SimRequest, Step
from loadgen.units import NS_PER_MS


def _config(**changes):
    """Steps of 10 ms + 1 us a prefill token + 100 us a decoding sequence; blocks of 4 tokens."""
    values = {
        "max_model_len": 64,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "block_size": 4,
        "num_kv_blocks": 100,
        "step_base_seconds": 0.01,
        "seconds_per_prefill_token": 1e-6,
        "seconds_per_decode_seq": 1e-4,
        "seconds_per_kv_token": 0.0,
    }
    return SimConfig(**{**values, **changes})


def _run(scheduler: Scheduler, now_ns: int = 0) -> list[Step]:
    steps = []
    while (step := scheduler.step(now_ns)) is not None:
        steps.append(step)
        now_ns = step.end_ns
    return steps


def _emitted(step: Step) -> list[tuple[int, bool]]:
    return [(emission.id, emission.finished) for emission in step.emissions]


def test_an_idle_scheduler_has_no_step():
    assert Scheduler(_config()).step(0) is None


def test_the_first_token_comes_with_the_end_of_the_prefill_and_then_one_a_step():
    scheduler = Scheduler(_config())
    scheduler.add(SimRequest(1, 10, 3), 0)
    steps = _run(scheduler)
    assert [_emitted(step) for step in steps] == [[(1, False)], [(1, False)], [(1, True)]]
    assert [(step.prefill_tokens, step.decoding) for step in steps] == [(10, 0), (0, 1), (0, 1)]


def test_a_steps_duration_is_its_base_and_what_each_token_adds():
    scheduler = Scheduler(_config(seconds_per_kv_token=1e-5))
    scheduler.add(SimRequest(1, 10, 2), 0)
    first, second = _run(scheduler)
    # 10 ms + 10 tokens of 1 us + 10 held of 10 us; then 10 ms + 100 us + 11 held of 10 us.
    assert first.duration_ns == 10_110_000
    assert second.duration_ns == 10_210_000
    assert second.begin_ns == first.end_ns


def test_a_long_prompt_is_cut_into_chunks_beside_which_others_decode():
    scheduler = Scheduler(_config())
    scheduler.add(SimRequest(1, 4, 10), 0)
    scheduler.step(0)
    scheduler.add(SimRequest(2, 40, 1), 0)
    chunks = [scheduler.step(0) for _ in range(3)]
    # Sixteen tokens a step, one of them for request 1: 15 + 15 + 10 = 40.
    assert [step.prefill_tokens for step in chunks] == [15, 15, 10]
    assert [_emitted(step) for step in chunks] == [[(1, False)], [(1, False)], [(1, False), (2, True)]]


def test_requests_are_admitted_in_the_order_they_came_and_no_more_than_there_are_slots():
    scheduler = Scheduler(_config(max_num_seqs=2))
    for number in (1, 2, 3):
        scheduler.add(SimRequest(number, 2, 2), 0)
    step = scheduler.step(5)
    assert [(admission.id, admission.waited_ns) for admission in step.admitted] == [(1, 5), (2, 5)]
    assert (scheduler.running, scheduler.waiting) == (2, 1)


def test_the_sequence_admitted_last_is_preempted_when_blocks_run_out_and_keeps_its_tokens():
    # Four blocks of 4 tokens, room for two sequences of 8. After the prefill of 8 + 7 both are full with the first
    # decode, which needs a fifth block.
    scheduler = Scheduler(_config(max_model_len=16, num_kv_blocks=4))
    scheduler.add(SimRequest(1, 8, 3), 0)
    scheduler.add(SimRequest(2, 7, 3), 0)
    steps = _run(scheduler)
    assert steps[1].preempted == [2]
    assert _emitted(steps[1]) == [(1, False)]
    assert steps[3].prefill_tokens == 8  # its prompt of 7 and the one token that it had emitted
    assert sum(emission.id == 2 for step in steps for emission in step.emissions) == 3
    assert scheduler.preemptions == 1


def test_an_aborted_request_gives_its_slot_and_blocks_back_at_once():
    scheduler = Scheduler(_config())
    scheduler.add(SimRequest(1, 10, 5), 0)
    scheduler.add(SimRequest(2, 10, 5), 0)
    scheduler.step(0)
    scheduler.abort(1)
    scheduler.abort(2)
    scheduler.abort(2)
    assert (scheduler.running, scheduler.waiting, scheduler.kv_blocks_used) == (0, 0, 0)
    assert scheduler.idle


def test_jitter_keeps_the_mean_and_the_seed_repeats_it():
    def durations(seed: int) -> list[int]:
        scheduler = Scheduler(_config(max_model_len=4000, num_kv_blocks=1000, jitter_cv=0.5, seed=seed))
        scheduler.add(SimRequest(1, 1, 3000), 0)
        return [step.duration_ns for step in _run(scheduler)]

    first = durations(1)
    assert first == durations(1)
    assert first != durations(2)
    # 3,000 draws of cv 0.5: the mean's standard error is 0.9 %, so 4 % is beyond four of them.
    assert sum(first) / len(first) == pytest.approx(10.1 * NS_PER_MS, rel=0.04)


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (60, 5)])
def test_a_request_that_cannot_be_held_is_refused(prompt, output):
    with pytest.raises(ValueError, match="token"):
        Scheduler(_config()).add(SimRequest(1, prompt, output), 0)


def test_an_id_under_way_is_refused():
    scheduler = Scheduler(_config())
    scheduler.add(SimRequest(1, 1, 1), 0)
    with pytest.raises(ValueError, match="already"):
        scheduler.add(SimRequest(1, 1, 1), 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 3},
        {"num_kv_blocks": 15},
        {"step_base_seconds": -1.0},
        {"step_base_seconds": 0.0, "seconds_per_prefill_token": 0.0},
        {"jitter_cv": float("nan")},
        {"block_size": 0},
    ],
)
def test_impossible_settings_are_refused_by_name(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        _config(**changes)


@pytest.mark.parametrize(
    "changes",
    [{"error_rate": 1.5}, {"error_status": 200}, {"stall_seconds": -1.0}, {"silent_after": -1}, {"abort_rate": -0.1}],
)
def test_impossible_faults_are_refused_by_name(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        SimFaults(**changes)


_requests = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 24), st.integers(0, 30)), min_size=1, max_size=25)


@settings(max_examples=150, deadline=None)
@given(_requests, st.integers(1, 6), st.integers(16, 24), st.integers(6, 40), st.sets(st.integers(0, 24), max_size=8))
def test_every_request_gets_exactly_its_tokens_and_the_blocks_never_run_over(requests, seqs, blocks, budget, aborts):
    config = _config(max_num_seqs=seqs, num_kv_blocks=blocks, max_num_batched_tokens=budget)
    scheduler = Scheduler(config)
    got = [0] * len(requests)
    finished = set()
    number = 0
    while True:
        for request_id, (prompt, output, joins) in enumerate(requests):
            if joins == number:
                scheduler.add(SimRequest(request_id, prompt, output), number)
        step = scheduler.step(number)
        number += 1
        if step is None:
            if number > 30:
                break
            continue
        assert 0 <= scheduler.kv_blocks_used <= blocks
        assert step.prefill_tokens + step.decoding <= budget
        assert scheduler.running <= seqs
        assert step.kv_tokens <= blocks * config.block_size
        for emission in step.emissions:
            assert emission.id not in finished
            got[emission.id] += emission.tokens
            if emission.finished:
                finished.add(emission.id)
        if number == 12:
            for request_id in aborts:
                scheduler.abort(request_id)
    for request_id, (_, output, joins) in enumerate(requests):
        if request_id in finished:
            assert got[request_id] == output
        else:
            assert request_id in aborts
            assert joins < 12
    assert (scheduler.running, scheduler.waiting, scheduler.kv_blocks_used) == (0, 0, 0)
