import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadgen.errors import RunFailure
from loadgen.measure.journal import (
    FOLDER,
    Booking,
    JournalWriter,
    NoJournal,
    Record,
    RunEnd,
    StageEnd,
    WorkerDeath,
    WorkerOpened,
    WorkerStats,
    read_run,
    read_stage,
)
from loadgen.measure.outcome import FAILED

STATS = WorkerStats(worker=1, pid=42, cpu_ns=3, wall_ns=4, rss_bytes=5, gc_ns=6, gc_max_ns=7, in_flight=8, queued=9)


def whole(writer: JournalWriter, *records: Record, stage: int | None = None) -> None:
    for record in records:
        writer.append(record, stage)
    writer.close()


def test_every_kind_of_record_comes_back_as_it_was(build: Any, tmp_path: Path) -> None:
    failed = build.outcome(account=FAILED + "http_503", tokens=(), message="overloaded")
    delta = build.delta(build.outcome(tokens=(0.1, 0.2), output=2), failed)
    records = [
        build.header(target={"kind": "sim"}),
        build.meta(),
        delta,
        Booking(0, "lost", [0, 1, 1]),
        STATS,
        WorkerOpened(1, 42, 18, 19, {"kind": "engine", "model": None, "available_models": ["a"]}),
        WorkerDeath(1, 42, "signal 9", 3),
        StageEnd(0, 5, 6, "duration"),
        RunEnd(True, 0.5, 7, ["a"], "b"),
    ]
    whole(JournalWriter(tmp_path), *records)
    assert list(read_run(tmp_path)) == records


def test_a_delta_of_before_the_words_of_failures_were_kept_can_be_read(build: Any, tmp_path: Path) -> None:
    delta = build.delta(build.outcome(account=FAILED + "http_503", tokens=(), message="overloaded"))
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(delta))
    words = fields.index({"http_503": "overloaded"})
    body = msgspec.msgpack.encode(fields[:words])
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "stage-0000.msgpack").write_bytes(len(body).to_bytes(4, "little") + body)
    assert list(read_stage(tmp_path, 0)) == [replace(delta, messages={})]


@pytest.mark.parametrize(
    ("workload", "target", "streamed", "items"),
    [
        ({}, {}, True, None),
        ({"kind": "completion"}, {"stream": True}, True, None),
        ({"kind": "chat"}, {"stream": False}, False, None),
        ({"kind": "choice"}, {"stream": True}, False, None),
        ({"kind": "tokenize"}, {}, False, None),
        ({"kind": "score"}, {}, False, "scored tokens"),
        ({"kind": "embed"}, {}, False, "vectors"),
        ({"kind": "responses"}, {"stream": True}, True, None),
        ({"kind": "transcribe"}, {"stream": False}, False, "seconds of sound"),
    ],
)
def test_a_header_tells_by_the_kind_of_workload_what_answers_are_like(
    build: Any, workload: dict[str, str], target: dict[str, bool], streamed: bool, items: str | None
) -> None:
    header = build.header(workload=workload, target=target)
    assert (header.streamed, header.items) == (streamed, items)


def test_a_stage_has_a_file_of_its_own(build: Any, tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.append(build.header())
    writer.append(Booking(0, "lost", [0]), 0)
    writer.append(Booking(1, "lost", [1]), 1)
    writer.close_stage(1)
    writer.append(Booking(1, "lost", [2]), 1)
    writer.close()
    assert list(read_stage(tmp_path, 0)) == [Booking(0, "lost", [0])]
    assert list(read_stage(tmp_path, 1)) == [Booking(1, "lost", [1]), Booking(1, "lost", [2])]
    assert list(read_stage(tmp_path, 2)) == []


def test_a_record_is_on_its_way_to_the_disk_before_append_returns(build: Any, tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.append(build.header())
    assert list(read_run(tmp_path)) == [build.header()]
    writer.close()


@given(st.integers(0, 10_000))
def test_a_journal_that_was_cut_off_ends_with_its_last_whole_record(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    directory = tmp_path_factory.mktemp("run")
    records = [Booking(0, "lost", list(range(n))) for n in range(20)]
    whole(JournalWriter(directory), *records, stage=0)
    path = directory / FOLDER / "stage-0000.msgpack"
    content = path.read_bytes()
    cut = cut % (len(content) + 1)
    path.write_bytes(content[:cut])
    kept, length = 0, 0
    for record in records:
        length += 4 + len(msgspec.msgpack.encode(record))
        kept += length <= cut
    assert list(read_stage(directory, 0)) == records[:kept]


def test_reading_holds_one_record_at_a_time(tmp_path: Path) -> None:
    # 400 records of 10 kB.
    whole(JournalWriter(tmp_path), *[Booking(0, "x" * 10_000, [])] * 400, stage=0)
    tracemalloc.start()
    count = sum(1 for _ in read_stage(tmp_path, 0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 400
    assert peak < 400_000


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoJournal, match="holds no run"):
        read_run(tmp_path)


def test_a_place_where_nothing_can_be_written_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file")
    with pytest.raises(RunFailure, match="cannot make"):
        JournalWriter(tmp_path)
