"""The files of a run, made again from its journal: after a kill, or by a newer version."""

from pathlib import Path

from loadgen.errors import LoadgenError, ProfileError, RunFailure
from loadgen.measure.latency_log import write_hlog
from loadgen.report.files import FORMATS, write_files
from loadgen.runner.lock import Hold
from loadgen.runner.results import summary_of
from loadgen.summary.summary import Summary


def remake(directory: Path) -> Summary:
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
        hold = Hold(directory)
    except ProfileError:  # a run that is going on writes its own log
        return summary
    try:
        write_hlog(directory)
    except OSError as error:
        raise RunFailure(f"cannot write the latency log in {directory}: {error.strerror or error}") from None
    finally:
        hold.release()
    return summary
