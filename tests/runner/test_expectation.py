from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from loadgen.cli.check import render_expectation
from loadgen.load.arrivals import arrivals
from loadgen.profile import Audio, Constant, Images, Profile, Saturate, SweepAxis
from loadgen.profile.decoding import decode
from loadgen.runner.expectation import EnginesExpectation, Expectation, expected
from loadgen.units import NS_PER_SECOND, Duration, Rate

OFFLINE = {"kind": "offline", "requests": 1}
ENGINE = {"kind": "engine", "model": "m", "engine_args": {"dtype": "float32"}}


def of(load: dict[str, Any], **workload: Any) -> Expectation:
    return expected(decode(Profile, {"load": load, "workload": workload}))


@pytest.mark.parametrize(
    ("load", "requests", "seconds"),
    [
        ({"kind": "constant", "rate": 10, "duration": "2s"}, 20, 2),
        ({"kind": "constant", "rate": 10, "duration": "2050ms"}, 21, 2.05),  # at 0, 0.1 .. 2.0
        ({"kind": "constant", "rate": 0.1, "duration": "30s"}, 3, 30),  # 0.1 x 30 is a little above 3 as floats
        ({"kind": "constant", "rate": 10, "requests": 5}, 5, 0.5),
        ({"kind": "poisson", "rate": 10, "duration": "2s"}, 20, 2),
        ({"kind": "poisson", "rate": 10, "requests": 50}, 50, 5),
        ({"kind": "poisson", "rate": 10, "requests": 50, "duration": "2s"}, 20, 2),
        ({"kind": "poisson", "rate": 10, "requests": 5, "duration": "2s"}, 5, 0.5),
        ({"kind": "gamma", "rate": 10, "duration": "2s", "burstiness": 0.5}, 20, 2),
        ({"kind": "ramp", "start_rate": 0, "end_rate": 10, "duration": "10s"}, 50, 10),
        # t^2/2 = 12.5 at t = 5
        ({"kind": "ramp", "start_rate": 0, "end_rate": 10, "duration": "10s", "requests": 13}, 13, 26**0.5),
        ({"kind": "ramp", "start_rate": 10, "end_rate": 0, "duration": "10s"}, 50, 10),
        ({"kind": "ramp", "start_rate": 5, "end_rate": 5, "duration": "10s", "requests": 25}, 25, 5),
        ({"kind": "concurrency", "concurrency": 4, "duration": "2s"}, None, 2),
        ({"kind": "concurrency", "concurrency": 4, "requests": 9}, 9, None),
        ({"kind": "concurrency", "concurrency": 4, "requests": 9, "duration": "2s"}, 9, 2),
        ({"kind": "offline", "requests": 9}, 9, 0),
    ],
)
def test_a_stage_tells_its_requests_and_its_time(
    load: dict[str, Any], requests: float | None, seconds: float | None
) -> None:
    (stage,) = of(load).stages
    assert stage.kind == load["kind"]
    assert stage.requests == (None if requests is None else pytest.approx(requests))
    assert stage.seconds == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    "load",
    [
        {"kind": "constant", "rate": 333, "duration": "10s"},
        {"kind": "poisson", "rate": 1000, "duration": "10s"},
        {"kind": "gamma", "rate": 1000, "burstiness": 0.5, "duration": "10s"},
        {"kind": "ramp", "start_rate": 0, "end_rate": 2000, "duration": "10s"},
    ],
)
def test_what_is_expected_is_what_the_arrivals_give(load: dict[str, Any]) -> None:
    profile = decode(Profile, {"load": load})
    came = sum(len(batch) for batch in arrivals(profile.load, np.random.default_rng(1)))
    # 10,000 gaps of at most the standard deviation sqrt(2) of their mean: four standard errors are 5.7 %.
    assert expected(profile).requests == pytest.approx(came, rel=0.057)


def test_a_run_sums_its_stages() -> None:
    run = of({"kind": "sweep", "rates": [10, 20], "duration": "5s"})
    assert [stage.name for stage in run.stages] == ["poisson 10/s", "poisson 20/s"]
    assert (run.requests, run.seconds) == (150, 10)


def test_a_sum_with_an_unknown_is_unknown() -> None:
    run = of({"kind": "sweep", "concurrency": [1, 2], "duration": "5s"})
    assert (run.requests, run.seconds, run.total_prompt_tokens, run.total_output_tokens) == (None, 10, None, None)


def test_drains_between_stages_add_up() -> None:
    assert of({"kind": "sweep", "rates": [10, 20], "duration": "5s", "drain": "7s"}).drain_seconds == 14


