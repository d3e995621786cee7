"""The text of a HdrHistogram log (format version 1.3, V2 histograms), which the ecosystem's own tools read.

Values stay in ns; the column of interval maxima is in ms, which is what the Java tools' default scale of 1e6 prints.
This module makes lines, each with its line break, and writes nothing itself.
"""

import re
from datetime import UTC, datetime
from typing import Final

from loadgen.statistics.histogram import Histogram
from loadgen.units import NS_PER_MS

# Readers end the tag at the first comma and split lines at white space.
_TAG: Final = re.compile(r"[^\s,]+")


def header(started_at: datetime) -> str:
    """The lines before the first interval. Intervals are timed from `started_at`, an aware wall-clock time."""
    epoch = started_at.timestamp()
    date = started_at.astimezone(UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
    return (
        "#[Histogram log format version 1.3]\n"
        f"#[StartTime: {epoch:.3f} (seconds since epoch), {date}]\n"
        f"#[BaseTime: {epoch:.3f} (seconds since epoch)]\n"
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
    )


def line(tag: str, start_seconds: float, length_seconds: float, histogram: Histogram) -> str:
    """The samples of one metric in one interval, which starts `start_seconds` after the header's start.

    Readers expect intervals in ascending order of start. An empty histogram is a valid line, with maximum 0.

    Raises:
        ValueError: the tag is empty or holds a comma or white space, or the start is negative.
    """
    if not _TAG.fullmatch(tag):
        raise ValueError(f"a tag without commas and white space, not {tag!r}")
    if start_seconds < 0:
        raise ValueError(f"an interval cannot start {start_seconds} s before the log")
    maximum_ms = (histogram.max_ns or 0) / NS_PER_MS
    return f"Tag={tag},{start_seconds:.3f},{length_seconds:.3f},{maximum_ms:.3f},{histogram.encode()}\n"
