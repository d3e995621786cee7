"""Profiles whose requests come from a file: where it is looked for, what is told of it beforehand, and whole runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadgen.cli.check import render_expectation
from loadgen.clock import MonotonicClock
from loadgen.profile import Profile
from loadgen.profile.file import load_profile, profile_toml
from loadgen.profile.overrides import Overrides
from loadgen.report.summary_json import read_summary
from loadgen.runner.expectation import DatasetExpectation, expected
from loadgen.runner.requirements import check_environment
from loadgen.summary.summary import Accuracy
from loadgen.targets.kinds import checked_target
from tests.end_to_end import run, sets

LABELS = ["good", "bad"]
LOAD = '[load]\nkind = "constant"\nrate = 20\nrequests = 30\n'


def written(folder: Path, *rows: Any, path: str = "rows.jsonl", more: str = "", kind: str = "choice") -> Path:
    """A profile of a dataset of these rows, which lie beside it."""
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    labels = f"labels = {json.dumps(LABELS)}\n" if kind == "choice" else ""
    profile = folder / "profile.toml"
    profile.write_text(
        f'{LOAD}[workload]\nkind = "{kind}"\nsource = "dataset"\n{labels}{more}\n[workload.dataset]\npath = "{path}"\n',
        encoding="utf-8",
    )
    return profile


def path_in(profile: Profile) -> str | None:
    return None if profile.workload.dataset is None else profile.workload.dataset.path


# --- where the file is looked for -------------------------------------------------------------------------------------


def test_a_path_in_a_profile_is_beside_it_and_one_of_the_command_line_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    profile = written(tmp_path, {"prompt": "a"})
    assert path_in(load_profile(str(profile))) == str(tmp_path / "rows.jsonl")
    assert path_in(load_profile("../profile.toml")) == str(tmp_path / "here" / ".." / "rows.jsonl")
    given = Overrides(sets=("workload.dataset.path=rows.jsonl",))
    assert path_in(load_profile(str(profile), given)) == str(tmp_path / "here" / "rows.jsonl")


def test_the_profile_of_a_run_finds_the_file_from_anywhere(tmp_path: Path) -> None:
    first = load_profile(str(written(tmp_path, {"prompt": "a"})))
    (tmp_path / "run").mkdir()
    again = tmp_path / "run" / "profile.toml"
    again.write_text(profile_toml(first))
    assert load_profile(str(again)) == first


def test_the_ready_profile_finds_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    profile = load_profile("classify")
    assert check_environment(profile) == []
    told = expected(profile)
    assert told.dataset is not None
    assert (told.dataset.rows, told.requests) == (200, 200)  # each row once


# --- what is told beforehand ------------------------------------------------------------------------------------------


def test_what_is_wrong_with_the_file_is_told_before_a_run(tmp_path: Path) -> None:
    profile = load_profile(str(written(tmp_path, {"prompt": "a"}, {"prompt": "b", "expected": "fine"})))
    rows = tmp_path / "rows.jsonl"
    assert check_environment(profile) == [f'workload.dataset: {rows}, line 2: expected = "fine": none of the labels']
    rows.unlink()
    assert check_environment(profile) == [f"workload.dataset: {rows}: cannot be read: No such file or directory"]


def test_an_engine_takes_labels_of_the_profile_and_of_rows(tmp_path: Path) -> None:
    engine = Overrides(sets=('target={kind="engine",model="m"}',))
    profile = load_profile(str(written(tmp_path, {"prompt": "a"}, {"prompt": "b", "labels": ["x", "y"]})), engine)
    assert check_environment(profile) == []


def test_the_rows_tell_the_mean_output_and_not_the_prompts(tmp_path: Path) -> None:
    rows = ({"prompt": "a", "output_tokens": 100}, {"prompt": "b"})
    told = expected(load_profile(str(written(tmp_path, *rows, kind="chat", more="output_tokens = 50"))))
    # (100 + 50) / 2
    assert (told.prompt_tokens, told.total_prompt_tokens, told.output_tokens) == (None, None, 75)
    assert told.dataset == DatasetExpectation(path=str(tmp_path / "rows.jsonl"), rows=2, order="sequential")
    console = Console(width=400, color_system=None)
    with console.capture() as capture:
        console.print(render_expectation(told))
    # 30 requests of 2 rows
    assert f"the 2 rows of {tmp_path / 'rows.jsonl'}, in their order; each comes about 15 times" in capture.get()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_trial_asks_for_a_short_answer_however_long_the_rows_ask_for(
    tmp_path: Path, anyio_backend: str
) -> None:
    # 8,000 tokens take the simulator about 50 s, five times the check's limit.
    path = str(written(tmp_path, {"prompt": "a", "output_tokens": 8000}, kind="chat"))
    async with checked_target(load_profile(path), MonotonicClock()) as checked:
        assert checked.info.warnings == ()


# --- whole runs -------------------------------------------------------------------------------------------------------


def test_a_run_says_how_often_the_expected_label_was_answered_and_that_rows_came_again(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    rows = [{"prompt": f"text {number}", "expected": LABELS[number % 2]} for number in range(10)]
    rows.append({"prompt": "no right answer is known"})
    rows.append({"prompt": evil, "labels": [evil, f"not {evil}"], "expected": evil})
    done = run(tmp_path / "run", str(written(tmp_path, *rows)), *sets(output__records=True, workers__processes=2))
    assert done.exit_code in (0, 4), done.stderr  # 4: late, on a machine that these tests keep busy
    (stage,) = done.summary.stages
    assert stage.books.completed == stage.books.intended == 30
    # 12 rows twice, and the first 6 a third time: of these 30 all but row 10, twice, say what is right.
    lines = [json.loads(line) for line in (done.folder / "requests.jsonl").read_text().splitlines()]
    judged = [line for line in lines if "expected" in line]
    assert len(judged) == 28
    right = sum(line["label"] == line["expected"] for line in judged)
    assert stage.accuracy == Accuracy(right / 28, right, 28)
    assert stage.rows_again == 30 - 12
    assert {line["label"] for line in lines if line["index"] % 12 == 11} <= {evil, f"not {evil}"}
    assert "answers are the expected label" in done.stdout
    assert any("18 requests said what earlier ones" in warning for warning in done.summary.verdict.warnings)
    assert evil not in (done.folder / "report.html").read_text()
    assert done.summary.profile["workload"]["dataset"]["path"] == str(tmp_path / "rows.jsonl")
    assert read_summary(done.folder) == done.summary


@pytest.mark.parametrize("kind", ["chat", "completion", "responses", "messages", "tokenize", "embed"])
def test_every_kind_of_text_can_come_from_a_file(tmp_path: Path, kind: str) -> None:
    profile = written(tmp_path, *({"prompt": "word " * n, "output_tokens": 1 + n} for n in range(1, 4)), kind=kind)
    done = run(tmp_path / "run", str(profile), *sets(load__requests=9, target__engine__step_base_seconds=0.001))
    assert done.exit_code in (0, 4), done.stderr
    (stage,) = done.summary.stages
    assert stage.books.completed == stage.books.intended == 9
    assert stage.tokens.prompt is not None
    assert stage.tokens.prompt_asked is None
    assert not any("off" in warning for warning in done.summary.verdict.warnings)
    if kind in ("chat", "completion", "responses"):
        assert stage.tokens.output == stage.tokens.output_asked


def test_a_bad_row_ends_the_command_with_2_and_one_line_before_anything_starts(tmp_path: Path) -> None:
    profile = written(tmp_path, {"prompt": "a"}, {"pompt": "b"})
    done = run(tmp_path / "run", str(profile))
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert f"{tmp_path / 'rows.jsonl'}, line 2: pompt" in done.stderr
    assert not done.folder.exists()


def test_a_check_reads_the_file_too(tmp_path: Path) -> None:
    profile = written(tmp_path, {"prompt": ""})
    command = [sys.executable, "-m", "loadgen.cli.commands", "check", str(profile)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    words = f"{profile}: workload.dataset: {tmp_path / 'rows.jsonl'}, line 1: prompt: empty\n"
    assert (checked.returncode, checked.stdout, checked.stderr) == (2, "", words)
