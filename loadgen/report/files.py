"""The files of a finished run, each written atomically: a reader finds the old file or the whole new one, never a half.

A new report format is one new file and one line in `FORMATS`.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from loadgen.errors import RunFailure
from loadgen.report.percentiles_csv import to_csv
from loadgen.report.summary_json import SUMMARY_FILE, to_json
from loadgen.summary.summary import Summary


class Format(msgspec.Struct, frozen=True):
    """A report format: the name of its file, and the function that makes its content of a summary."""

    file: str
    content: Callable[[Summary], bytes]


def write_files(summary: Summary, directory: Path, formats: Iterable[str]) -> list[Path]:
    """Write the report in the given `formats` into `directory`, which is made if it is missing.

    The formats are written in the order of `FORMATS`, the summary first, so that one that fails costs no other before
    it. `hlog` is accepted and skipped: the recorder writes it while the run goes on.

    Returns:
        The files written.

    Raises:
        ValueError: a format is unknown; nothing was written.
        RunFailure: a file could not be written.
    """
    wanted = set(formats)
    if unknown := wanted - FORMATS.keys():
        raise ValueError(f"unknown report formats {sorted(unknown)}: known are {', '.join(FORMATS)}")
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, report in FORMATS.items():
            if name in wanted and report is not None:
                path = directory / report.file
                write_atomically(path, report.content(summary))
                written.append(path)
    except OSError as error:
        raise RunFailure(f"cannot write the report in {directory}: {error.strerror or error}") from None
    return written


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step; where that fails, what stood there before still stands."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _to_html(summary: Summary) -> bytes:
    # Imported here: the template engine and the chart library are wanted by nothing else.
    from loadgen.report.html import to_html

    return to_html(summary)


FORMATS: Final[dict[str, Format | None]] = {
    "json": Format(SUMMARY_FILE, to_json),
    "csv": Format("percentiles.csv", to_csv),
    "hlog": None,
    "html": Format("report.html", _to_html),
}
"""The report formats by name; None for one that is written elsewhere."""
