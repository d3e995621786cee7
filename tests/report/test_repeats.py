from typing import Any

from loadgen.report.repeats import MAIN, repeat_rows
from loadgen.summary.summary import AcrossRepeats, Repeated, Stage, Throughput


def repeated(**values: AcrossRepeats) -> Repeated:
    return Repeated("poisson 20/s", [0, 1], {name.replace("__", "."): value for name, value in values.items()})


def test_a_mean_stands_with_the_interval_across_and_the_hull_of_those_within(build: Any) -> None:
    stages = [
        build.replaced(build.stage(), ttft=build.latency(0.05, ci={"p99": (0.09, 0.11)})),
        build.replaced(build.stage(), ttft=build.latency(0.05, ci={"p99": (0.10, 0.13)})),
    ]
    (row,) = repeat_rows([repeated(ttft__p99=AcrossRepeats(2, 0.105, (0.08, 0.13)))], stages)
    assert (row.condition, row.count, row.quantity) == ("poisson 20/s", 2, "ttft p99")
    assert str(row.across) == "105 ms [80 ms, 130 ms]"
    assert row.within == "[90 ms, 130 ms]"


def test_the_hull_is_open_where_one_repeat_is(build: Any) -> None:
    stages = [
        build.replaced(build.stage(), ttft=build.latency(0.05, ci={"p99": (0.09, None)})),
        build.replaced(build.stage(), ttft=build.latency(0.05, ci={"p99": (0.10, 0.13)})),
    ]
    (row,) = repeat_rows([repeated(ttft__p99=AcrossRepeats(2, 0.105, (0.08, 0.13)))], stages)
    assert row.within == "[90 ms, ?]"


def test_what_has_no_interval_within_shows_none(build: Any) -> None:
    values = {
        "throughput__requests": AcrossRepeats(2, 19.8, (19.0, 20.6)),
        "ttft__mean": AcrossRepeats(2, 0.05, None),
        "error_rate": AcrossRepeats(2, 0.015, (0.0, 0.03)),
    }
    rows = repeat_rows([repeated(**values)], [build.stage(), build.stage()])
    assert [(row.quantity, str(row.across), row.within) for row in rows] == [
        ("completed", "19.8/s [19.0/s, 20.6/s]", ""),
        ("ttft mean", "50 ms", ""),
        ("error_rate", "1.5 % [0 %, 3.0 %]", ""),
    ]


def test_goodput_has_an_interval_within_each_repeat(build: Any) -> None:
    def stage(*ci: float) -> Stage:
        return build.stage(throughput=Throughput(20.0, 1.0, 1.0, goodput=18.0, goodput_ci=ci))

    rows = repeat_rows(
        [repeated(throughput__goodput=AcrossRepeats(2, 18.0, (17.5, 18.5)))], [stage(17.0, 18.5), stage(17.4, 19.0)]
    )
    assert [row.within for row in rows] == ["[17.0/s, 19.0/s]"]


def test_an_interval_across_a_few_repeats_may_reach_below_zero(build: Any) -> None:
    (row,) = repeat_rows([repeated(ttft__p50=AcrossRepeats(2, 0.05, (-0.02, 0.12)))], [build.stage(), build.stage()])
    assert row.across.interval == "[-20 ms, 120 ms]"


def test_where_there_is_little_room_the_main_quantities_come_in_their_order(build: Any) -> None:
    one = AcrossRepeats(2, 1.0, (0.9, 1.1))
    rows = repeat_rows(
        [repeated(ttft__p50=one, ttft__p99=one, throughput__requests=one)], [build.stage(), build.stage()], MAIN
    )
    assert [row.quantity for row in rows] == ["completed", "ttft p99"]
