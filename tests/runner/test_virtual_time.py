"""Virtual time: it passes at once, exactly, and the same way each time."""

import os
import signal
import time

import anyio

from loadgen.runner.virtual_time import VirtualClock, run_virtually
from loadgen.units import NS_PER_SECOND


def test_twenty_days_are_over_at_once_and_to_the_nanosecond():
    days_ns = 20 * 86_400 * NS_PER_SECOND + 1

    async def main(clock: VirtualClock) -> int:
        await clock.sleep_until(days_ns)
        return clock.now_ns()

    began = time.monotonic()
    assert run_virtually(main) == days_ns
    assert time.monotonic() - began < 10


def test_the_instants_of_a_day_are_exact():
    instants = [7, 1_000_000_007, 12_345_678_901_234, 86_400_000_000_001]

    async def main(clock: VirtualClock) -> list[int]:
        seen = []
        for instant_ns in instants:
            await clock.sleep_until(instant_ns)
            seen.append(clock.now_ns())
        return seen

    assert run_virtually(main) == instants


def test_the_loops_own_timeouts_pass_in_the_same_time():
    async def main(clock: VirtualClock) -> tuple[int, bool]:
        with anyio.move_on_after(30) as scope:
            await anyio.sleep_forever()
        return clock.now_ns(), scope.cancelled_caught

    assert run_virtually(main) == (30 * NS_PER_SECOND, True)


def test_tasks_run_in_the_order_of_their_instants():
    async def main(clock: VirtualClock) -> list[int]:
        order: list[int] = []

        async def at(instant_ns: int) -> None:
            await clock.sleep_until(instant_ns)
            order.append(instant_ns)

        async with anyio.create_task_group() as tasks:
            for instant_ns in (300, 100, 200):
                tasks.start_soon(at, instant_ns)
        return order

    assert run_virtually(main) == [100, 200, 300]


def test_a_timer_that_is_armed_anew_while_it_is_waited_for_keeps_to_the_last_instant():
    async def main(clock: VirtualClock) -> list[int]:
        timer = clock.timer()
        timer.arm(50)
        seen = []

        async def wait_twice() -> None:
            for _ in range(2):
                await timer.wait()
                seen.append(clock.now_ns())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_twice)
            await clock.sleep_until(10)
            timer.arm(80)  # later than it was
            await clock.sleep_until(60)
            timer.arm(70)  # sooner
            await clock.sleep_until(90)
            timer.arm(20)  # past: at once
        return seen

    assert run_virtually(main) == [70, 90]


def test_a_wait_for_a_timer_can_be_cancelled_and_begun_again():
    async def main(clock: VirtualClock) -> int:
        timer = clock.timer()
        timer.arm(40)
        with anyio.move_on_after(10e-9):
            await timer.wait()
        assert clock.now_ns() < 40
        await timer.wait()
        return clock.now_ns()

    assert run_virtually(main) == 40


def test_a_task_that_leaps_ahead_passes_no_other_tasks_instant():
    # The runner has nothing but its own instants to wait for, and leaps from one to the next; the walker's lie between.
    async def main(clock: VirtualClock) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []

        async def at_each(name: str, instants_ns: range) -> None:
            for instant_ns in instants_ns:
                await clock.sleep_until(instant_ns)
                seen.append((name, clock.now_ns()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at_each, "runner", range(10, 10_000, 10))
            tasks.start_soon(at_each, "walker", range(2_505, 10_000, 2_500))
        return seen

    seen = run_virtually(main)
    assert [instant_ns for _, instant_ns in seen] == sorted(instant_ns for _, instant_ns in seen)
    assert [instant_ns for name, instant_ns in seen if name == "walker"] == [2_505, 5_005, 7_505]
    assert [instant_ns for name, instant_ns in seen if name == "runner"] == list(range(10, 10_000, 10))


def test_a_task_that_leaps_ahead_is_reached_by_a_timeout():
    async def main(clock: VirtualClock) -> int:
        with anyio.move_on_after(1):
            while True:
                await clock.sleep_until(clock.now_ns() + 1_000_000)
        return clock.now_ns()

    assert run_virtually(main) == NS_PER_SECOND


def test_a_signal_arrives_while_time_flies():
    async def main(clock: VirtualClock) -> signal.Signals:
        async def fly() -> None:
            while True:
                await clock.sleep_until(clock.now_ns() + NS_PER_SECOND)

        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fly)
                os.kill(os.getpid(), signal.SIGINT)
                received = await anext(aiter(signals))
                tasks.cancel_scope.cancel()
        return received

    assert run_virtually(main) is signal.SIGINT
