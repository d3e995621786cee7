from typing import Any

import pytest

from loadgen.report.points import Column, is_comparison, point_columns, promised_percentiles, setting_keys
from loadgen.summary.summary import Estimate, Latencies, Repeated, Stage, Throughput


def by_heading(columns: list[Column]) -> dict[str, list[str]]:
    return {column.heading: [str(cell.value) for cell in column.cells] for column in columns}


def test_what_no_stage_has_gets_no_column(build: Any) -> None:
    columns = by_heading(point_columns([build.point_stage(10.0), build.point_stage(20.0)]))
    assert not {"repeat", "purpose", "outcome", "why", "goodput /s", "attainment", "tpot p99"} & columns.keys()
    assert columns["#"] == ["1", "2"]
    assert columns["offered"] == ["10/s", "20/s"]
    assert columns["response p99"] == ["3.20 s [3.04, 3.36]"] * 2  # twice the median of 1.6 s, 5 % to both sides


def test_tpot_stands_in_where_there_are_no_gaps(build: Any) -> None:
    stage = build.stage(latency_seconds=Latencies(tpot=build.latency(0.013), response=build.latency(1.6)))
    columns = by_heading(point_columns([stage, stage]))
    assert "itl p99" not in columns
    assert columns["tpot p99"] == ["26 ms [24.7, 27.3]"] * 2


def test_each_point_of_a_search_has_its_outcome_and_its_reason(build: Any) -> None:
    columns = point_columns(build.search_stages(), build.search())
    told = by_heading(columns)
    assert told["offered"] == ["1 slot", "10/s", "40/s", "20/s"]
    assert told["outcome"] == ["measured", "pass", "fail", "pass"]
    assert told["why"][2] == "30 % more came than went"
    assert [cell.tone for column in columns if column.heading == "outcome" for cell in column.cells] == [
        "",
        "good",
        "bad",
        "good",
    ]


def test_a_stage_that_is_no_point_of_the_search_has_no_outcome(build: Any) -> None:
    told = by_heading(point_columns([*build.search_stages(), build.point_stage(30.0)], build.search()))
    assert told["outcome"][-1] == "-"


def test_good_requests_stand_with_their_intervals(build: Any) -> None:
    rates = Throughput(requests=20.0, output_tokens=1.0, prompt_tokens=1.0, goodput=18.0, goodput_ci=(17.0, 19.0))
    stage = build.stage(throughput=rates, attainment=Estimate(0.9, (0.85, 0.95)))
    told = by_heading(point_columns([stage]))
    assert told["goodput /s"] == ["18.0 [17.0, 19.0]"]
    assert told["attainment"] == ["90 % [85 %, 95 %]"]


def test_swept_keys_have_a_column_each_by_the_shortest_end_that_is_their_own(build: Any) -> None:
    keys = ("workload.output_tokens.value", "workload.prompt_tokens.value", "target.a.seed", "workload.seed")
    stage = build.stage(settings=dict.fromkeys(keys, 64))
    assert setting_keys([stage]) == dict(
        zip(keys, ("output_tokens", "prompt_tokens", "a.seed", "workload.seed"), strict=True)
    )
    assert by_heading(point_columns([stage, build.stage()]))["output_tokens"] == ["64", "-"]


@pytest.mark.parametrize(
    "fields",
    [{"settings": {"workload.seed": 1}}, {"repeat": 1}, {"purpose": "low load"}],
    ids=lambda fields: next(iter(fields)),
)
def test_stages_of_a_grid_a_search_or_of_repeats_are_there_to_be_compared(build: Any, fields: dict[str, Any]) -> None:
    assert is_comparison(build.summary(build.stage(**fields)))


def test_a_search_repeats_and_a_sweep_are_comparisons_and_one_load_is_none(build: Any) -> None:
    assert is_comparison(build.summary(search=build.search()))
    assert is_comparison(build.summary(repeats=[Repeated("a", [0], {})]))
    assert is_comparison(build.summary(profile={"load": {"kind": "sweep"}}))
    assert not is_comparison(build.summary())
    assert not is_comparison(build.summary(profile={}))


def test_errors_strike_the_eye_where_there_are_any(build: Any) -> None:
    stages: list[Stage] = [build.stage(), build.stage(books=build.books(90, {"timeout": 10}))]
    (errors,) = [column for column in point_columns(stages) if column.heading == "errors"]
    assert [(str(cell.value), cell.tone) for cell in errors.cells] == [("0 %", ""), ("10 %", "bad")]


def test_the_percentile_that_an_slo_is_about_has_a_column(build: Any) -> None:
    slo = {"ttft": {"p95": "250ms", "p99": "1s"}, "error_rate": 0.01, "request": {"ttft": "1s"}}
    summary = build.summary(*build.search_stages(), search=build.search(), profile={"slo": slo})
    assert promised_percentiles(summary) == [("ttft", "p95"), ("ttft", "p99")]
    headings = [one.heading for one in point_columns(summary.stages, summary.search, promised_percentiles(summary))]
    assert headings.count("ttft p95") == headings.count("ttft p99") == 1
