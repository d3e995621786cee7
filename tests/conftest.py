"""What all tests share: settings, and whole runs in virtual time."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import settings

from loadgen.clock import Clock
from loadgen.judge.summarise import summarise
from loadgen.load.halt import Halt
from loadgen.profile import Profile
from loadgen.runner import virtual_time
from loadgen.summary.summary import Summary
from loadgen.targets.kinds import checked_target
from loadgen.workers.launch import InlineLauncher, Launcher
from tests.running import measure

# Machines are shared and noisy: a property is judged by its truth, not by the milliseconds of one example.
settings.register_profile("loadgen", deadline=None)
settings.load_profile("loadgen")


@pytest.fixture
def run_virtually(tmp_path: Path) -> Callable[..., Summary]:
    """Run a profile of a simulated target in virtual time, with its workers as tasks; `meanwhile(halt)` runs beside it.

    Everything but processes and sockets is what a real run has, and every instant is exact.
    """

    def run(
        profile: Profile,
        meanwhile: Callable[[Halt], object] | None = None,
        launcher: Callable[[Clock], Launcher] = InlineLauncher,
    ) -> Summary:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()

        async def main(clock: Clock) -> None:
            halt = Halt()
            async with checked_target(profile, clock) as checked, anyio.create_task_group() as tasks:
                if meanwhile is not None:
                    tasks.start_soon(meanwhile, halt)
                await measure(profile, checked, launcher(clock), clock, folder, halt=halt, nonce=0)
                tasks.cancel_scope.cancel()

        virtual_time.run_virtually(main)
        return summarise(folder)

    return run
