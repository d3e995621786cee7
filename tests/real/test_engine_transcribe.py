"""Transcriptions of real engines in process: what a sound becomes is what vLLM's own server makes of it."""

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from conftest import ENGINE_ARGS

from loadgen.clock import MonotonicClock
from loadgen.errors import LoadgenError, TargetError
from loadgen.measure.records import Record
from loadgen.profile import Audio, EngineTarget, Workload
from loadgen.targets.engine.opening import open_engine
from loadgen.workload.sources import make_workload
from loadgen.workload.tokens import estimate
from tests.end_to_end import run, sets

pytestmark = pytest.mark.timeout(300)

# 0: fine; 4: the generator was late, which it may well be where an engine and its load share the cores of a machine.
RAN = (0, 4)
WHISPER = {**ENGINE_ARGS, "max_model_len": 448}
"""Whisper writes no more."""
TOKENS = 12
SECONDS = 2.0


def ran(folder: Path, model: Path, **keys: Any) -> tuple[Any, list[Record]]:
    arguments = [
        f"--set=target.engine_args.{name}={msgspec.json.encode(value).decode()}" for name, value in WHISPER.items()
    ]
    own = {"workload__kind": "transcribe", "workload__audio__seconds": SECONDS, "output__texts": True} | keys
    options = ["--set=target.kind=engine", f"--set=target.model={model}", "--rate", "4", "--duration", "5s"]
    done = run(folder, "constant", *options, *arguments, *sets(load__warmup="0s", **own), timeout=240)
    assert done.exit_code in RAN, done.stdout + done.stderr
    (stage,) = done.summary.stages
    lines = (folder / "requests.jsonl").read_bytes().splitlines()
    return stage, [msgspec.json.decode(line, type=Record) for line in lines]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_run_of_transcriptions_has_a_real_time_factor_and_tokens(tiny_transcriber, tmp_path, stream):
    body = {"workload__body__language": "en", "workload__body__max_completion_tokens": TOKENS}
    stage, records = ran(tmp_path / "run", tiny_transcriber, target__stream=stream, **body)
    assert stage.books.intended == stage.books.completed == len(records)
    assert stage.items.real_time_factor == pytest.approx(stage.latency_seconds.service.mean / SECONDS)
    assert (stage.latency_seconds.ttft is not None) == stream
    # The tiny model speaks on until it is stopped. Its prompt says start, language, task, and that no times are wanted.
    assert {(record.output_tokens, record.finish_reason) for record in records} == {(TOKENS, "length")}
    assert {record.prompt_tokens for record in records} == {4}
    assert all(record.text for record in records)


def opening(model: Path, **workload: Any) -> Any:
    target = EngineTarget(model=str(model), engine_args=WHISPER)
    asked = Workload(kind="transcribe", **{"audio": Audio(seconds=1)} | workload)

    async def open_it() -> None:
        trial = make_workload(asked, estimate(), 0).request(0)
        async with open_engine(target, asked, (asked, trial), None, MonotonicClock()):
            raise AssertionError("opened")

    return open_it


def test_a_model_that_is_not_told_the_language_says_what_to_set(tiny_transcriber):
    with pytest.raises(TargetError, match=r"Language must be specified.*see workload\.body\.language"):
        anyio.run(opening(tiny_transcriber))


def test_a_language_that_is_none_is_refused(tiny_transcriber):
    with pytest.raises(LoadgenError, match=r"workload\.body\.language: .*klingon"):
        anyio.run(opening(tiny_transcriber, body={"language": "klingon"}))


def test_a_model_of_text_transcribes_nothing(tiny_model):
    with pytest.raises(TargetError, match='kind = "transcribe" needs an engine that can transcribe; the model'):
        anyio.run(opening(tiny_model, body={"language": "en"}))
