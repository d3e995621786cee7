"""What clocks promise of work that is done beside the loop."""

import threading
import time

import anyio
import pytest

from loadgen.clock import Clock, LoopClock, MonotonicClock
from loadgen.runner.virtual_time import run_virtually


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_in_real_time_work_is_done_beside_the_loop_which_goes_on_meanwhile(backend: str) -> None:
    waiting = threading.Event()

    async def main() -> int:

        def work() -> int:
            assert waiting.wait(10)  # only the loop, which goes on, can let it end
            return threading.get_ident()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_set, waiting)
            return await MonotonicClock().beside(work)

    assert anyio.run(main, backend=backend) != threading.get_ident()


async def _set(event: threading.Event) -> None:
    await anyio.lowlevel.checkpoint()
    event.set()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_wait_that_is_cancelled_gives_the_work_up(backend: str) -> None:
    ended = threading.Event()

    async def main() -> float:
        began = time.monotonic()
        with anyio.move_on_after(0.01):
            await MonotonicClock().beside(lambda: ended.wait(10))
        return time.monotonic() - began

    assert anyio.run(main, backend=backend) < 5
    ended.set()


def test_in_virtual_time_it_is_done_at_once_and_in_the_same_thread() -> None:
    async def main(clock: Clock) -> tuple[int, int]:
        return await clock.beside(threading.get_ident), clock.now_ns()

    assert run_virtually(main) == (threading.get_ident(), 0)
    assert anyio.run(LoopClock().beside, threading.get_ident) == threading.get_ident()
