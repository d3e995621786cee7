"""Requests from a file: what its rows become, in which order they come, and what is refused in which words."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ExitCode, LoadgenError
from loadgen.profile import Dataset, Uniform, Workload
from loadgen.workload.dataset import DatasetWorkload, places, read_rows
from loadgen.workload.request import Message, Request
from loadgen.workload.sources import make_workload
from loadgen.workload.tokens import estimate

SYSTEM = Message("system", "Be brief.")


def written(folder: Path, *rows: Any) -> str:
    """The path of a file of these rows: text as it is, other things as JSON."""
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(path)


def workload(path: str, order: Any = "sequential", **keys: Any) -> Workload:
    return Workload(source="dataset", dataset=Dataset(path=path, order=order), **keys)


def requests(folder: Path, *rows: Any, count: int = 1, **keys: Any) -> list[Request]:
    """The first requests of a dataset of these rows."""
    source = make_workload(workload(written(folder, *rows), **keys), estimate(), 0)
    return [source.request(index) for index in range(count)]


# --- what a row becomes -----------------------------------------------------------------------------------------------


def test_a_prompt_is_the_one_message_of_a_chat_and_the_text_of_what_is_no_chat(tmp_path: Path) -> None:
    row = {"prompt": "héllo\nyou", "output_tokens": 7}
    talk = (Message("user", "héllo\nyou"),)
    assert requests(tmp_path, row) == [Request(0, messages=talk, output_tokens=7)]
    assert requests(tmp_path, row, kind="responses") == [Request(0, messages=talk, output_tokens=7)]
    assert requests(tmp_path, row, kind="messages") == [Request(0, messages=talk, most_output_tokens=7)]
    assert requests(tmp_path, row, kind="completion") == [Request(0, prompt="héllo\nyou", output_tokens=7)]
    assert requests(tmp_path, row, kind="tokenize") == [Request(0, prompt="héllo\nyou")]
    assert requests(tmp_path, row, kind="embed") == [Request(0, inputs=("héllo\nyou",))]


def test_a_conversation_is_sent_as_it_stands_and_how_many_tokens_it_has_is_not_known(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]
    (request,) = requests(tmp_path, {"messages": turns})
    assert request.messages == (Message("user", "hi"), Message("assistant", "yes?"))
    assert request.prompt_tokens is None


def test_the_system_message_stands_before_each_conversation_that_has_none_of_its_own(tmp_path: Path) -> None:
    own = {"role": "system", "content": "Be kind."}
    talk = {"role": "user", "content": "hi"}
    rows = ({"prompt": "hi"}, {"messages": [talk]}, {"messages": [own, talk]})
    sent = [request.messages for request in requests(tmp_path, *rows, count=3, system="Be brief.")]
    user = Message("user", "hi")
    assert sent == [(SYSTEM, user), (SYSTEM, user), (Message("system", "Be kind."), user)]


def test_a_row_without_a_length_asks_for_the_workloads(tmp_path: Path) -> None:
    rows = ({"prompt": "a"}, {"prompt": "b", "output_tokens": 500})
    drawn = requests(tmp_path, *rows, count=40, output_tokens=Uniform(min=1, max=9))
    lengths = [request.output_tokens for request in drawn]
    assert set(lengths[1::2]) == {500}
    assert len(set(lengths[::2])) > 1
    assert all(1 <= length <= 9 for length in lengths[::2])
    free = requests(tmp_path, *rows, count=2, output_tokens=None)
    assert [request.output_tokens for request in free] == [None, 500]


def test_a_choice_has_its_rows_own_labels_and_its_right_answer_as_it_stands_among_them(tmp_path: Path) -> None:
    rows = ({"prompt": "a", "expected": " yes"}, {"prompt": "b", "labels": ["x", " y"], "expected": "y"})
    first, second = requests(tmp_path, *rows, count=2, kind="choice", labels=("yes", "no"))
    assert (first.labels, first.expected, first.output_tokens) == (None, "yes", None)
    assert (second.labels, second.expected) == (("x", " y"), " y")


def test_what_does_not_concern_the_kind_is_passed_over(tmp_path: Path) -> None:
    (request,) = requests(tmp_path, {"prompt": "a", "labels": ["x"], "expected": "z"})
    assert request == Request(0, messages=(Message("user", "a"),), output_tokens=64)


def test_empty_lines_and_a_byte_order_mark_are_passed_over(tmp_path: Path) -> None:
    path = Path(written(tmp_path, '\ufeff{"prompt": "a"}', "", "  ", {"prompt": "b"}))
    assert [row.prompt for row in read_rows(workload(str(path)))] == ["a", "b"]


# --- the order --------------------------------------------------------------------------------------------------------


def test_rows_come_in_their_order_and_again_from_the_first(tmp_path: Path) -> None:
    rows = [{"prompt": text} for text in "abc"]
    made = requests(tmp_path, *rows, count=7, kind="completion")
    assert "".join(str(request.prompt) for request in made) == "abcabca"
    assert [request.again for request in made] == [False] * 3 + [True] * 4
    assert [request.index for request in made] == list(range(7))


@given(rows=st.integers(1, 200), seed=st.integers(0, 2**63))
def test_a_shuffled_round_has_each_row_once(rows: int, seed: int) -> None:
    place = places(workload("f", "shuffle", seed=seed), rows)
    assert sorted(map(place, range(rows))) == list(range(rows))


def test_the_seed_decides_the_shuffled_order_and_the_nonce_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, *({"prompt": str(number)} for number in range(50)))

    def order(seed: int, nonce: int) -> list[int]:
        source = DatasetWorkload(workload(path, "shuffle", seed=seed, kind="completion"), estimate(), nonce)
        # Asked for from the last to the first: what a request says does not depend on those before.
        return [int(str(source.request(index).prompt)) for index in reversed(range(50))]

    assert order(1, 0) == order(1, 7) != order(2, 0)
    assert order(1, 0) != list(reversed(range(50)))


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"pompt": "a"}, 'pompt = "a": unknown key; allowed: messages, prompt, labels, expected, output_tokens; did'),
        ({}, "needs either messages or prompt"),
        ({"prompt": None}, "needs either messages or prompt"),
        ({"prompt": "a", "messages": []}, "needs either messages or prompt"),
        ({"prompt": ""}, "prompt: empty"),
        ({"messages": []}, "messages: empty"),
        ({"prompt": 5}, "prompt = 5: allowed: text"),
        ({"messages": [{"role": "usr", "content": "a"}]}, 'messages[0].role = "usr": allowed: "system"'),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content = [a table]: allowed"),
        ({"messages": [{"role": "user"}]}, "messages[0].content: missing"),
        ({"prompt": "a", "output_tokens": 0}, "output_tokens = 0: allowed: a whole number from 1"),
        ([1], "[1]: allowed: a table"),
        ('{"prompt": "a"', "not JSON: Input data was truncated"),
        ('{"prompt": "a"}, {"prompt": "b"}', "not JSON: JSON is malformed"),
        ("[" * 100_000, "Expected `object`, got `array`"),
        ('{"messages": ' + "[" * 100_000, "Expected `object`, got `array`"),
    ],
)
def test_a_bad_row_is_told_in_one_line_with_its_number(tmp_path: Path, row: Any, words: str) -> None:
    path = written(tmp_path, {"prompt": "good"}, "", row, {"also": "bad"})
    with pytest.raises(LoadgenError) as caught:
        read_rows(workload(path))
    told = str(caught.value)
    assert told.startswith(f"{path}, line 3: {words}")
    assert "\n" not in told
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a"}, "needs labels, at least two, different and not empty (workload.labels has none)"),
        ({"prompt": "a", "labels": ["x"]}, "needs labels, at least two, different and not empty"),
        ({"prompt": "a", "labels": ["x", "x "]}, "needs labels, at least two, different and not empty"),
        ({"prompt": "a", "labels": ["x", "y"], "expected": "z"}, 'expected = "z": none of the labels'),
    ],
)
def test_a_choice_without_sound_labels_is_refused(tmp_path: Path, row: Any, words: str) -> None:
    path = written(tmp_path, row)
    with pytest.raises(LoadgenError) as caught:
        read_rows(workload(path, kind="choice"))
    assert str(caught.value) == f"{path}, line 1: {words}"


@pytest.mark.parametrize("kind", ["completion", "tokenize", "embed"])
def test_a_conversation_is_no_text(tmp_path: Path, kind: Any) -> None:
    path = written(tmp_path, {"messages": [{"role": "user", "content": "hi"}]})
    with pytest.raises(LoadgenError, match=f'line 1: messages: kind = "{kind}" needs prompt'):
        read_rows(workload(path, kind=kind))


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with pytest.raises(LoadgenError, match="line 2: not JSON: "):
        read_rows(workload(str(path)))


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_rows_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(LoadgenError, match=r"rows\.jsonl: has no rows$"):
        read_rows(workload(str(path)))


@pytest.mark.parametrize(
    ("name", "why"), [("none.jsonl", "No such file or directory"), (".", "Is a directory"), ("a\0b", "embedded null")]
)
def test_a_file_that_cannot_be_read_is_told_with_the_reason(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(LoadgenError, match=f"cannot be read: {why}"):
        read_rows(workload(str(tmp_path / name)))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"source": "dataset"}, r'source = "dataset" needs \[workload.dataset\]'),
        ({"dataset": Dataset(path="f")}, 'dataset needs source = "dataset"'),
        ({"source": "dataset", "dataset": Dataset(path="f"), "kind": "rerank"}, 'dataset needs kind = "chat" or'),
        ({"source": "dataset", "dataset": Dataset(path="f"), "kind": "embed", "inputs": 2}, "its rows are texts"),
        ({"source": "dataset", "dataset": Dataset(path="f"), "kind": "choice", "labels": ("a",)}, "at least two"),
    ],
)
def test_what_does_not_go_together_in_a_profile_is_refused(keys: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Workload(**keys)
