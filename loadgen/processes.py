"""Child processes: seeing to it that they end, with all that came of them, and saying how they did."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
import msgspec
import psutil
from anyio.abc import Process

_PATIENCE_SECONDS: Final = 3
_TERM_SECONDS: Final = 2
_KILL_SECONDS: Final = 10
"""What is killed ends at once, but for a process that hangs in the kernel, which nobody can end."""
_TRACKER_SECONDS: Final = 2
_TRACKER_MODULE: Final = "multiprocessing.resource_tracker"
_POLL_SECONDS: Final = 0.05
_LOG_TAIL_BYTES: Final = 4000
_LAST_WORDS_CHARACTERS: Final = 600


_BEGIN_GROUP: Final = "import os, sys; os.setpgid(0, 0); os.execvp(sys.argv[1], sys.argv[1:])"


def in_own_group(command: Sequence[str]) -> list[str]:
    """The command of a child that begins a process group, so that a Ctrl-C of the terminal reaches its parent alone.

    It stays in the parent's session. Linux shares out the CPUs by session first (autogroup), and beside busy processes
    of others a worker in a session of its own waited for its CPU for up to 0.7 s.
    """
    return [sys.executable, "-I", "-S", "-c", _BEGIN_GROUP, *command]


async def end_process(process: Process) -> None:
    """See to it that a process ends that has been told to: wait a little, then terminate, then kill it.

    Not cancelled halfway: nothing is left behind.
    """
    with anyio.CancelScope(shield=True):
        for stop, seconds in ((None, _PATIENCE_SECONDS), (process.terminate, _TERM_SECONDS), (process.kill, None)):
            if process.returncode is None and stop is not None:
                with suppress(ProcessLookupError):  # it ended by itself meanwhile
                    stop()
            if seconds is None:
                await process.wait()  # what is killed ends
                return
            with anyio.move_on_after(seconds):
                await process.wait()
                return


class Family(msgspec.Struct, frozen=True):
    """A process that began a process group, and all that came of it, told by either of two signs.

    A child stays in the group unless it begins one of its own. It has the variable unless it was started with another
    environment, or wrote over its own, as `setproctitle` does where `SPT_NOENV` is not set.
    """

    leader: int
    """The process id of the first, and so the id of its group. The first may have ended."""
    variable: str
    value: str
    """What no process outside of the family has in `variable`."""


def members(family: Family) -> list[psutil.Process]:
    """Who of a family is alive, zombies and the caller aside."""
    found = []
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):  # it has ended meanwhile, or is somebody else's
            if pid != os.getpid() and _is_member(pid, family):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def kill_family(family: Family) -> None:
    """Kill who is left of a family, the caller and Python's resource trackers aside. Waits until they are gone.

    A tracker ends by itself when all that it works for have, and removes the shared memory that they left: killed with
    them, it would leave that behind.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    while (left := _but_trackers(family)) and time.monotonic() < deadline:
        for process in left:  # anew each time: one that was killed may have begun another before
            _send(process, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def end_family(family: Family) -> None:
    """Terminate who is left of a family whose first process has ended, and kill those who do not end.

    Returns when nobody is left: at once where there was nobody. Blocks for some seconds at the most.
    """
    terminated = _but_trackers(family)
    for process in terminated:
        _send(process, signal.SIGTERM)
    if terminated:
        _wait_while(lambda: _but_trackers(family), _TERM_SECONDS)
    kill_family(family)
    _wait_while(lambda: members(family), _TRACKER_SECONDS)
    for process in members(family):
        _send(process, signal.SIGKILL)


def _is_member(pid: int, family: Family) -> bool:
    return os.getpgid(pid) == family.leader or psutil.Process(pid).environ().get(family.variable) == family.value


def _but_trackers(family: Family) -> list[psutil.Process]:
    return [process for process in members(family) if not _is_tracker(process)]


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any(_TRACKER_MODULE in argument for argument in process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.Error):  # it has ended meanwhile
        process.send_signal(number)


def _wait_while(anybody: Callable[[], list[psutil.Process]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while anybody() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def how_it_ended(returncode: int, log: Path, *, lines: int = 1) -> str:
    """An exit status in words, with the last `lines` lines that the process logged."""
    words = status_in_words(returncode)
    said = _last_words(log, lines)
    return f"{words}; its last words: {said}" if said else words


def status_in_words(returncode: int) -> str:
    """An exit status: `exit code 1`, `signal SIGKILL`."""
    return f"signal {signal.Signals(-returncode).name}" if returncode < 0 else f"exit code {returncode}"


def _last_words(log: Path, lines: int) -> str | None:
    """The last `lines` lines of a log that say something, as one, cut at its front if need be."""
    tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""
    # A traceback of an exception group ends in a line of dashes, which says nothing.
    said = [line for line in (line.strip(" |+-") for line in tail.splitlines()) if line]
    words = " | ".join(said[-lines:])
    if len(words) > _LAST_WORDS_CHARACTERS:
        words = "..." + words[-(_LAST_WORDS_CHARACTERS - 3) :]
    return words or None
