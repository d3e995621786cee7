"""`summary.json`: the summary as it is, written and read."""

from pathlib import Path
from typing import Any, Final

import msgspec

from loadgen.errors import LoadgenError
from loadgen.summary.summary import SCHEMA, Summary

SUMMARY_FILE: Final = "summary.json"


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


def to_json(summary: Summary) -> bytes:
    """The summary as indented JSON. A number that is not finite is written as null: JSON has no other word for it."""
    return msgspec.json.format(msgspec.json.encode(summary, enc_hook=as_plain), indent=2) + b"\n"


def as_plain(value: Any) -> Any:
    """What stands in JSON for a value that it does not know: a number for a unit, and text for the rest (a path)."""
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    return str(value)
