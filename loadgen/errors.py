"""What goes wrong before or beside the measured requests, each with the exit code that the command ends with."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of `loadgen`; where several hold, the order is 2, 130, 3, 4, 1."""

    OK = 0
    SLO_MISSED = 1
    USAGE = 2
    UNREACHABLE = 3
    INVALID = 4
    INTERRUPTED = 130


class LoadgenError(Exception):
    """A failure told to the user in one line; `exit_code` is what the command returns."""

    exit_code = ExitCode.USAGE


class ProfileError(LoadgenError):
    """A profile that cannot be run. `faults` holds one line for each fault found, all of them at once."""

    def __init__(self, source: str, faults: list[str]) -> None:
        super().__init__("\n".join(f"{source}: {fault}" for fault in faults))
        self.source = source
        self.faults = faults


class TargetError(LoadgenError):
    """The target cannot be loaded: unreachable, wrong model or key, or no answer to the trial request."""

    exit_code = ExitCode.UNREACHABLE


class RunFailure(LoadgenError):
    """The generator itself cannot go on: no worker left, no file descriptors, no place to write."""

    exit_code = ExitCode.INVALID


class Interrupted(LoadgenError):
    """The user ended the run before there was anything to report."""

    exit_code = ExitCode.INTERRUPTED


@contextmanager
def one_failure() -> Iterator[None]:
    """Let a LoadgenError out as itself where task groups have wrapped it; where there are several, the first."""
    try:
        yield
    except BaseExceptionGroup as group:
        ours = group.subgroup(LoadgenError)
        if ours is None:
            raise
        raise innermost(ours) from group


def innermost(error: BaseException) -> BaseException:
    """The first exception inside nested groups."""
    return innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
