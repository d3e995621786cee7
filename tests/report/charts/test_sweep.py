"""The charts over several stages, as the traces, shapes and notes that plotly draws."""

import math
from typing import Any

import pytest
from plotly.graph_objects import Figure

from loadgen.report.charts.axis import axis_of
from loadgen.report.charts.marks import Limit, limits_of
from loadgen.report.charts.sweep import sweep_plots
from loadgen.summary.summary import Latencies, Stage, Stationary, Summary


def figures(summary: Summary) -> dict[str, Any]:
    return {plot.id.removeprefix("sweep-"): plot.figure for plot in sweep_plots(summary)}


def traces(figure: dict[str, Any]) -> dict[str, Any]:
    return {trace["name"]: trace for trace in figure["data"]}


def bent(build: Any, *responses: float) -> list[Stage]:
    """Stages at 10, 20, 30, ... requests per second with these response times in the median."""
    return [
        build.replaced(build.point_stage(10.0 * place), response=build.latency(response))
        for place, response in enumerate(responses, 1)
    ]


# --- what is along the axis -------------------------------------------------------------------------------------------


def test_rates_are_along_the_axis_where_they_differ(build: Any) -> None:
    axis = axis_of([build.point_stage(20.0), build.point_stage(5.0)])
    assert (axis.title, axis.is_rate) == ("offered requests/s", True)
    assert axis.x == [5.0, 20.0]


def test_a_closed_loop_among_rates_stands_at_the_rate_that_it_completed(build: Any) -> None:
    axis = axis_of(build.search_stages(), "rate")
    assert axis.x == [0.625, 10.0, 20.0, 40.0]
    assert "closed loop" in axis.note


def test_a_search_for_a_concurrency_is_drawn_against_slots(build: Any) -> None:
    stages = [build.stage(offered_rate=None, intended_concurrency=slots) for slots in (8, 4)]
    axis = axis_of(stages, "concurrency")
    assert (axis.title, axis.x) == ("slots of the closed loop", [4.0, 8.0])


def test_of_swept_keys_the_numeric_one_with_the_most_values_is_along_the_axis(build: Any) -> None:
    stages = [
        build.stage(
            settings={"workload.output_tokens.value": tokens, "workers.processes": workers, "target.kind": kind}
        )
        for tokens in (64, 128, 256)
        for workers in (1, 2)
        for kind in ("sim", "http")
    ]
    axis = axis_of(stages)
    assert axis.title == "output_tokens"
    assert [curve.label for curve in axis.curves] == [
        "processes 1, kind sim",
        "processes 1, kind http",
        "processes 2, kind sim",
        "processes 2, kind http",
    ]
    assert all(curve.x == [64.0, 128.0, 256.0] for curve in axis.curves)


def test_a_swept_rate_is_the_axis_and_no_combination_of_its_own(build: Any) -> None:
    axis = axis_of([build.point_stage(rate, settings={"load.rate": rate}) for rate in (1.0, 2.0, 3.0)])
    assert [(curve.label, curve.x) for curve in axis.curves] == [("", [1.0, 2.0, 3.0])]


def test_stages_that_differ_in_nothing_numeric_are_numbered(build: Any) -> None:
    axis = axis_of([build.stage(settings={"target.kind": kind}) for kind in ("sim", "http")])
    assert (axis.title, axis.x) == ("stage", [1.0, 2.0])


def test_true_and_false_are_no_numbers(build: Any) -> None:
    assert axis_of([build.stage(settings={"target.stream": value}) for value in (True, False)]).title == "stage"


# --- the lines --------------------------------------------------------------------------------------------------------