def test_a_step_drains_while_the_next_ones_run() -> None:
    step = {"kind": "poisson", "rate": 10, "duration": "10s"}
    late = {"kind": "steps", "steps": [step | {"drain": "60s"}, step | {"drain": "5s"}]}
    early = {"kind": "steps", "steps": [step | {"drain": "12s"}, step | {"drain": "5s"}]}
    assert of(late).drain_seconds == 50  # the first step's 60 s begin 10 s before the last arrival
    assert of(early).drain_seconds == 5


@pytest.mark.parametrize(
    ("workload", "prompt", "output"),
    [
        ({"kind": "choice", "labels": ["a", "b"]}, 10, None),
        ({"kind": "score", "prompt_format": "tokens"}, 10 + 4, 1),  # one token without which no server answers
        ({"kind": "tokenize"}, 10, 0),
        ({"kind": "embed", "inputs": 3}, 3 * 10, 0),
        ({"kind": "rerank", "inputs": 3}, (1 + 3) * 10, 0),
        ({"kind": "responses"}, 10, 4),
        ({"kind": "messages"}, 10, None),  # no more than 4
        ({"kind": "transcribe", "audio": {}}, 0, None),
        ({"images": {}, "prompt_tokens": "none"}, 0, 4),
    ],
)
def test_a_request_has_the_tokens_of_its_kind(workload: dict[str, Any], prompt: float, output: float | None) -> None:
    run = of(OFFLINE, **{"prompt_tokens": 10, "output_tokens": 4} | workload)
    assert (run.prompt_tokens, run.output_tokens) == (prompt, output)


def test_tokens_are_the_mean_lengths_times_the_requests() -> None:
    prompt = {"dist": "uniform", "min": 10, "max": 20}
    run = of({"kind": "offline", "requests": 100}, prompt_tokens=prompt, output_tokens=32)
    assert (run.prompt_tokens, run.output_tokens) == (15, 32)
    assert (run.total_prompt_tokens, run.total_output_tokens) == (1500, 3200)


def test_clamped_lengths_have_the_mean_of_what_is_sent() -> None:
    prompt = {"dist": "normal", "mean": 100, "sd": 50, "max": 100}
    # Half are 100; the others lose |z| sd on average, 50 sqrt(2/pi)/2 = 19.9 over all, less what clamping at 1 gives.
    assert of({"kind": "offline", "requests": 1}, prompt_tokens=prompt).prompt_tokens == pytest.approx(80.1, abs=0.5)


def test_output_of_unknown_length_is_unknown() -> None:
    run = of({"kind": "offline", "requests": 1}, output_tokens="none")
    assert (run.output_tokens, run.total_output_tokens) == (None, None)


def test_what_comes_on_top_of_the_prompt_is_told() -> None:
    run = of(OFFLINE, system="Be brief.", images={"count": 2}, audio={"seconds": 3})
    assert (run.system, run.images, run.audio) == ("Be brief.", Images(count=2), Audio(seconds=3.0))


def test_without_any_of_it_nothing_is_on_top() -> None:
    run = of(OFFLINE)
    assert (run.system, run.images, run.audio, run.engines) == (None, None, None, None)


@pytest.mark.parametrize(
    ("workers", "load", "count"),
    [
        ({}, OFFLINE, 1),  # "auto" builds one
        ({"processes": 3}, OFFLINE, 3),
        ({"processes": 3, "max_inflight": 2}, OFFLINE, 2),
        (
            {"processes": 3},
            {"kind": "sweep", "concurrency": [8, 2], "requests": 9},
            3,
        ),  # the stage of two slots leaves one idle
    ],
)
def test_there_are_as_many_engines_as_workers(workers: dict[str, Any], load: dict[str, Any], count: int) -> None:
    profile = decode(Profile, {"load": load, "target": ENGINE, "workers": workers})
    assert expected(profile).engines == EnginesExpectation(count=count, model="m", args={"dtype": "float32"})


def test_of_a_grid_over_lengths_the_mean_is_over_all_of_its_requests():
    load = Constant(rate=Rate(10), duration=Duration(NS_PER_SECOND))
    axes = (SweepAxis(key="workload.output_tokens", values=(10, 40)), SweepAxis(key="load.rate", values=(10, 20)))
    # 10 and 20 requests of each length: half of 60 have 10 tokens, half 40.
    grid = expected(Profile(load=load, sweep=axes))
    assert (grid.requests, grid.output_tokens, grid.total_output_tokens) == (60, 25, 1500)


def test_of_a_search_it_is_told_what_it_looks_for_and_no_table_without_rows():
    console = Console(width=100, file=StringIO())
    console.print(render_expectation(expected(Profile(load=Saturate()))))
    lines = console.file.getvalue().splitlines()
    assert lines[0].startswith("a search for the highest rate")
    assert not any("?" in line for line in lines)
