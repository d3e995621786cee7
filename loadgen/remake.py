"""The files of a run, made again from its journal: after a kill, or by a newer version."""

from pathlib import Path

from loadgen.errors import LoadgenError
from loadgen.metrics.latency_log import write_hlog
from loadgen.metrics.summarise import summarise
from loadgen.metrics.summary import Summary
from loadgen.report.files import FORMATS, write_files


def remake(directory: Path) -> Summary:
    """Summarise the journal in `directory` and write every file that can be made from it.

    Raises:
        LoadgenError: the directory holds no journal.
    """
    try:
        summary = summarise(directory)
    except FileNotFoundError:
        raise LoadgenError(f"{directory}: no run lies here (it has no journal)") from None
    write_files(summary, directory, tuple(FORMATS))
    write_hlog(directory)
    return summary