def test_a_grid_has_a_line_for_each_combination_of_the_other_keys(build: Any) -> None:
    stages = [
        build.point_stage(rate, settings={"workload.output_tokens.value": tokens})
        for tokens in (64, 128)
        for rate in (1.0, 2.0, 3.0)
    ]
    drawn = figures(build.summary(*stages))
    assert drawn.keys() == {"latency-ttft", "latency-itl", "latency-response", "throughput", "tokens", "concurrency"}
    lines = traces(drawn["latency-ttft"])
    assert list(lines) == ["ttft p99, output_tokens 64", "ttft p99, output_tokens 128"]
    assert len({line["line"]["color"] for line in lines.values()}) == 2
    assert list(traces(drawn["throughput"])) == [
        "offered",
        "completed/s, output_tokens 64",
        "completed/s, output_tokens 128",
    ]


def test_repeats_are_points_and_the_line_goes_through_their_mean(build: Any) -> None:
    stages = [
        build.replaced(build.point_stage(rate, repeat=repeat), ttft=build.latency(0.05 * repeat))
        for repeat in (1, 2)
        for rate in (5.0, 10.0)
    ]
    points, line = [t for t in figures(build.summary(*stages))["latency"]["data"] if t["name"] == "ttft p99"]
    assert (points["mode"], points["x"]) == ("markers", [5.0, 5.0, 10.0, 10.0])
    assert (line["mode"], line["x"]) == ("lines", [5.0, 10.0])
    assert line["y"] == pytest.approx([0.15, 0.15])  # p99 is twice the median: .1 and .2


def test_throughput_stands_beside_the_diagonal(build: Any) -> None:
    drawn = traces(figures(build.summary(*bent(build, 1.0, 1.0, 1.0)))["throughput"])
    assert drawn["offered"]["x"] == drawn["offered"]["y"] == [10.0, 20.0, 30.0]
    assert drawn["completed/s"]["y"] == [10.0, 20.0, 30.0]


def test_an_interval_that_is_open_above_is_a_triangle_and_hollow_where_unstable(build: Any) -> None:
    ttft = build.latency(0.05, ci={"p99": (0.09, None)})
    stages = [
        build.replaced(build.point_stage(5.0), ttft=ttft),
        build.replaced(build.point_stage(10.0, stationary=Stationary("unstable", "it grew")), ttft=ttft),
    ]
    drawn = traces(figures(build.summary(*stages))["latency"])["ttft p99"]
    assert drawn["marker"]["symbol"] == ["triangle-up", "triangle-up-open"]
    assert drawn["error_y"]["array"] == [0.0, 0.0]


def test_rates_over_a_wide_range_have_a_logarithmic_axis(build: Any) -> None:
    def kind(*rates: float) -> str | None:
        summary = build.summary(*(build.point_stage(rate) for rate in rates))
        kind = figures(summary)["throughput"]["layout"]["xaxis"].get("type")
        return None if kind is None else str(kind)

    assert kind(0.05, 2.0) == "log"  # 40 times
    assert kind(1.0, 20.0) is None


def test_stages_without_latencies_have_no_latency_chart(build: Any) -> None:
    stages = [build.point_stage(rate, latency_seconds=Latencies()) for rate in (1.0, 2.0)]
    assert figures(build.summary(*stages)).keys() == {"throughput", "tokens", "concurrency"}


def test_one_stage_and_stages_without_a_place_have_no_charts(build: Any) -> None:
    assert sweep_plots(build.summary(build.stage())) == []
    nowhere = build.stage(offered_rate=None)
    assert sweep_plots(build.summary(nowhere, nowhere, search=build.search())) == []


# --- what is marked ---------------------------------------------------------------------------------------------------


def test_the_limit_of_an_slo_is_a_line_in_the_chart_of_its_latency(build: Any) -> None:
    slo = build.slo(True, *(build.check(stage=f"poisson {rate}/s") for rate in (10, 20)))
    summary = build.summary(*bent(build, 1.0, 1.0), verdict=build.verdict(slo=slo))
    line = traces(figures(summary)["latency"])["SLO ttft p99 ≤ 500 ms"]
    assert (line["x"], line["y"]) == ([10.0, 20.0], [0.5, 0.5])


