import csv
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import LoadgenError
from loadgen.report import files
from loadgen.report.files import write_atomically, write_files
from loadgen.report.percentiles_csv import to_csv
from loadgen.report.summary_json import read_summary, to_json
from loadgen.summary.summary import AcrossRepeats, Latencies, Overload, Repeated
from loadgen.units import Duration


def cells(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(content.decode().splitlines()))


# --- json -------------------------------------------------------------------------------------------------------------


def test_a_summary_reads_back_as_it_was(build: Any, tmp_path: Path) -> None:
    check = build.check("undecided", ci=(0.09, None))
    stage = build.stage(books=build.books(9, {"timeout": 1}), latency_seconds=Latencies(failed={"x": build.latency()}))
    summary = build.summary(
        stage, build.stage(), build.silent_stage(), verdict=build.verdict(slo=build.slo(None, check))
    )
    write_files(summary, tmp_path, ["json"])
    assert read_summary(tmp_path) == summary
    assert read_summary(tmp_path / "summary.json") == summary


def test_a_search_and_repeats_read_back_as_they_were(build: Any, tmp_path: Path) -> None:
    stages = build.search_stages()
    repeated = Repeated("poisson 20/s", [1, 3], {"ttft.p99": AcrossRepeats(2, 0.1, (0.09, 0.11))})
    search = build.search(bracket=(None, 40.0), overload=Overload(40.0, 18.0, 0.1))
    summary = build.summary(*stages, search=search, repeats=[repeated], simulated=True)
    write_files(summary, tmp_path, ["json"])
    assert read_summary(tmp_path) == summary


def test_the_json_names_its_schema_and_keeps_absence_absent(build: Any) -> None:
    told = json.loads(to_json(build.summary(build.replaced(build.stage(), ttft=None))))
    assert told["schema"] == 1
    assert "ttft" not in told["stages"][0]["latency_seconds"]
    assert told["stages"][0]["latency_seconds"]["itl"]["p99.9"] == pytest.approx(0.036)


def test_the_json_has_no_number_that_json_does_not_know(build: Any) -> None:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} in the JSON")

    text = to_json(build.summary(environment={"a": math.nan, "b": math.inf}))
    assert json.loads(text, parse_constant=refuse)["environment"] == {"a": None, "b": None}


def test_units_and_paths_are_written_as_numbers_and_text(build: Any) -> None:
    told = json.loads(to_json(build.summary(profile={"drain": Duration(5), "dir": Path("a/b")})))
    assert told["profile"] == {"drain": 5, "dir": "a/b"}


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"[1]"])
def test_what_is_no_summary_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(LoadgenError, match=r"summary\.json: no summary of a run"):
        read_summary(tmp_path)


def test_a_directory_without_a_summary_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LoadgenError, match=r"summary\.json: No such file"):
        read_summary(tmp_path)


def test_a_summary_of_another_schema_is_refused(build: Any, tmp_path: Path) -> None:
    write_files(build.summary(schema=2), tmp_path, ["json"])
    with pytest.raises(LoadgenError, match="has schema 2, this version reads schema 1"):
        read_summary(tmp_path)


# --- csv --------------------------------------------------------------------------------------------------------------


def test_the_csv_has_a_row_for_each_stage_latency_and_percentile(build: Any) -> None:
    latencies = Latencies(ttft=build.latency(), response=build.latency(), failed={"timeout": build.latency()})
    stages = [build.stage("one", latency_seconds=latencies), build.stage("two", latency_seconds=latencies)]
    rows = cells(to_csv(build.summary(*stages)))
    percentiles = ("p50", "p90", "p95", "p99", "p99.9")
    assert [(row["stage"], row["metric"], row["percentile"]) for row in rows] == [
        (stage, metric, name)
        for stage in ("one", "two")
        for metric in ("ttft", "response", "failed:timeout")
        for name in percentiles
    ]


def test_a_csv_row_carries_the_value_and_what_is_known_of_it(build: Any) -> None:
    ttft = build.latency(0.05, count=5000, ci={"p99": (0.09, 0.12), "p99.9": (0.13, None)}, at_least={"p99.9": True})
    stage = build.stage("a, b", latency_seconds=Latencies(ttft=ttft))
    p99, p99_9 = cells(to_csv(build.summary(stage)))[-2:]
    assert p99 == {
        "stage": "a, b",
        "metric": "ttft",
        "percentile": "p99",
        "value_seconds": "0.1",
        "ci_low": "0.09",
        "ci_high": "0.12",
        "sufficient": "true",
        "at_least": "false",
        "count": "5000",
    }
    assert (p99_9["ci_low"], p99_9["ci_high"]) == ("0.13", "")
    assert (p99_9["sufficient"], p99_9["at_least"]) == ("false", "true")


def test_what_tells_the_stages_apart_has_columns_where_there_is_any(build: Any) -> None:
    latencies = Latencies(ttft=build.latency())
    length = "workload.output_tokens.value"
    stages = [
        build.stage("a", latency_seconds=latencies, settings={length: 64, "workload.source": "a, b"}, repeat=2),
        build.stage("b", latency_seconds=latencies, settings={length: [1, 2]}, purpose="low load"),
    ]
    rows = cells(to_csv(build.summary(*stages)))
    assert list(rows[0])[-4:] == ["repeat", length, "workload.source", "purpose"]
    assert list(rows[0].values())[-4:] == ["2", "64", "a, b", ""]
    assert list(rows[-1].values())[-4:] == ["", "[1,2]", "", "low load"]
    plain = cells(to_csv(build.summary(build.stage(latency_seconds=latencies))))
    assert list(plain[0])[-1] == "count"


def test_a_stage_without_latencies_has_no_csv_rows(build: Any) -> None:
    assert cells(to_csv(build.summary(build.silent_stage()))) == []


# --- files ------------------------------------------------------------------------------------------------------------


def test_all_formats_are_written_into_a_directory_that_is_made(build: Any, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "one"
    written = write_files(build.summary(), directory, ["html", "csv", "hlog", "json"])
    assert [path.name for path in written] == ["summary.json", "percentiles.csv", "report.html"]
    assert sorted(path.name for path in directory.iterdir()) == ["percentiles.csv", "report.html", "summary.json"]


def test_an_unknown_format_is_refused_before_anything_is_written(build: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'pdf'"):
        write_files(build.summary(), tmp_path / "run", ["json", "pdf"])
    assert not (tmp_path / "run").exists()


def test_a_report_is_written_over_an_earlier_one(build: Any, tmp_path: Path) -> None:
    write_files(build.summary(name="first"), tmp_path, ["json"])
    write_files(build.summary(name="second"), tmp_path, ["json"])
    assert read_summary(tmp_path).name == "second"


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_format_that_fails_costs_no_other(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(summary: Any) -> bytes:
        raise RuntimeError("no chart library")

    monkeypatch.setitem(files.FORMATS, "html", files.Format("report.html", fail))
    with pytest.raises(RuntimeError):
        write_files(build.summary(), tmp_path, ["html", "json", "csv"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["percentiles.csv", "summary.json"]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_a_report_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
