"""The capacity formula against the scheduler itself, in simulated time."""

import random

import pytest

from loadgen.sim.config import SimConfig
from loadgen.sim.engine.capacity import capacity
from loadgen.sim.engine.scheduler import Scheduler, SimRequest
from loadgen.units import NS_PER_SECOND


def _saturated_rate(config: SimConfig, prompt: int, output: int) -> float:
    """Completions per second of an engine whose queue is never empty.

    Completions come in waves of the size of the batch, so many batches are needed to make a part of a wave at either
    end small: 60 batches after the first 30 leave less than 2 %.
    """
    scheduler = Scheduler(config)
    skip, total = 30 * config.max_num_seqs, 90 * config.max_num_seqs
    now_ns = added = done = 0
    began: tuple[int, int] | None = None
    while done < total:
        while scheduler.waiting < config.max_num_seqs + 8:
            scheduler.add(SimRequest(added, prompt, output), now_ns)
            added += 1
        step = scheduler.step(now_ns)
        now_ns = step.end_ns
        done += sum(emission.finished for emission in step.emissions)
        if began is None and done >= skip:
            began = (done, now_ns)
    return (done - began[0]) * NS_PER_SECOND / (now_ns - began[1])


def _queue_after(config: SimConfig, prompt: int, output: int, rate: float, seconds: float) -> int:
    """Requests in the engine after Poisson arrivals of this rate for this long."""
    scheduler = Scheduler(config)
    draw = random.Random(7)
    now_ns, added, arrival = 0, 0, draw.expovariate(rate)
    while now_ns < seconds * NS_PER_SECOND:
        while arrival * NS_PER_SECOND <= now_ns:
            scheduler.add(SimRequest(added, prompt, output), round(arrival * NS_PER_SECOND))
            added += 1
            arrival += draw.expovariate(rate)
        step = scheduler.step(now_ns)
        now_ns = step.end_ns if step else round(arrival * NS_PER_SECOND) + 1
    return scheduler.waiting + scheduler.running


@pytest.mark.parametrize(
    ("slots", "prompt", "output", "bound"),
    [
        (64, 32, 128, "slots"),  # decode-bound
        (64, 256, 32, "slots"),
        (64, 1024, 32, "batched tokens"),  # prefill-bound: chunks fill the budget
        (256, 2000, 1, "batched tokens"),
        (256, 256, 32, "batched tokens"),
        (256, 64, 64, "slots"),
        (8, 3000, 100, "slots"),  # a prefill of two steps
        (1, 500, 50, "slots"),
    ],
)
def test_a_saturated_engine_completes_at_its_capacity(slots, prompt, output, bound):
    config = SimConfig(max_num_seqs=slots)
    expected = capacity(config, prompt, output)
    assert expected.bound == bound
    assert _saturated_rate(config, prompt, output) == pytest.approx(expected.requests_per_second, rel=0.02)


def test_jitter_does_not_change_the_capacity():
    config = SimConfig(max_num_seqs=64, jitter_cv=0.3)
    expected = capacity(config, 64, 32).requests_per_second
    assert _saturated_rate(config, 64, 32) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("prompt", "output"), [(512, 64), (256, 256), (1000, 30)])
def test_an_engine_short_of_kv_blocks_completes_up_to_a_tenth_less(prompt, output):
    config = SimConfig(max_num_seqs=64, num_kv_blocks=1024)
    expected = capacity(config, prompt, output)
    assert expected.bound == "kv blocks"
    rate = _saturated_rate(config, prompt, output)
    assert 0.9 * expected.requests_per_second < rate < 1.02 * expected.requests_per_second


@pytest.mark.parametrize(("slots", "prompt", "output"), [(64, 128, 64), (64, 1024, 16)])
def test_arrivals_below_capacity_are_served_and_above_it_the_queue_grows(slots, prompt, output):
    config = SimConfig(max_num_seqs=slots)
    rate = capacity(config, prompt, output).requests_per_second
    # In 60 s at 1.1 times about 6 s of arrivals pile up; at 0.9 times the batch and a short queue remain.
    assert _queue_after(config, prompt, output, 0.9 * rate, 60) < 2 * slots
    assert _queue_after(config, prompt, output, 1.1 * rate, 60) > 4 * rate


def test_the_default_engine_sustains_the_default_workload_comfortably():
    assert capacity(SimConfig(), 256, 32).requests_per_second >= 200


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="context"):
        capacity(SimConfig(), 8000, 200)
