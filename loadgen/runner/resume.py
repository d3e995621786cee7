"""Going on with a run that was killed or interrupted: which of its stages are whole and stay."""

import fcntl
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from loadgen.errors import ProfileError, RunFailure
from loadgen.judge.stages import StagesSoFar
from loadgen.measure.journal import COMPLETE, NoJournal, StageMeta, keep_stages, read_stage
from loadgen.measure.outcome import books_of
from loadgen.measure.recorder import RECORDS
from loadgen.measure.run_journal import RunJournal, read_overview
from loadgen.profile import Profile
from loadgen.profile.decoding import DecodingError, decode, encode, join
from loadgen.search.program import program_of
from loadgen.summary.counts import StageCounts

_PARTIAL: Final = ".partial"


class Kept(msgspec.Struct, frozen=True):
    """What of a run stays: its first `stages`. `ended`: it came to its end in order, and there is nothing to do."""

    stages: int
    ended: bool


class _Line(msgspec.Struct):
    stage: int


def what_is_complete(profile: Profile, directory: Path) -> Kept:
    """The whole stages at the beginning of the run in `directory`. It is read and not changed.

    Stages that follow each other without a pause are kept together or not at all.

    Raises:
        ProfileError: the directory holds no run, one of another profile, or one in virtual time.
    """
    try:
        run = read_overview(directory)
    except NoJournal as error:
        raise ProfileError(str(directory), [f"nothing to resume: {error}"]) from None
    if run.header.simulated:
        raise ProfileError(str(directory), ["holds a run in virtual time, which is not gone on with: simulate it anew"])
    _refuse_another(profile, run, directory)
    program, so_far = program_of(profile), StagesSoFar(directory)
    while group := program(so_far):
        metas = run.metas[so_far.ended : so_far.ended + len(group)]
        if len(metas) < len(group) or not all(_is_whole(directory, run, meta) for meta in metas):
            break
        other = next((meta for meta, plan in zip(metas, group, strict=True) if meta.name != plan.name), None)
        if other is not None:
            raise ProfileError(str(directory), [f"its stage {other.name} is none that this profile has next"])
        so_far.ended += len(group)
    ended = not group and run.end is not None and not run.end.interrupted and run.end.failure is None
    return Kept(so_far.ended, ended)


def keep(directory: Path, stages: int) -> None:
    """Forget what came of a run after its first `stages`, and that it ended.

    Raises:
        RunFailure: the disk does not take the change.
    """
    try:
        keep_stages(directory, stages)
        _keep_records(directory / RECORDS, stages)
    except OSError as error:
        raise RunFailure(f"cannot write in {directory}: {error.strerror or error}") from None


def _refuse_another(profile: Profile, run: RunJournal, directory: Path) -> None:
    """What was measured of one profile must not be mixed with what is measured of another."""
    try:
        began_with = decode(Profile, run.header.profile)
    except DecodingError:
        raise ProfileError(str(directory), ["was begun by another version of loadgen, with another profile"]) from None
    if began_with != profile:
        keys = ", ".join(_differing(encode(began_with), encode(profile)))
        raise ProfileError(str(directory), [f"its profile is not the one that it began with; changed: {keys}"])


def _differing(one: Any, other: Any, path: str = "") -> list[str]:
    """The paths at which two profiles, as plain data, differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [*one, *(key for key in other if key not in one)]
        return [found for key in keys for found in _differing(one.get(key), other.get(key), join(path, key))]
    return [] if one == other else [path]


def _is_whole(directory: Path, run: RunJournal, meta: StageMeta) -> bool:
    """Whether a stage ran to its end, and all that it booked is still there: a machine that went down with it may have
    kept the one and not the other."""
    end = run.ends.get(meta.stage)
    if end is None or end.ended_by not in COMPLETE:
        return False
    return books_of(StageCounts(meta, read_stage(directory, meta.stage)).accounts(), end.intended).ended == end.intended


def _keep_records(path: Path, stages: int) -> None:
    """Take the lines of stages that are run again out of `requests.jsonl`, and one that a kill cut off."""
    if not path.exists():
        return
    partial = path.with_suffix(_PARTIAL)
    with path.open("rb") as file, partial.open("wb") as kept:
        for line in file:
            stage = _stage_of(line)
            if stage is not None and stage < stages:
                kept.write(line)
    partial.replace(path)


def _stage_of(line: bytes) -> int | None:
    """The stage of a line; None where it is not whole."""
    try:
        return msgspec.json.decode(line, type=_Line).stage if line.endswith(b"\n") else None
    except msgspec.DecodeError:
        return None


class RunLock:
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
