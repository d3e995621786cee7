import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from msgspec.structs import replace

from loadgen.measure.aggregate import StageMeter
from loadgen.measure.journal import StageEnd, WorkerDeath, WorkerOpened, WorkerStats, read_run, read_stage
from loadgen.measure.latency_log import HLOG, write_hlog
from loadgen.measure.outcome import COMPLETED, DROPPED, FAILED, LOST, UNFINISHED, Books
from loadgen.statistics.histogram import HIGHEST_NS, LOWEST_NS, SIGNIFICANT_DIGITS
from loadgen.units import NS_PER_SECOND


def read_log(directory: Path) -> list[tuple[str, float, int]]:
    """Tag, start in seconds from the run's start, and samples of each line."""
    reader = HistogramLogReader(str(directory / HLOG), HdrHistogram(LOWEST_NS, HIGHEST_NS, SIGNIFICANT_DIGITS))
    lines = []
    while (histogram := reader.get_next_interval_histogram()) is not None:
        start = histogram.get_start_time_stamp() / 1000 - 1_700_000_000
        lines.append((histogram.get_tag(), start, histogram.get_total_count()))
    reader.close()
    return lines


def stats(worker: int = 0, **fields: int) -> WorkerStats:
    plain = {
        "pid": 1,
        "cpu_ns": 0,
        "wall_ns": 1,
        "rss_bytes": 0,
        "gc_ns": 0,
        "gc_max_ns": 0,
        "in_flight": 0,
        "queued": 0,
    }
    return WorkerStats(worker, **{**plain, **fields})


def test_books_add_up_what_workers_and_the_parent_decide(build: Any, tmp_path: Path) -> None:
    recorder, _ = build.recorder(tmp_path)
    recorder.stage_started(build.meta())
    recorder.apply(build.delta(build.outcome(), build.outcome(account=FAILED + "http_503")), 0, build.origin_ns)
    recorder.book(0, LOST, [build.origin_ns] * 2)
    recorder.book(0, DROPPED, [])
    assert recorder.books(0) == Books(4, 1, {"http_503": 1}, 0, 0, 2, 0)
    assert recorder.error_rate(0) == (2, 1)
    recorder.stage_ended(StageEnd(0, build.origin_ns, 5, "duration"))
    assert recorder.books(0).intended == 5
    recorder.close()


def test_an_unfinished_request_that_was_never_shipped_has_an_age(build: Any, tmp_path: Path) -> None:
    recorder, _ = build.recorder(tmp_path)
    recorder.stage_started(build.meta())
    recorder.book(0, UNFINISHED, [build.origin_ns], at_ns=build.origin_ns + 3 * NS_PER_SECOND)
    recorder.close()
    (booking,) = read_stage(tmp_path, 0)
    assert build.sums(replace(build.delta(build.outcome()), histograms=booking.bounds), "ttft_at_least").sum_ns == 3e9


def test_what_an_opened_target_warns_of_is_shown_once_and_recorded(build: Any, tmp_path: Path) -> None:
    recorder, _ = build.recorder(tmp_path)
    opened = [WorkerOpened(worker, 10 + worker, 1, 1, {"warnings": ["no chat template"]}) for worker in range(2)]
    for record in opened:
        recorder.worker_opened(record)
    recorder.stage_started(build.meta())
    assert recorder.live().warnings == ["no chat template"]
    recorder.close()
    assert list(read_run(tmp_path))[1:3] == opened


def test_the_live_view_shows_the_stage_so_far(build: Any, tmp_path: Path) -> None:
    recorder, clock = build.recorder(tmp_path)
    assert recorder.live() is None
    recorder.stage_started(build.meta(offered_rate=20.0, duration_ns=60 * NS_PER_SECOND, stages=3))
    recorder.worker(stats(0, in_flight=2, queued=1))
    recorder.worker(stats(1, in_flight=3))
    recorder.worker_died(WorkerDeath(2, 99, "signal 9", 0))
    clock.at_ns += 2 * NS_PER_SECOND
    recorder.apply(build.delta(*[build.outcome(tokens=(0.1, 0.2), output=4)] * 10), 0, clock.at_ns)
    live = recorder.live()
    assert live is not None
    assert (live.stage_number, live.stages, live.in_flight, live.draining) == (1, 3, 5, False)
    assert (live.books.completed, live.books.intended) == (10, 16)
    # 10 requests of 4 tokens in the 2 s since the stage began.
    assert (live.achieved_rate, live.completed_rate, live.output_token_rate) == (5, 5, 20)
    assert live.percentiles["ttft"]["p99"] == pytest.approx(0.1, rel=1e-3)
    assert live.lateness_p99 == 0
    assert live.warnings == ["Worker 2 (pid 99) died: signal 9"]
    clock.at_ns += 60 * NS_PER_SECOND
    assert recorder.live().draining
    recorder.close()


def test_rates_are_of_the_last_seconds(build: Any, tmp_path: Path) -> None:
    recorder, clock = build.recorder(tmp_path)
    recorder.stage_started(build.meta())
    for _ in range(10):  # one request a second for 10 s, then nothing
        clock.at_ns += NS_PER_SECOND
        recorder.apply(build.delta(build.outcome()), 0, clock.at_ns)
    assert recorder.live().completed_rate == 1
    clock.at_ns += 4 * NS_PER_SECOND
    assert recorder.live().completed_rate == 0
    recorder.close()


