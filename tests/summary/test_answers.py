"""Measures of answers that are no plain text: labels, vectors and scores; and of requests that were sent again."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from loadgen.judge.summarise import summarise
from loadgen.measure.delta import ITEMS, StageDelta
from loadgen.measure.outcome import FAILED, UNFINISHED, Outcome
from loadgen.summary.summary import Accuracy, Items, Stage


def stage_of(build: Any, folder: Path, *deltas: StageDelta, **workload: Any) -> Stage:
    """The stage of a run of 2 s that has told these."""
    run = build.run(folder, deltas, stop=2.0, header=build.header(workload=workload))
    (stage,) = summarise(run).stages
    return stage


def whole(build: Any, at: float = 0.0, **seen: Any) -> Any:
    """A request with a whole answer after 0.25 s."""
    return build.outcome(at, streamed=False, took=0.25, **seen)


# --- labels -----------------------------------------------------------------------------------------------------------


def test_labels_are_counted_by_interval_of_the_intended_start(build: Any) -> None:
    answers = [(0.1, "yes"), (0.2, "no"), (0.9, "yes"), (1.5, "yes")]
    delta = build.delta(*(whole(build, at, label=label) for at, label in answers))
    assert sorted(delta.labels) == [(0, "no", 1), (0, "yes", 2), (1, "yes", 1)]


def test_only_a_completed_answer_counts_as_a_label(build: Any) -> None:
    late = whole(build, 0.2, label="yes", account=UNFINISHED)
    wrong = whole(build, 0.3, account=FAILED + "not_a_label")
    assert build.delta(whole(build, label="yes"), late, wrong).labels == [(0, "yes", 1)]


def test_a_label_keeps_its_name_from_flush_to_flush(build: Any, tmp_path: Path) -> None:
    first = build.delta(whole(build, 0.1, label="no"))
    second = build.delta(whole(build, 0.2, label="yes"), whole(build, 0.3, label="no"))
    assert stage_of(build, tmp_path, first, second, kind="choice").labels == {"no": 2, "yes": 1}


def test_a_stage_without_labels_has_none(build: Any, tmp_path: Path) -> None:
    stage = stage_of(build, tmp_path, build.delta(build.outcome(tokens=(0.1, 0.2))))
    assert (stage.labels, stage.items, stage.throughput.items) == ({}, None, None)
    assert not {"labels", "items", "retries"} & msgspec.to_builtins(stage).keys()


# --- accuracy ---------------------------------------------------------------------------------------------------------


def expecting(outcome: Outcome, label: str | None) -> Outcome:
    return replace(outcome, expected=label)


def test_accuracy_is_the_share_of_right_labels_among_those_that_are_known(build: Any, tmp_path: Path) -> None:
    right = [expecting(whole(build, at, label="yes"), "yes") for at in (0.1, 1.1, 2.1)]
    wrong = expecting(whole(build, 0.2, label="no"), "yes")
    unknown = whole(build, 0.3, label="yes")
    no_label = expecting(whole(build, 0.4, account=FAILED + "not_a_label"), "yes")
    late = expecting(whole(build, 0.5, label="yes", account=UNFINISHED), "yes")
    delta = build.delta(*right, wrong, unknown, no_label, late)
    assert sorted(delta.judged) == [(0, 0, 1), (0, 1, 1), (1, 1, 1), (2, 1, 1)]
    # Three of the four answers that are labels, and whose right one is known.
    assert stage_of(build, tmp_path, delta, kind="choice").accuracy == Accuracy(0.75, 3, 4)


def test_accuracy_counts_the_window_alone(build: Any, tmp_path: Path) -> None:
    grid = build.grid(warmup=1.0)
    early, later = (expecting(whole(build, at, label="yes"), right) for at, right in ((0.5, "no"), (1.5, "yes")))
    build.run(tmp_path, [build.delta(early, later, grid=grid)], stop=2.0, meta=build.meta(grid))
    assert summarise(tmp_path).stages[0].accuracy == Accuracy(1.0, 1, 1)


def test_labels_of_which_none_is_known_to_be_right_have_no_accuracy(build: Any, tmp_path: Path) -> None:
    stage = stage_of(build, tmp_path, build.delta(whole(build, label="yes")), kind="choice")
    assert stage.accuracy is None
    assert not {"accuracy", "rows_again"} & msgspec.to_builtins(stage).keys()


def test_a_request_that_says_the_same_again_is_counted_where_it_was_sent_and_warned_of(
    build: Any, tmp_path: Path
) -> None:
    again = [replace(build.outcome(at, index=index), again=index > 0) for index, at in enumerate((0.1, 0.2, 0.3))]
    unsent = replace(build.outcome(0.4, index=3, account=UNFINISHED, late=None), again=True)
    stage = stage_of(build, tmp_path, build.delta(*again, unsent))
    assert stage.rows_again == 2
    assert any("2 requests said what earlier ones" in told for told in summarise(tmp_path).verdict.warnings)


# --- items ------------------------------------------------------------------------------------------------------------


def test_vectors_are_told_by_request_and_by_second(build: Any, tmp_path: Path) -> None:
    delta = build.delta(*(whole(build, at, items=8, dimensions=256, prompt=100) for at in (0.0, 0.5, 1.0, 1.5)))
    stage = stage_of(build, tmp_path, delta, kind="embed")
    assert stage.items == Items(what="vectors", mean=8.0, dimensions=256.0)
    # The window holds the ends of all four requests.
    assert stage.throughput.items == 4 * 8 / 2
    assert stage.throughput.prompt_tokens == 4 * 100 / 2
    assert stage.tokens.counted_by == "none"


def test_items_count_at_the_end_of_their_request_where_it_completed(build: Any) -> None:
    delta = build.delta(whole(build, items=5), whole(build, items=2, account=FAILED + "protocol"))
    assert build.series(delta, ITEMS) == {2: 5.0}  # bins of 0.1 s


def test_scored_tokens_have_no_dimensions(build: Any, tmp_path: Path) -> None:
    stage = stage_of(build, tmp_path, build.delta(whole(build, items=32)), kind="score")
    assert stage.items == Items(what="scored tokens", mean=32.0)


def test_what_is_not_streamed_has_no_latency_of_tokens(build: Any, tmp_path: Path) -> None:
    latencies = stage_of(build, tmp_path, build.delta(whole(build, label="yes")), kind="choice").latency_seconds
    assert {"ttft", "itl", "tpot"} & latencies.named().keys() == set()
    assert {"response", "service"} <= latencies.named().keys()


def test_sounds_are_told_by_their_seconds_and_how_much_faster_than_speech_they_were(build: Any, tmp_path: Path) -> None:
    deltas = build.delta(*(whole(build, at) for at in (0.0, 0.5, 1.0, 1.5)))
    stage = stage_of(build, tmp_path, deltas, kind="transcribe", audio={"seconds": 5.0})
    # Each took 0.25 s for 5 s of sound.
    assert stage.items == Items(what="seconds of sound", mean=5.0, real_time_factor=pytest.approx(0.05, rel=1e-6))
    assert stage.throughput.items == 4 * 5 / 2


# --- retries ----------------------------------------------------------------------------------------------------------


def test_retries_are_counted_whatever_became_of_their_requests(build: Any, tmp_path: Path) -> None:
    delta = build.delta(whole(build, retries=2), whole(build, retries=1, account=FAILED + "http_429"), whole(build))
    assert stage_of(build, tmp_path, delta).retries == 3
