"""What a run found, from its journal: its measurements, and the answer of a search where it was one."""

from pathlib import Path
from typing import Final

from msgspec.structs import replace

from loadgen.errors import LoadgenError, ProfileError, RunFailure
from loadgen.judge.summarise import summarise
from loadgen.measure.journal import COMPLETE
from loadgen.measure.latency_log import write_hlog
from loadgen.measure.run_journal import read_overview
from loadgen.profile import Profile, is_search
from loadgen.profile.decoding import DecodingError, decode
from loadgen.report.files import FORMATS, write_files
from loadgen.runner.resume import RunLock
from loadgen.search.program import program_of, search_result
from loadgen.summary.summary import SearchResult, Stage, Summary, Verdict

_CAPPED_SHARE: Final = 0.01


def summary_of(directory: Path) -> Summary:
    """The summary of the run in `directory`, the result of its search included.

    Raises:
        NoJournal: the directory holds no run.
    """
    summary = summarise(directory)
    try:
        profile = decode(Profile, summary.profile)
    except DecodingError:  # of another version, which had other keys: what was measured stands all the same
        return summary
    if not is_search(profile.load):
        return summary
    cut = None
    if summary.stages and (summary.stages[-1].ended_by not in COMPLETE or program_of(profile)(summary.stages)):
        cut = _cut(directory, summary)
    found = search_result(profile.load, profile.slo, summary.stages, cut)
    if found is None:
        return summary
    return replace(summary, search=found, verdict=_verdict(_with_stages(summary, found), found))


def _with_stages(summary: Summary, found: SearchResult) -> Verdict:
    """The verdict with what a reader must know of the stages of a search, which it does not judge one by one."""
    warnings = list(summary.verdict.warnings)
    late = [number for number, stage in enumerate(summary.stages, 1) if stage.generator_faults]
    if late:
        warnings.append(
            f"The generator was late in {_stages(late)}: do not read their latencies; whether the backlog grows does"
            " not depend on it."
        )
    upper = found.evidence[1]
    if upper is not None and upper < len(summary.stages) and _capped(summary.stages[upper]):
        warnings.append(
            f"In {_stages([upper + 1])}, which failed, requests waited for a slot or were dropped for want of one:"
            " workers.max_inflight, and not the target, may be the limit that was found. Raise it and search again."
        )
    return replace(summary.verdict, warnings=warnings)


def _stages(numbers: list[int]) -> str:
    return f"stage{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _capped(stage: Stage) -> bool:
    """Whether more than 1 % of the window's requests were dropped, or p99 of the wait for a slot is more than 1 % of
    what requests took."""
    queued, service = stage.latency_seconds.queued, stage.latency_seconds.service
    if stage.window.books.dropped > _CAPPED_SHARE * stage.window.books.intended or not stage.window.sent:
        return True
    return queued is not None and service is not None and queued.p99 > _CAPPED_SHARE * service.mean


def _cut(directory: Path, summary: Summary) -> str:
    """What ended a search that had more to ask."""
    if summary.interrupted:
        return "interrupted"
    if summary.failure is not None:
        return "failure"
    if read_overview(directory).end is None:
        return "killed"
    ended_by = summary.stages[-1].ended_by
    return ended_by if ended_by not in COMPLETE else "max_time"


def _verdict(verdict: Verdict, found: SearchResult) -> Verdict:
    """A search that the generator ended has no answer that is the target's; one that was cut short says so."""
    if found.ended_by == "generator":
        return replace(verdict, valid=False, reasons=[*verdict.reasons, found.reason])
    if found.ended_by != "found":
        return replace(verdict, warnings=[*verdict.warnings, found.reason])
    return verdict


def regenerate(directory: Path) -> Summary:
    """Summarise the journal in `directory` and write every file that can be made from it.

    Raises:
        LoadgenError: the directory holds no journal.
        RunFailure: a file could not be written.
    """
    try:
        summary = summary_of(directory)
    except FileNotFoundError:
        raise LoadgenError(f"{directory}: no run lies here (it has no journal)") from None
    write_files(summary, directory, tuple(FORMATS))
    try:
        lock = RunLock(directory)
    except ProfileError:  # a run that is going on writes its own log
        return summary
    try:
        write_hlog(directory)
    except OSError as error:
        raise RunFailure(f"cannot write the latency log in {directory}: {error.strerror or error}") from None
    finally:
        lock.release()
    return summary
