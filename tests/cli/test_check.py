from typing import Any

from rich.console import Console

from loadgen.cli.check import render_expectation
from loadgen.profile import Profile
from loadgen.profile.decoding import decode
from loadgen.runner.expectation import expected

LOAD = {"kind": "poisson", "rate": 4, "duration": "20s"}


def shown(**tables: dict[str, Any]) -> list[str]:
    console = Console(width=300, color_system=None)
    with console.capture() as capture:
        console.print(render_expectation(expected(decode(Profile, {"load": LOAD} | tables))))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_plain_run_ends_with_its_totals() -> None:
    # 4/s for 20 s, of 256 prompt and 64 output tokens: the defaults.
    assert shown()[-1] == (
        "in all 80 requests in 20 s (drains add at most 60 s); "
        "a request has 256 prompt and 64 output tokens on average, all of them 20,480 and 5,120"
    )


def test_what_a_request_has_on_top_of_its_tokens_is_shown() -> None:
    workload = {"system": "Be brief.", "images": {"width": 336, "height": 224}, "audio": {"count": 2, "seconds": 2.5}}
    assert shown(workload=workload)[-1] == (
        "on top of these tokens a request has a system message of 9 characters and 1 image of 336 x 224 pixels and "
        "2 sounds of 2.5 s at 16,000 Hz"
    )


def test_the_engines_of_a_run_are_shown_with_their_arguments() -> None:
    target = {
        "kind": "engine",
        "model": "[m]",
        "engine_args": {"dtype": "float32", "limit_mm_per_prompt": {"image": 1}},
    }
    assert shown(target=target, workers={"processes": 2})[-1] == (
        'each worker process builds a vLLM engine of [m] with dtype = "float32", limit_mm_per_prompt = {"image": 1}; '
        "there are 2 workers"
    )


def test_one_engine_with_vllms_own_defaults_is_shown() -> None:
    line = shown(target={"kind": "engine", "model": "m"})[-1]
    assert line == "each worker process builds a vLLM engine of m; there is one worker"
