"""The engine as an actor, in virtual time: what its readers see, and when."""

import anyio
import pytest
from trio.testing import MockClock

from loadgen.clock import LoopClock
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine.driver import SimEngine, make_engine
from loadgen.units import NS_PER_SECOND

pytestmark = pytest.mark.anyio

# Steps of exactly 10 ms, so that instants are easy.
STEADY = SimConfig(
    step_base_seconds=0.01, seconds_per_prefill_token=0.0, seconds_per_decode_seq=0.0, seconds_per_kv_token=0.0
)


@pytest.fixture
def anyio_backend():
    return ("trio", {"clock": MockClock(autojump_threshold=0)})


async def _instants(engine, output_tokens: int, prompt_tokens: int = 8) -> list[float]:
    """Seconds from now to each delta."""
    begin = anyio.current_time()
    with engine.generate(prompt_tokens, output_tokens) as stream:
        return [anyio.current_time() - begin async for delta in stream for _ in range(delta.tokens)]


async def test_tokens_come_one_a_step_and_the_last_is_marked():
    async with SimEngine(STEADY, clock=LoopClock()) as engine:
        with engine.generate(8, 3) as stream:
            deltas = [delta async for delta in stream]
    assert [(delta.tokens, delta.finished) for delta in deltas] == [(1, False), (1, False), (1, True)]


async def test_steps_follow_one_another_without_drift():
    async with SimEngine(STEADY, clock=LoopClock()) as engine:
        assert await _instants(engine, 1000) == pytest.approx([0.01 * k for k in range(1, 1001)], abs=1e-6)


async def test_a_request_that_comes_before_the_engines_task_runs_is_served_from_then_on():
    await anyio.sleep(100)
    async with SimEngine(STEADY, clock=LoopClock()) as engine:
        assert await _instants(engine, 2) == pytest.approx([0.01, 0.02], abs=1e-6)


async def test_a_request_joins_the_next_step_and_shares_it():
    async with SimEngine(STEADY, clock=LoopClock()) as engine, anyio.create_task_group() as group:
        group.start_soon(_instants, engine, 10)
        await anyio.sleep(0.013)
        # The steps begin at 0, 10, 20 ms: it joins at 20 ms and has its tokens 17 and 27 ms after it came.
        assert await _instants(engine, 2) == pytest.approx([0.017, 0.027], abs=1e-6)


async def test_a_slow_reader_gets_several_tokens_at_once_and_misses_none():
    async with SimEngine(STEADY, clock=LoopClock()) as engine:
        with engine.generate(8, 6) as stream:
            await anyio.sleep(0.035)
            assert (await anext(stream)).tokens == 3
            assert [delta.tokens async for delta in stream] == [1, 1, 1]


async def test_a_reader_of_the_whole_is_woken_once():
    async with SimEngine(STEADY, clock=LoopClock()) as engine:
        with engine.generate(8, 6, final_only=True) as stream:
            assert [delta async for delta in stream] == [(6, True)]


async def test_a_cancelled_reader_aborts_its_request():
    async with SimEngine(STEADY, clock=LoopClock()) as engine:
        with anyio.move_on_after(0.055):
            await _instants(engine, 1000)
        assert engine.running == 0
        assert engine.kv_usage == 0
        assert engine.statistics.aborted == 1
        assert engine.statistics.generation_tokens == 5


async def test_the_engine_goes_on_after_all_requests_were_aborted_in_a_step():
    async with SimEngine(STEADY, clock=LoopClock()) as engine:
        with engine.generate(8, 5):
            await anyio.sleep(0.001)
        assert await _instants(engine, 2) == pytest.approx([0.019, 0.029], abs=1e-6)


async def test_a_stall_holds_every_step_back_once():
    faults = SimFaults(stall_at_seconds=0.025, stall_seconds=1.0)
    async with SimEngine(STEADY, faults, LoopClock()) as engine:
        # The step from 20 to 30 ms was under way; the next begins at the stall's end, 1.025 s.
        assert await _instants(engine, 5) == pytest.approx([0.01, 0.02, 0.03, 1.035, 1.045], abs=1e-6)


async def test_a_fixed_delay_does_not_depend_on_how_many_answers_there_are():
    ends = []

    async def one(engine) -> None:
        ends.append(await _instants(engine, 4))

    async with make_engine(STEADY, SimFaults(response_delay_seconds=2.0), LoopClock()) as engine:
        async with anyio.create_task_group() as group:
            for _ in range(500):
                group.start_soon(one, engine)
        assert engine.running == 0
    assert len(ends) == 500
    for instants in ends:
        assert instants == pytest.approx([0.5, 1.0, 1.5, 2.0], abs=1e-6)


async def test_a_stall_holds_fixed_delays_back_too():
    faults = SimFaults(response_delay_seconds=1.0, stall_at_seconds=0.3, stall_seconds=0.6)
    async with make_engine(STEADY, faults, LoopClock()) as engine:
        assert await _instants(engine, 4) == pytest.approx([0.25, 0.9, 0.9, 1.0], abs=1e-6)


async def test_an_aborted_fixed_delay_leaves_the_others_alone():
    async with make_engine(STEADY, SimFaults(response_delay_seconds=1.0), LoopClock()) as engine:
        with anyio.move_on_after(0.6):
            await _instants(engine, 2)
        assert engine.running == 0
        assert await _instants(engine, 1) == pytest.approx([1.0], abs=1e-6)


async def test_a_closed_engine_ends_its_streams():
    async with SimEngine(STEADY, clock=LoopClock()) as engine:
        stream = engine.generate(8, 5)
    with pytest.raises(anyio.ClosedResourceError):
        await anext(stream)


async def test_the_engine_counts_what_it_did():
    async with SimEngine(STEADY, clock=LoopClock()) as engine:
        await _instants(engine, 5, prompt_tokens=20)
    statistics = engine.statistics
    assert (statistics.requests, statistics.finished, statistics.aborted) == (1, 1, 0)
    assert (statistics.prompt_tokens, statistics.generation_tokens) == (20, 5)
    assert sum(statistics.ttft.counts) == 1
    assert sum(statistics.itl.counts) == 4
    assert statistics.itl.sum == pytest.approx(0.04, abs=1e-6)


async def test_a_request_that_does_not_fit_is_refused():
    async with SimEngine(STEADY, clock=LoopClock()) as engine:
        with pytest.raises(ValueError, match="context"):
            engine.generate(8000, 1000)


@pytest.mark.parametrize("anyio_backend", ["asyncio", ("asyncio", {"use_uvloop": True}), "trio"])
async def test_it_keeps_the_models_pace_in_real_time_on_every_loop(anyio_backend):
    async with SimEngine(STEADY) as engine:
        begin_ns = engine.clock.now_ns()
        await _instants(engine, 10)
        elapsed = (engine.clock.now_ns() - begin_ns) / NS_PER_SECOND
    assert 0.1 <= elapsed < 0.2