def test_limits_come_from_the_profile_where_nothing_was_checked(build: Any) -> None:
    slo = {"ttft": {"p99": "500ms"}, "error_rate": 0.01, "request": {"ttft": "1s"}, "itl": {"p99": 7}}
    assert limits_of(build.summary(profile={"slo": slo})) == [Limit("ttft", "p99", 0.5)]
    assert limits_of(build.summary(profile={"slo": "none"})) == []


def test_a_speed_is_no_limit_on_a_latency(build: Any) -> None:
    check = build.check(metric="tokens_per_second_per_user", limit=20.0, unit="tokens/s", at_least=True)
    assert limits_of(build.summary(verdict=build.verdict(slo=build.slo(True, check)))) == []


def test_the_answer_of_a_search_is_a_line_and_its_bracket_is_shaded(build: Any) -> None:
    summary = build.summary(*build.search_stages(), search=build.search())
    layout = figures(summary)["throughput"]["layout"]
    assert [(shape["type"], shape["x0"], shape["x1"]) for shape in layout["shapes"]] == [
        ("rect", 20.0, 40.0),
        ("line", 20.0, 20.0),
    ]
    (note,) = layout["annotations"]
    assert note["text"] == "saturation 20/s"
    assert note["x"] == pytest.approx(math.log10(20))  # .625 to 40 is a logarithmic axis


@pytest.mark.parametrize(
    ("bracket", "ends"), [((None, 30.0), (0.0, 30.0)), ((20.0, None), (20.0, 40.0)), ((None, None), None)]
)
def test_an_open_end_of_the_bracket_is_shaded_to_the_end_of_the_axis(
    build: Any, bracket: tuple[float | None, float | None], ends: tuple[float, float] | None
) -> None:
    stages = bent(build, 1.0, 1.0, 1.0, 1.0)  # up to 40/s
    shapes = figures(build.summary(*stages, search=build.search(bracket=bracket)))["tokens"]["layout"]["shapes"]
    shaded = [(shape["x0"], shape["x1"]) for shape in shapes if shape["type"] == "rect"]
    assert shaded == ([] if ends is None else [ends])


def test_the_knee_of_a_sweep_is_marked_in_its_latency_chart_alone(build: Any) -> None:
    # Flat up to 30/s, then steep: the corner.
    drawn = figures(build.summary(*bent(build, 1.0, 1.0, 1.0, 11.0, 21.0)))
    assert [note["text"] for note in drawn["latency"]["layout"]["annotations"]] == ["knee 30.0"]
    assert drawn["throughput"]["layout"]["annotations"] == []


def test_a_curve_without_a_bend_and_a_grid_have_no_knee(build: Any) -> None:
    straight = bent(build, 1.0, 2.0, 3.0, 4.0, 5.0)
    assert figures(build.summary(*straight))["latency"]["layout"]["annotations"] == []
    grid = [
        build.replaced(
            build.point_stage(10.0 * place, settings={"workload.seed": seed}), response=build.latency(response)
        )
        for seed in (1, 2)
        for place, response in enumerate((1.0, 1.0, 1.0, 11.0, 21.0), 1)
    ]
    assert figures(build.summary(*grid))["latency-response"]["layout"]["annotations"] == []


def test_the_knee_of_a_search_is_the_one_that_it_found(build: Any) -> None:
    stages = bent(build, 1.0, 1.0, 1.0, 11.0, 21.0)
    drawn = figures(build.summary(*stages, search=build.search(knee=25.0, saturation=None, bracket=(None, None))))
    assert [note["text"] for note in drawn["latency"]["layout"]["annotations"]] == ["knee 25.0"]


def test_a_latency_that_hardly_varies_still_has_ticks(build: Any) -> None:
    latencies = Latencies(itl=build.latency(0.012))
    stages = [build.point_stage(rate, latency_seconds=latencies) for rate in (1.0, 2.0)]
    figure = figures(build.summary(*stages))["latency"]
    assert "tickvals" not in figure["layout"]["yaxis"]
    Figure(figure)  # raises on a property that plotly does not have
