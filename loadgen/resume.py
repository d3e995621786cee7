"""Going on with a run that was killed or interrupted: which of its stages are whole and stay."""

from pathlib import Path
from typing import Final

import msgspec

from loadgen.errors import RunFailure
from loadgen.load.program import program_of
from loadgen.metrics.journal import COMPLETE, NoJournal, StageMeta, keep_stages
from loadgen.metrics.recorder import RECORDS
from loadgen.metrics.run_journal import RunJournal, read_overview
from loadgen.metrics.stage_summary import StagesSoFar
from loadgen.profile import Profile

_PARTIAL: Final = ".partial"


class _Line(msgspec.Struct):
    stage: int


def keep_what_is_complete(profile: Profile, directory: Path) -> int:
    """Keep the whole stages at the beginning of a run and forget what came of the others; returns how many stay.

    Stages that follow each other without a pause are kept together or not at all.

    Raises:
        RunFailure: the directory holds no run, or one of other stages, or the disk does not take the change.
    """
    try:
        run = read_overview(directory)
    except NoJournal as error:
        raise RunFailure(f"nothing to resume: {error}") from None
    count = _whole(profile, directory, run)
    try:
        keep_stages(directory, count)
        _keep_records(directory / RECORDS, count)
    except OSError as error:
        raise RunFailure(f"cannot write in {directory}: {error.strerror or error}") from None
    return count


def _whole(profile: Profile, directory: Path, run: RunJournal) -> int:
    program, so_far = program_of(profile), StagesSoFar(directory)
    while group := program(so_far):
        metas = run.metas[so_far.ended : so_far.ended + len(group)]
        if len(metas) < len(group) or not all(_is_whole(run, meta) for meta in metas):
            break
        other = next((meta for meta, plan in zip(metas, group, strict=True) if meta.name != plan.name), None)
        if other is not None:
            raise RunFailure(f"cannot resume {directory}: its stage {other.name} is none that this profile has next")
        so_far.ended += len(group)
    return so_far.ended


def _is_whole(run: RunJournal, meta: StageMeta) -> bool:
    end = run.ends.get(meta.stage)
    return end is not None and end.ended_by in COMPLETE


def _keep_records(path: Path, count: int) -> None:
    """Take the lines of stages that are run again out of `requests.jsonl`, and one that a kill cut off."""
    if not path.exists():
        return
    partial = path.with_suffix(_PARTIAL)
    decode = msgspec.json.Decoder(_Line).decode
    with path.open("rb") as file, partial.open("wb") as kept:
        for line in file:
            if line.endswith(b"\n") and decode(line).stage < count:
                kept.write(line)
    partial.replace(path)