def test_the_log_holds_every_latency_by_second_of_completion(build: Any, tmp_path: Path) -> None:
    recorder, clock = build.recorder(tmp_path, hlog=True)
    recorder.stage_started(build.meta())
    recorder.apply(build.delta(build.outcome(0.0, tokens=(0.5, 2.5)), build.outcome(2.2)), 0, clock.at_ns)
    recorder.close()
    lines = read_log(tmp_path)
    assert [(start, n) for tag, start, n in lines if tag == "response"] == [(2, 2)]
    assert [(start, n) for tag, start, n in lines if tag == "itl"] == [(2, 1)]


def test_a_second_is_written_two_seconds_after_its_end(build: Any, tmp_path: Path) -> None:
    recorder, clock = build.recorder(tmp_path, hlog=True)
    recorder.stage_started(build.meta())
    recorder.apply(build.delta(build.outcome(0.2)), 0, clock.at_ns)
    clock.at_ns += 2 * NS_PER_SECOND
    recorder.live()
    assert read_log(tmp_path) == []
    clock.at_ns += NS_PER_SECOND
    recorder.live()
    assert ("response", 0, 1) in read_log(tmp_path)
    recorder.close()


def test_a_delta_that_comes_late_stands_where_it_belongs_when_the_run_is_over(build: Any, tmp_path: Path) -> None:
    recorder, clock = build.recorder(tmp_path, hlog=True)
    recorder.stage_started(build.meta())
    for at in (0.0, 5.0, 0.1):
        recorder.apply(build.delta(build.outcome(at)), 0, clock.at_ns)
        clock.at_ns += 10 * NS_PER_SECOND
        recorder.live()
    recorder.close()
    assert [(start, n) for tag, start, n in read_log(tmp_path) if tag == "response"] == [(0, 2), (5, 1)]


def test_the_log_made_again_is_the_log_of_the_run(build: Any, tmp_path: Path) -> None:
    recorder, clock = build.recorder(tmp_path, hlog=True)
    recorder.stage_started(build.meta())
    for at in range(100):
        recorder.apply(build.delta(build.outcome(at), build.outcome(at + 0.3)), 0, clock.at_ns)
        clock.at_ns += NS_PER_SECOND
    recorder.close()
    written = (tmp_path / HLOG).read_text()
    write_hlog(tmp_path)
    assert (tmp_path / HLOG).read_text() == written


def test_a_warm_up_that_ends_within_a_second_of_the_start_does_not_start_the_log_before_it(
    build: Any, tmp_path: Path
) -> None:
    recorder, clock = build.recorder(tmp_path, hlog=True)
    grid = build.grid(warmup=0.5)
    recorder.stage_started(build.meta(grid))
    recorder.apply(build.delta(build.outcome(0.1), grid=grid), 0, clock.at_ns)
    recorder.close()
    assert ("response", 0, 1) in read_log(tmp_path)


def test_records_are_written_as_they_come_and_not_journalled(build: Any, tmp_path: Path) -> None:
    recorder, clock = build.recorder(tmp_path, records=True)
    recorder.stage_started(build.meta())
    meter = StageMeter(0, build.grid(), None, keep_records=True)
    build.note(meter, build.outcome(index=7))
    build.note(meter, build.outcome(index=8, account=FAILED + "http_503", message="overloaded"))
    recorder.apply(meter.flush(clock.at_ns + NS_PER_SECOND), 0, clock.at_ns)
    lines = (tmp_path / "requests.jsonl").read_text().splitlines()
    assert [json.loads(line)["account"] for line in lines] == [COMPLETED, FAILED + "http_503"]
    recorder.close()
    (delta,) = read_stage(tmp_path, 0)
    assert (delta.records, delta.messages) == (b"", {"http_503": "overloaded"})


def test_memory_does_not_grow_with_requests(build: Any, tmp_path: Path) -> None:
    recorder, clock = build.recorder(tmp_path, hlog=True)
    recorder.stage_started(build.meta())
    waits = np.random.default_rng(1).exponential(1, 50).tolist()
    held = []
    tracemalloc.start()
    for step in range(80):
        requests = (build.outcome(step + wait, tokens=(wait, wait + 0.1)) for wait in waits)
        recorder.apply(build.delta(*requests), 0, clock.at_ns)
        clock.at_ns += NS_PER_SECOND
        recorder.live()
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    recorder.close()
    assert max(held[60:]) < max(held[20:40]) + 100_000  # 2,000 requests later


def test_stats_of_a_worker_are_journalled_at_most_once_a_second(build: Any, tmp_path: Path) -> None:
    recorder, clock = build.recorder(tmp_path)
    recorder.stage_started(build.meta())
    for _ in range(13):  # 3 s, 4 times a second
        recorder.worker(stats())
        clock.at_ns += NS_PER_SECOND // 4
    recorder.close()
    assert len(list(read_stage(tmp_path, 0))) == 4
