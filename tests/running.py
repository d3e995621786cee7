"""Runs whose target was checked and whose workers were made by the test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from loadgen.clock import Clock
from loadgen.load.halt import Halt
from loadgen.profile import Profile
from loadgen.runner.execution import Execution, Watch
from loadgen.targets.kinds import Checked
from loadgen.workers.launch import Launcher


async def measure(
    profile: Profile,
    checked: Checked,
    launcher: Launcher,
    clock: Clock,
    directory: Path,
    *,
    halt: Halt,
    nonce: int,
    watch: Watch | None = None,
) -> None:
    """Run all stages against one checked target, with the journal in `directory`. On any launcher and clock."""

    @asynccontextmanager
    async def opened(_: Profile, __: int) -> AsyncIterator[tuple[Checked, Launcher]]:
        yield checked, launcher

    await Execution(profile, opened, clock, directory, halt=halt, nonce=nonce).run(watch)
