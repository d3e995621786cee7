"""Child processes: seeing to it that one ends, and saying how it did."""

import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process

_PATIENCE_SECONDS: Final = 3
_TERM_SECONDS: Final = 2
_LOG_TAIL_BYTES: Final = 4000


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


def how_it_ended(returncode: int, log: Path) -> str:
    """An exit status in words, with the last line that the process logged."""
    words = f"signal {signal.Signals(-returncode).name}" if returncode < 0 else f"exit code {returncode}"
    tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""
    # A traceback of an exception group ends in a line of dashes, which says nothing.
    lines = [line.strip(" |+-") for line in tail.splitlines()]
    said = next((line for line in reversed(lines) if line), None)
    return f"{words}; its last words: {said}" if said else words
