from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import pytest
from trio.testing import MockClock

from loadgen.cli.interactive import opening_words
from loadgen.clock import Clock, LoopClock
from loadgen.load.halt import Halt
from loadgen.measure.running import Live
from loadgen.profile import Constant, EngineTarget, HttpTarget, Profile, SimTarget, Target, Workers
from loadgen.sim.config import SimFaults
from loadgen.targets.kinds import checked_target
from loadgen.units import NS_PER_SECOND, Duration, Rate
from loadgen.workers.launch import Incarnation, InlineLauncher, Launcher
from tests.running import measure

_SLOW_SECONDS: Final = 60


def profile(target: Target, processes: int = 1) -> Profile:
    load = Constant(rate=Rate(10), duration=Duration(2 * NS_PER_SECOND))
    return Profile(target=target, load=load, workers=Workers(processes=processes))


class SlowLauncher:
    """Workers that take a minute to come up."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    @asynccontextmanager
    async def launch(self, worker: int) -> AsyncIterator[Incarnation]:
        await anyio.sleep(_SLOW_SECONDS)
        async with self._launcher.launch(worker) as incarnation:
            yield incarnation


def test_one_engine_and_its_log_are_named(tmp_path: Path) -> None:
    words = opening_words(profile(EngineTarget(model="org/tiny")), tmp_path)
    assert words == f"starting the engine of org/tiny; its log: {tmp_path}/worker-0.log"


def test_several_engines_and_their_logs_are_named(tmp_path: Path) -> None:
    words = opening_words(profile(EngineTarget(model="org/tiny"), processes=3), tmp_path)
    assert words == f"starting 3 engines of org/tiny; their logs: {tmp_path}/worker-0.log to worker-2.log"


@pytest.mark.parametrize("target", [SimTarget(), HttpTarget(url="http://127.0.0.1:1")], ids=["sim", "http"])
def test_of_a_target_that_starts_at_once_nothing_is_said(target: Target, tmp_path: Path) -> None:
    assert opening_words(profile(target), tmp_path) is None


def test_a_run_is_watched_from_the_start_of_its_workers_and_read_from_its_first_stage_on(tmp_path: Path) -> None:
    seen: list[tuple[float, bool]] = []

    async def watch(read: Callable[[], Live | None]) -> None:
        began = anyio.current_time()
        while True:
            seen.append((anyio.current_time() - began, read() is not None))
            await anyio.sleep(0.5)

    async def main() -> None:
        clock: Clock = LoopClock()
        target = SimTarget(transport="in-process", faults=SimFaults(response_delay_seconds=0.1))
        async with checked_target(profile(target), clock) as checked:
            launcher = SlowLauncher(InlineLauncher(clock))
            await measure(checked.profile, checked, launcher, clock, tmp_path, halt=Halt(), nonce=0, watch=watch)

    anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
    assert seen[0] == (0, False)
    # A look every half a second; at the very second of the start either may be first.
    assert not any(begun for seconds, begun in seen if seconds < _SLOW_SECONDS)
    assert all(begun for seconds, begun in seen if seconds > _SLOW_SECONDS)
    assert seen[-1][0] > _SLOW_SECONDS + 1  # the load takes 2 s
