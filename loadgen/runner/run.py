"""One run, from a profile to its files: check the target, start the workers, run the stages, summarise."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
from msgspec.structs import replace

from loadgen.clock import Clock, MonotonicClock
from loadgen.errors import Interrupted, ProfileError, RunFailure, TargetError, one_failure
from loadgen.load.halt import Halt
from loadgen.profile import Profile
from loadgen.profile.file import run_dir
from loadgen.profile.grid import grid_points
from loadgen.report.files import write_files
from loadgen.runner.execution import Execution, Watch
from loadgen.runner.requirements import faults_here
from loadgen.runner.results import summary_of
from loadgen.summary.summary import Summary
from loadgen.targets.kinds import Checked, checked_target
from loadgen.workers.launch import Launcher, LocalLauncher
from loadgen.workers.placement import count_gpus, placements
from loadgen.workers.sizing import ensure_descriptors
from loadgen.workload.sources import workload_nonce


async def run(
    profile: Profile,
    directory: Path | None = None,
    *,
    halt: Halt | None = None,
    watch: Watch | None = None,
    resume: bool = False,
) -> Summary:
    """Run a profile and leave its files in `directory` (by default where `output.dir` says).

    Cancelling it ends the workers at once and leaves the journal as it is; `halt` ends the run in order.

    resume: `directory` holds a run of this profile that did not come to its end; its whole stages are kept, and what
        is missing is run.

    Raises:
        ProfileError: the profile cannot be run here (a secret's variable is not set, the directory is taken), or what
            is to be resumed is no run of this profile.
        TargetError: the target cannot be loaded. Where that is a later one of a grid, the files of what was measured
            before are there.
        RunFailure: no worker could be started, or the disk does not take the run.
        Interrupted: `halt` was asked for before the load began.
    """
    halt = halt or Halt()
    with one_failure():
        faults = faults_here(profile)
        if faults:
            raise ProfileError(profile.name, faults)
        ensure_descriptors(max(point.profile.workers.max_inflight for point in grid_points(profile)))
        directory = run_dir(profile) if directory is None else directory
        clock = MonotonicClock()
        nonce = workload_nonce(profile.workload)
        profile = _with_nonce(profile, nonce)
        summary: Summary | None = None
        unreachable: TargetError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_end_what_has_not_begun, halt, tasks.cancel_scope)
            open_target = partial(_open_processes, clock=clock, directory=directory)
            execution = Execution(profile, open_target, clock, directory, halt=halt, nonce=nonce, resume=resume)
            try:
                with one_failure():
                    await execution.run(watch)
            except (RunFailure, TargetError) as error:
                if not halt.begun:
                    raise
                # What ended the run early stands in its journal, and so in the verdict.
                unreachable = error if isinstance(error, TargetError) else None
            summary = summary_of(directory)
            write_files(summary, directory, profile.output.formats)
            if unreachable is not None:
                raise TargetError(f"{unreachable}; what was measured before stands in {directory}") from unreachable
            tasks.cancel_scope.cancel()
        if summary is None:
            raise Interrupted("interrupted before the load began")
        return summary


@asynccontextmanager
async def _open_processes(
    profile: Profile, processes: int, *, clock: Clock, directory: Path
) -> AsyncIterator[tuple[Checked, Launcher]]:
    """A checked target, and workers as processes."""
    placed = placements(profile, processes, os.environ, count_gpus())
    async with checked_target(profile, clock) as checked:
        launcher = LocalLauncher(directory, placed)
        async with launcher.listening():
            yield checked, launcher


async def _end_what_has_not_begun(halt: Halt, scope: anyio.CancelScope) -> None:
    await halt.asked()
    if not halt.begun:
        scope.cancel()


def _with_nonce(profile: Profile, nonce: int) -> Profile:
    return replace(profile, workload=replace(profile.workload, nonce=nonce))
