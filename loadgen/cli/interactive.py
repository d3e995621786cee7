"""A run as a person sees it: the live view, Ctrl-C once and twice, the closing table, and the exit code."""

import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
from rich.console import Console

from loadgen.errors import ExitCode, LoadgenError, innermost, one_failure
from loadgen.load.halt import Halt
from loadgen.measure.running import Live
from loadgen.profile import EngineTarget, Profile, SimTarget
from loadgen.profile.file import run_dir
from loadgen.report.console import render_summary
from loadgen.report.live import show_live
from loadgen.runner.execution import processes_for
from loadgen.runner.run import run
from loadgen.runner.simulate import Fleet, simulate
from loadgen.runner.virtual_time import VirtualClock, run_virtually
from loadgen.search.program import planned
from loadgen.sim.api.server import serve
from loadgen.summary.summary import Summary
from loadgen.units import NS_PER_SECOND, format_seconds


def run_interactively(profile: Profile, out: Path | None, *, quiet: bool, resume: bool = False) -> ExitCode:
    """Run a profile with what a person wants to see, and say how it went as an exit code.

    resume: go on with the run in `out`.
    """
    console, directory = Console(), out or run_dir(profile)

    def play() -> Summary:
        return anyio.run(
            partial(_run, profile, directory, console, quiet=quiet, resume=resume),
            backend="asyncio",
            backend_options={"use_uvloop": sys.platform != "win32"},
        )

    return _concluded(play, directory, console, quiet=quiet)


def simulate_interactively(profile: Profile, out: Path | None, fleet: Fleet, *, quiet: bool) -> ExitCode:
    """Run a profile in virtual time, and say how it went as an exit code."""
    console, directory = Console(), out or run_dir(profile)
    play = partial(run_virtually, partial(_simulate, profile, directory, fleet, console, quiet=quiet))
    return _concluded(play, directory, console, quiet=quiet)


def _concluded(play: Callable[[], Summary], directory: Path, console: Console, *, quiet: bool) -> ExitCode:
    """Play a run, show what came of it, and say how it went as an exit code."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        with one_failure():
            summary = play()
    except LoadgenError as error:
        errors.print(str(error), markup=False)
        return ExitCode(error.exit_code)
    except Exception as error:  # a fault of ours: one line for the user, and the traceback where it can be found
        errors.print(
            f"a fault in loadgen ended the run: {innermost(error)!r}; {_keep_traceback(directory)}", markup=False
        )
        return ExitCode.INVALID
    except KeyboardInterrupt:  # before the run took charge of the signal
        return ExitCode.INTERRUPTED
    if not quiet:
        render_summary(summary, console)
        console.print(f"\nfiles in {directory}", markup=False, highlight=False, soft_wrap=True)
        if summary.interrupted or summary.failure is not None:
            console.print(f"to go on: loadgen run --resume {directory}", markup=False, highlight=False, soft_wrap=True)
    return exit_code(summary)


def exit_code(summary: Summary) -> ExitCode:
    """The exit code of a run; where several hold, the order is 130, 3, 4, 1.

    A search that found no load at which the target keeps its SLO has missed it.
    """
    completed = sum(stage.books.completed for stage in summary.stages)
    slo, search = summary.verdict.slo, summary.search
    if summary.interrupted:
        return ExitCode.INTERRUPTED
    if completed == 0:
        return ExitCode.UNREACHABLE
    if not summary.verdict.valid:
        return ExitCode.INVALID
    if search is not None and search.saturation is None and search.ended_by in ("target", "abort_when"):
        return ExitCode.SLO_MISSED if summary.profile.get("slo") else ExitCode.UNREACHABLE
    if slo is not None and slo.met is False:
        return ExitCode.SLO_MISSED
    return ExitCode.OK


def _keep_traceback(directory: Path) -> str:
    """Write the traceback of the exception being handled beside the run's files; says where, or why not."""
    file = directory / "traceback.txt"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file.write_text(traceback.format_exc())
    except OSError as error:
        return f"its traceback could not be kept: {error.strerror}"
    return f"its traceback is in {file}"


async def _run(profile: Profile, directory: Path, console: Console, *, quiet: bool, resume: bool) -> Summary:
    halt = Halt()
    async with anyio.create_task_group() as tasks:
        await tasks.start(_heed_signals, halt, console)
        watch = None if quiet else partial(_watch, console, opening_words(profile, directory))
        summary = await run(profile, directory, halt=halt, watch=watch, resume=resume)
        tasks.cancel_scope.cancel()
    return summary


async def _simulate(
    profile: Profile, directory: Path, fleet: Fleet, console: Console, clock: VirtualClock, *, quiet: bool
) -> Summary:
    halt = Halt()
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        await tasks.start(_heed_signals, halt, console)
        summary = await simulate(profile, clock, directory, fleet, halt=halt)
        tasks.cancel_scope.cancel()
    if not quiet:
        virtual, real = format_seconds(clock.now_ns() / NS_PER_SECOND), format_seconds(time.monotonic() - began)
        engines = "" if fleet.replicas == 1 else f" of {fleet.replicas} engines ({fleet.routing})"
        Console(stderr=True, highlight=False).print(f"simulated {virtual}{engines} in {real}", markup=False)
    return summary


async def _watch(console: Console, opening: str | None, read: Callable[[], Live | None]) -> None:
    await show_live(read, console, plain=not console.is_terminal, opening=opening)


def opening_words(profile: Profile, directory: Path) -> str | None:
    """What a person waits for between the check and the load; None where that takes a moment only."""
    if not isinstance(profile.target, EngineTarget):
        return None
    count = processes_for(profile, planned(profile))
    if count == 1:
        return f"starting the engine of {profile.target.model}; its log: {directory / 'worker-0.log'}"
    last = f"worker-{count - 1}.log"
    return f"starting {count} engines of {profile.target.model}; their logs: {directory / 'worker-0.log'} to {last}"


async def _heed_signals(
    halt: Halt, console: Console, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if halt.reason is None:
                console.print(
                    "stopping: requests in flight are followed to their end; again to cancel them"
                    if halt.begun
                    else "stopping: the load has not begun"
                )
            halt.ask("interrupted")


def serve_simulator(profile: Profile, host: str, port: int) -> None:
    """Serve the simulator that a profile's target describes until interrupted."""
    assert isinstance(profile.target, SimTarget)
    console = Console()

    def ready(bound: int) -> None:
        console.print(f"simulated vLLM at http://{host}:{bound} (Ctrl-C ends it)", markup=False, highlight=False)

    serving = partial(serve, profile.target.engine, profile.target.faults, host=host, port=port, ready=ready)
    try:
        anyio.run(serving, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})
    except KeyboardInterrupt:
        return
    except (OSError, BaseExceptionGroup) as error:
        cause = innermost(error)
        if not isinstance(cause, OSError):
            raise
        raise LoadgenError(f"cannot listen at {host}:{port}: {cause.strerror or cause}") from None
