"""The mark that a run is being written: by one process at a time, or one would destroy what the other wrote."""

import fcntl
import os
from pathlib import Path

from loadgen.errors import ProfileError


class Hold:
    """Held from when it is made until `release`, or until the process ends, however it ends.

    Where the file system knows no locks, nothing is held.

    Raises:
        ProfileError: another process writes the run in `directory`.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ProfileError(str(directory), ["holds a run that is still going on"]) from None
        except OSError:
            self.release()

    def release(self) -> None:
        """Let others write the run."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
