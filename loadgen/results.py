"""What a run found, from its journal: its measurements, and the answer of a search where it was one."""

from pathlib import Path

from msgspec.structs import replace

from loadgen.decoding import DecodingError, decode
from loadgen.load.program import program_of, search_result
from loadgen.metrics.journal import COMPLETE
from loadgen.metrics.run_journal import read_overview
from loadgen.metrics.summarise import summarise
from loadgen.metrics.summary import SearchResult, Summary, Verdict
from loadgen.profile import Profile, is_search


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
    return summary if found is None else replace(summary, search=found, verdict=_verdict(summary.verdict, found))


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
