"""A worker's lifeline to its parent: an engine's processes and files do not outlive a worker whose parent is gone.

The parent cleans up after its workers (`launch`). This is for when the parent cannot, because it was killed. It works
from inside the worker, so two cases are beyond it. A worker that is killed in the same instant as its parent leaves its
engine behind: vLLM's core (0.32) does not look whether who began it is still there, and only a process can ask for a
signal at the death of its own parent. And while code in C holds the interpreter's lock, nothing here runs.
"""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from loadgen.processes import Family, kill_family

FOLDER_ENV: Final = "LOADGEN_FOLDER"
"""The variable with the worker's own temporary folder; only a worker with an engine has one."""
PARENT_ENV: Final = "LOADGEN_PARENT"
"""The variable with the process id of who started the worker."""

_LOOK_SECONDS: Final = 0.5
_GRACE_SECONDS: Final = 5
"""How long a worker that has lost its parent may take to shut its engine down in order."""


@contextmanager
def lifeline() -> Iterator[None]:
    """Put round the whole of a worker's main. Does nothing in a process that has no folder by `FOLDER_ENV`.

    A worker whose parent is gone (also if it went before this began) is noticed within a second, whatever its main
    thread does. It has five seconds to end by itself; then it is killed, with its engine. However it ends, in order or
    killed from here, nothing is left of its engine's processes, in other sessions either, and of its folder.

    The watch goes on after the context, while the interpreter shuts down: that may hang, too. So this is for a process
    of one's own.
    """
    folder = os.environ.get(FOLDER_ENV)
    if folder is None:
        yield
        return
    parent = int(os.environ[PARENT_ENV])
    threading.Thread(target=_watch, args=(parent, folder), name="lifeline", daemon=True).start()
    try:
        yield
    finally:
        _leave_nothing(folder)
        if os.getppid() != parent:
            os._exit(1)  # nobody waits for it, and an interpreter with an engine in it takes seconds to shut down


def family_of(leader: int, folder: str) -> Family:
    """The processes of the worker with this process id and folder, itself included."""
    return Family(leader, FOLDER_ENV, folder)


def _watch(parent: int, folder: str) -> None:
    # Who loses its parent gets another: the system's first process, or the nearest that asked for orphans.
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    time.sleep(_GRACE_SECONDS)
    _leave_nothing(folder)
    os.kill(os.getpid(), signal.SIGKILL)  # resource trackers end when this, the last that they work for, has


def _leave_nothing(folder: str) -> None:
    kill_family(family_of(os.getpid(), folder))
    shutil.rmtree(Path(folder), ignore_errors=True)
