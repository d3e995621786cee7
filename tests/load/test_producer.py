"""The producer's bargain with slow workers: the schedule is kept, and what finds no credit is told apart."""

import anyio
import pytest

from loadgen.load.producer import AutoResetEvent
from loadgen.profile import Constant, Fixed, Profile, SimTarget, Workers, Workload
from loadgen.sim.config import SimFaults
from loadgen.units import NS_PER_SECOND, Duration, Rate


def seconds(count: float) -> Duration:
    return Duration(round(count * NS_PER_SECOND))


def profile(load, *, answer_seconds: float, max_inflight: int, processes: int = 1) -> Profile:
    target = SimTarget(transport="in-process", faults=SimFaults(response_delay_seconds=answer_seconds))
    return Profile(
        target=target,
        workload=Workload(prompt_tokens=16, output_tokens=Fixed(value=4)),
        load=load,
        workers=Workers(processes=processes, max_inflight=max_inflight),
    )


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_a_backlog_beyond_all_credits_keeps_its_intended_starts(run_virtually, processes):
    # 100/s for 9.95 s against 10 slots of 1 s: 100 are served, 895 never sent. A worker holds its slots and a room of
    # 64 + 50 jobs; the rest waits at the producer, which keeps counting.
    load = Constant(rate=Rate(100), duration=seconds(9.95), drain=seconds(5))
    summary = run_virtually(profile(load, answer_seconds=1.0, max_inflight=10, processes=processes))
    (stage,) = summary.stages
    assert stage.books.intended == stage.books.ended == 995
    assert (stage.books.completed, stage.books.unfinished) == (100, 895)
    # Request i starts at i/100 and is served in round i // 10, so that it waits i//10 - i/100 s, at most 9 - 0.9.
    assert stage.latency_seconds.queued.max == pytest.approx(9 - 0.9, abs=0.02)
    assert stage.latency_seconds.lateness.max == 0
    if processes == 1:
        assert summary.generator.credits_exhausted_seconds > 5


def test_dropping_needs_no_credit_to_be_counted(run_virtually):
    load = Constant(rate=Rate(500), duration=seconds(10), overflow="drop")
    summary = run_virtually(profile(load, answer_seconds=1.0, max_inflight=10))
    (stage,) = summary.stages
    assert stage.books.intended == stage.books.ended == 5000
    assert stage.books.completed == pytest.approx(100, abs=10)
    assert stage.books.dropped == 5000 - stage.books.completed


def test_a_slow_start_of_the_credits_does_not_thin_the_load(run_virtually):
    load = Constant(rate=Rate(2000), duration=seconds(3))
    (stage,) = run_virtually(profile(load, answer_seconds=0.01, max_inflight=4096)).stages
    assert stage.books.completed == stage.books.intended == 6000
    assert stage.latency_seconds.queued.max == 0


# --- an event that resets itself --------------------------------------------------------------------------------------


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.anyio
async def test_one_wait_ends_at_whatever_happens_first() -> None:
    wake, once, often = AutoResetEvent(), anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wake.set_after, once.wait)
        tasks.start_soon(wake.set_after, often.wait)
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0) as early:
            await wake.wait()
        assert early.cancelled_caught
        often.set()
        with anyio.fail_after(5):
            await wake.wait()
        once.set()
        with anyio.fail_after(5):
            await wake.wait()


@pytest.mark.anyio
async def test_what_rang_before_the_wait_is_heard_once() -> None:
    wake = AutoResetEvent()
    await wake.set_after(anyio.lowlevel.checkpoint)
    await wake.set_after(anyio.lowlevel.checkpoint)
    with anyio.fail_after(5):
        await wake.wait()
    with anyio.move_on_after(0) as second:
        await wake.wait()
    assert second.cancelled_caught


@pytest.mark.anyio
async def test_what_happens_again_rings_again() -> None:
    send, receive = anyio.create_memory_object_stream[None](0)
    wake = AutoResetEvent()
    async with send, receive, anyio.create_task_group() as tasks:
        tasks.start_soon(wake.set_after_each, receive.receive)
        for _ in range(3):
            await send.send(None)
            with anyio.fail_after(5):
                await wake.wait()
        tasks.cancel_scope.cancel()
