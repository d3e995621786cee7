"""Whole runs of the kinds of workload beyond chats, by their ready profiles against the embedded simulator."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.report.summary_json import read_summary
from loadgen.summary.summary import Stage
from tests.end_to_end import Ran, run, sets, simulated_server

RATE, SECONDS = 10, 3


def ran(folder: Path, kind: str, **keys: object) -> Ran:
    """The ready profile of this kind, shortened to 30 requests at equal gaps, with a line for each."""
    own = sets(**{"load__kind": "constant", "load__warmup": "0s", "output__records": True} | keys)
    return run(folder / "run", kind, "--rate", str(RATE), "--duration", f"{SECONDS}s", *own)


def stage_of(done: Ran) -> Stage:
    """The one stage of a run that ended well, or was late on a machine that these tests keep busy."""
    reasons = done.summary.verdict.reasons
    assert done.exit_code in (0, 1, 4), done.stdout + done.stderr
    assert all(reason.startswith(("Lateness p99", "Event loop lag p99")) for reason in reasons), reasons
    (stage,) = done.summary.stages
    assert stage.books.completed == stage.books.intended == RATE * SECONDS
    return stage


@pytest.mark.parametrize("kind", ["choice", "score", "tokenize", "embed"])
def test_a_run_of_a_kind_without_a_stream_measures_its_service_and_no_tokens_in_time(tmp_path: Path, kind: str) -> None:
    done = ran(tmp_path, kind)
    stage = stage_of(done)
    assert stage.latency_seconds.service is not None
    assert not {"ttft", "service_ttft", "ttft_content", "itl", "tpot"} & stage.latency_seconds.named().keys()
    assert stage.throughput.prompt_tokens > 0
    assert (done.folder / "report.html").exists()
    assert read_summary(done.folder) == done.summary


def test_a_choice_answers_labels_only_and_tells_how_often_each_came(tmp_path: Path) -> None:
    done = ran(tmp_path, "choice")
    stage = stage_of(done)
    assert set(stage.labels) <= {"positive", "negative", "neutral"}
    assert sum(stage.labels.values()) == stage.window.books.completed
    # At temperature 1 one label alone in 30 answers is as good as impossible (3 x .34^29).
    assert len(stage.labels) > 1
    assert " (" in next(line for line in done.stdout.splitlines() if line.startswith("labels"))


def test_a_score_has_a_log_probability_for_each_token_of_the_completion(tmp_path: Path) -> None:
    stage = stage_of(ran(tmp_path, "score", workload__output_tokens=7))
    assert stage.items is not None
    assert (stage.items.what, stage.items.mean) == ("scored tokens", 7)
    assert stage.tokens.prompt == stage.tokens.prompt_asked  # of ids, so exact
    assert stage.throughput.items == pytest.approx(7 * stage.throughput.requests)


def test_a_text_to_tokenize_has_the_tokens_asked_for(tmp_path: Path) -> None:
    stage = stage_of(ran(tmp_path, "tokenize"))
    assert stage.tokens.prompt == stage.tokens.prompt_asked
    assert stage.throughput.output_tokens == 0
    assert stage.items is None


def test_an_embedding_has_a_vector_of_the_dimensions_asked_for_for_each_input(tmp_path: Path) -> None:
    stage = stage_of(ran(tmp_path, "embed", workload__inputs=3, workload__dimensions=16))
    assert stage.items is not None
    assert (stage.items.mean, stage.items.dimensions) == (3, 16)
    assert stage.tokens.prompt == pytest.approx(stage.tokens.prompt_asked, rel=0.02)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("kind", ["responses", "messages", "transcribe"])
def test_other_apis_have_the_latencies_of_tokens_where_they_stream(tmp_path: Path, kind: str, stream: bool) -> None:
    keys = {"workload__audio__seconds": 2.0} if kind == "transcribe" else {"workload__output_tokens": 8}
    stage = stage_of(
        ran(tmp_path, "poisson", workload__kind=kind, workload__prompt_tokens=32, target__stream=stream, **keys)
    )
    latencies = stage.latency_seconds.named().keys()
    assert ({"ttft", "itl"} <= latencies) == stream
    if kind == "responses":
        assert (stage.tokens.output_asked, stage.tokens.output, stage.short) == (8, 8, 0)
    if kind == "messages":
        assert (stage.tokens.output_asked, stage.short) == (None, 0)
        assert stage.tokens.output is not None
        assert 1 <= stage.tokens.output <= 8
    if kind == "transcribe":
        assert stage.items is not None
        assert stage.latency_seconds.service is not None
        assert stage.items.real_time_factor == pytest.approx(stage.latency_seconds.service.mean / 2)


@pytest.mark.parametrize(("kind", "what"), [("rerank", "documents"), ("pooling", "pooled texts")])
def test_models_that_pool_answer_for_each_input(tmp_path: Path, kind: str, what: str) -> None:
    keys = {"workload__kind": kind, "workload__inputs": 3, "workload__prompt_tokens": 32}
    stage = stage_of(ran(tmp_path, "poisson", **keys))
    assert stage.items is not None
    assert (stage.items.what, stage.items.mean) == (what, 3)
    assert "ttft" not in stage.latency_seconds.named()


def test_a_kind_that_a_model_in_a_worker_does_not_have_is_refused_in_one_line(tmp_path: Path) -> None:
    done = ran(tmp_path, "embed", target__transport="in-process")
    assert done.exit_code == 2
    assert 'workload.kind = "embed": the simulator in a worker has chat and completion' in done.stderr
    assert not done.folder.exists()


def test_a_server_that_asks_for_patience_gets_its_requests_again_and_the_books_count_each_once(tmp_path: Path) -> None:
    with simulated_server(error_rate=0.3, error_status=429, retry_after=0, seed=3) as server:
        profile = tmp_path / "patient.toml"
        profile.write_text(
            f'[target]\nkind = "http"\nurl = "{server.url}"\nretry = 20\n[load]\nkind = "constant"\n'
            f'rate = {RATE}\nduration = "{SECONDS}s"\n[workload]\nprompt_tokens = 16\noutput_tokens = 4\n'
        )
        stage = stage_of(run(tmp_path / "run", str(profile)))
        asked = server.stats()["total_requests"]
    # Each try is refused with a chance of .3: 21 in a row as good as never, and none in 30 requests with .7^30 = 2e-5.
    assert stage.retries > 0
    # All that the server saw are the requests of the load and those sent again, and the trial, which may be, too.
    assert asked - 1 >= stage.books.completed + stage.retries


# --- what answers say -------------------------------------------------------------------------------------------------


def lines_of(done: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (done.folder / "requests.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("kind", ["completion", "messages", "choice"])
def test_what_answers_say_is_kept_where_it_is_wanted(tmp_path: Path, kind: str, stream: bool) -> None:
    keys: dict[str, Any] = {"workload__labels": ["yes", "no"]} if kind == "choice" else {"workload__output_tokens": 8}
    keys |= {"workload__kind": kind, "workload__prompt_tokens": 32, "target__stream": stream}
    done = ran(tmp_path, "poisson", output__records=False, output__texts=True, **keys)
    stage_of(done)
    lines = lines_of(done)
    assert len(lines) == RATE * SECONDS
    assert all(line["text"].strip() for line in lines)
    if kind == "choice":
        assert all(line["text"] == line["label"] for line in lines)


def test_of_an_answer_that_was_cut_short_the_part_that_came_is_kept(tmp_path: Path) -> None:
    # 2,000 tokens at 6 ms each take 12 s, the load and its drain three and a half.
    keys = {"workload__prompt_tokens": 32, "workload__output_tokens": 2000, "load__drain": "500ms"}
    done = ran(tmp_path, "poisson", output__texts=True, **keys)
    cut = [line for line in lines_of(done) if line["account"] == "unfinished" and line["chunks"] > 3]
    assert len(cut) > RATE
    assert all(line["text"].strip() for line in cut)


@pytest.mark.parametrize(
    "keys", [{"target__transport": "in-process", "output__texts": True}, {"output__records": True}]
)
def test_where_no_text_is_known_or_wanted_there_is_none(tmp_path: Path, keys: dict[str, Any]) -> None:
    done = ran(tmp_path, "poisson", workload__output_tokens=8, **keys)
    stage_of(done)
    assert not any("text" in line for line in lines_of(done))


def test_what_is_no_text_of_the_model_is_not_kept(tmp_path: Path) -> None:
    done = ran(tmp_path, "score", workload__output_tokens=7, output__texts=True)
    stage_of(done)
    assert not any("text" in line for line in lines_of(done))
