from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from loadgen.measure.latency_log import header, line
from loadgen.statistics.histogram import HIGHEST_NS, LOWEST_NS, SIGNIFICANT_DIGITS, Histogram, fold

# 1,700,000,000 s after the epoch.
STARTED = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def histogram_of(*values: int) -> Histogram:
    histogram = Histogram()
    histogram.add(fold(np.array(values, np.int64)))
    return histogram


def test_the_header_states_version_start_base_and_columns() -> None:
    assert header(STARTED).splitlines() == [
        "#[Histogram log format version 1.3]",
        "#[StartTime: 1700000000.000 (seconds since epoch), Tue Nov 14 22:13:20 UTC 2023]",
        "#[BaseTime: 1700000000.000 (seconds since epoch)]",
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
    ]


def test_a_line_states_tag_times_maximum_and_histogram() -> None:
    tag, start, length, maximum, blob = line("ttft", 2.0, 1.0, histogram_of(5_000_000)).rstrip("\n").split(",")
    assert (tag, start, length) == ("Tag=ttft", "2.000", "1.000")
    assert maximum == "5.000"  # 5,000,000 ns in ms
    assert blob.startswith("HISTFAAA")


def test_the_library_reads_every_interval_back(tmp_path: Path) -> None:
    log = tmp_path / "latency.hlog"
    first, second = histogram_of(1_000_000, 2_000_000), histogram_of(3_000_000)
    log.write_text(header(STARTED) + line("ttft", 0, 1, first) + line("itl", 1, 0.5, second))
    reader = HistogramLogReader(str(log), HdrHistogram(LOWEST_NS, HIGHEST_NS, SIGNIFICANT_DIGITS))
    for tag, start, end, written in [("ttft", 0, 1000, first), ("itl", 1000, 1500, second)]:
        read = reader.get_next_interval_histogram()
        assert read.get_tag() == tag
        assert read.get_start_time_stamp() - 1_700_000_000_000 == start
        assert read.get_end_time_stamp() - 1_700_000_000_000 == end
        assert list(read.counts) == list(written.to_hdr().counts)
    assert reader.get_next_interval_histogram() is None
    reader.close()


def test_an_interval_without_samples_is_a_line_too() -> None:
    blob = line("ttft", 0, 1, Histogram()).rstrip("\n").rsplit(",", 1)[1]
    assert HdrHistogram.decode(blob).get_total_count() == 0


@pytest.mark.parametrize("tag", ["", "a,b", "a b", "a\n"])
def test_a_tag_that_readers_would_cut_is_refused(tag: str) -> None:
    with pytest.raises(ValueError, match="tag"):
        line(tag, 0, 1, Histogram())


def test_an_interval_before_the_start_is_refused() -> None:
    with pytest.raises(ValueError, match="before"):
        line("ttft", -1, 1, Histogram())
