"""Real processes that are hard to end, and a roll that tells who came and when the last of them is gone."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path

_CALL = """
import os, signal, socket, subprocess, sys
def sign(roll, name):
    global pen
    pen = os.open(roll, os.O_WRONLY)  # held until this process ends, and not inherited
    os.write(pen, f"{name} {os.getpid()}\\n".encode())
"""

STUBBORN = (
    _CALL
    + """
roll, name, folder = sys.argv[1:4]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if folder:
    socket.socket(socket.AF_UNIX).bind(f"{folder}/{name}")
sign(roll, name)
while True:
    signal.pause()
"""
)
"""Ignores SIGTERM, leaves a socket in the folder, and stays until it is killed."""

BEGIN_KIN = (
    _CALL
    + f"""
STUBBORN = {STUBBORN!r}
def begin_kin(roll, folder=""):
    "One process in this one's group, one in a session of its own."
    for name, apart in (("near", False), ("apart", True)):
        command = [sys.executable, "-S", "-c", STUBBORN, roll, name, folder]
        subprocess.Popen(command, start_new_session=apart)
"""
)
"""Defines `sign(roll, name)` and `begin_kin(roll, folder)`."""


class Roll:
    """A named pipe that each process signs and holds open: it ends when the last of them has."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "roll")
        os.mkfifo(self.path)
        self._reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self._text = b""

    def signed(self, *names: str, seconds: float = 30) -> dict[str, int]:
        """The process ids by name, once all of `names` have signed."""
        deadline = time.monotonic() + seconds
        while not set(names) <= self._entries().keys():
            self._read(deadline, f"{names} to sign; signed: {self._entries()}")
        return self._entries()

    def assert_all_gone(self, seconds: float = 30) -> None:
        """Wait until everybody who signed has ended."""
        deadline = time.monotonic() + seconds
        while self._read(deadline, f"the end of {self._entries()}"):
            pass

    def has_ended(self) -> bool:
        """Whether everybody who signed has ended by now."""
        while select.select([self._reader], [], [], 0)[0]:
            if not os.read(self._reader, 1 << 16):
                return True
        return False

    def close(self) -> None:
        os.close(self._reader)

    def _entries(self) -> dict[str, int]:
        return {name: int(pid) for name, pid in (line.split() for line in self._text.decode().splitlines())}

    def _read(self, deadline: float, what: str) -> bytes:
        # A pipe that nobody has opened yet is not readable; one that all have closed is, and gives nothing.
        if not select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise AssertionError(f"waited in vain for {what}")
        read = os.read(self._reader, 1 << 16)
        self._text += read
        return read


def python(code: str, *arguments: str, **options: object) -> "subprocess.Popen[bytes]":
    """Begin a Python process."""
    return subprocess.Popen([sys.executable, "-c", code, *arguments], **options)
