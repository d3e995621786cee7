"""The files of a finished run, each written atomically: a reader finds the old file or the whole new one, never a half.

A new report format is one new file and one line in `FORMATS`.
"""

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from loadgen.errors import LoadgenError, RunFailure
from loadgen.profile.slo import PERCENTILES
from loadgen.report.tables import is_sufficient
from loadgen.summary.summary import SCHEMA, Latencies, Latency, Stage, Summary

SUMMARY_FILE: Final = "summary.json"

_CSV_COLUMNS: Final = (
    "stage",
    "metric",
    "percentile",
    "value_seconds",
    "ci_low",
    "ci_high",
    "sufficient",
    "at_least",
    "count",
)


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


def read_summary(directory: Path) -> Summary:
    """Read the summary of a finished run from its directory (or from the JSON file itself).

    Raises:
        LoadgenError: there is none, or it is not one that this version reads.
    """
    path = directory / SUMMARY_FILE if directory.is_dir() else directory
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LoadgenError(f"{path}: {error.strerror or error}") from error
    try:
        summary = msgspec.json.decode(content, type=Summary)
    except msgspec.MsgspecError as error:
        raise LoadgenError(f"{path}: no summary of a run: {error}") from error
    if summary.schema != SCHEMA:
        raise LoadgenError(f"{path}: has schema {summary.schema}, this version reads schema {SCHEMA}")
    return summary


# --- json -------------------------------------------------------------------------------------------------------------


def to_json(summary: Summary) -> bytes:
    """The summary as indented JSON. A number that is not finite is written as null: JSON has no other word for it."""
    return msgspec.json.format(msgspec.json.encode(summary, enc_hook=as_plain), indent=2) + b"\n"


def as_plain(value: Any) -> Any:
    """What stands in JSON for a value that it does not know: a number for a unit, and text for the rest (a path)."""
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    return str(value)


# --- csv --------------------------------------------------------------------------------------------------------------


def to_csv(summary: Summary) -> bytes:
    """One row for each stage, latency and percentile; an empty cell is not known, and `ci_high` is empty where open.

    At the end stand `purpose` and `repeat`, where a stage has them, and a column for each swept key.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    conditions = [_condition(stage) for stage in summary.stages]
    more = list(dict.fromkeys(key for condition in conditions for key in condition))
    writer.writerow((*_CSV_COLUMNS, *more))
    for stage, condition in zip(summary.stages, conditions, strict=True):
        cells = [condition.get(key) for key in more]
        writer.writerows((*row, *cells) for row in _rows(stage))
    return text.getvalue().encode()


def _condition(stage: Stage) -> dict[str, object]:
    """What tells the stage from others of its run, by column; what it does not have is not there."""
    told = {"purpose": stage.purpose, "repeat": stage.repeat}
    settings = {key: value if isinstance(value, str) else _json(value) for key, value in stage.settings.items()}
    return {**{name: value for name, value in told.items() if value is not None}, **settings}


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=as_plain).decode()


def _rows(stage: Stage) -> Iterator[tuple[object, ...]]:
    for metric, latency in _all_named(stage.latency_seconds):
        for percentile in PERCENTILES:
            low, high = latency.ci.get(percentile, (None, None))
            yield (
                stage.name,
                metric,
                percentile,
                latency.percentile(percentile),
                low,
                high,
                _boolean(is_sufficient(latency, percentile)),
                _boolean(latency.at_least.get(percentile, False)),
                latency.count,
            )


def _all_named(latencies: Latencies) -> Iterator[tuple[str, Latency]]:
    yield from latencies.named().items()
    for kind, latency in sorted(latencies.failed.items()):
        yield f"failed:{kind}", latency


def _boolean(value: bool) -> str:
    return "true" if value else "false"


# --- html -------------------------------------------------------------------------------------------------------------


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
