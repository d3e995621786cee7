"""Every kind of workload against a real vLLM that serves it: its ready profile, where it has one, and what is measured.

What a model has to be for a kind differs: one generates, one makes vectors, one scores pairs, one hears.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from bench_serve import VllmServer
from conftest import API_KEY

from loadgen.measure.records import Record
from loadgen.summary.summary import Stage
from tests.end_to_end import Ran, run, sets

# The first test of each model waits for its server; a run here takes seconds.
pytestmark = pytest.mark.timeout(300)

RATE, SECONDS = 10, 2
REQUESTS = RATE * SECONDS
OF_TOKENS = {"ttft", "service_ttft", "ttft_content", "itl", "tpot"}
"""The latencies that only a streamed answer has."""
VECTOR_LENGTH = 64
"""The hidden size of the tiny model."""


class Loaded(NamedTuple):
    """A run that ended well."""

    ran: Ran
    stage: Stage

    @property
    def records(self) -> list[Record]:
        lines = (self.ran.folder / "requests.jsonl").read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Record) for line in lines]

    @property
    def latencies(self) -> set[str]:
        return set(self.stage.latency_seconds.named())


def load(server: VllmServer, folder: Path, profile: str, **keys: object) -> Ran:
    """A profile, shortened to 20 requests at equal gaps. `keys` as for `sets`.

    The check before the load has a minute: the first log-probabilities of a server take it 10 to 20 s, in which it
    compiles what tells them.
    """
    short = {"load__kind": "constant", "load__warmup": "0s", "output__records": True}
    options = ["--target", server.url, "--rate", str(RATE), "--duration", f"{SECONDS}s"]
    return run(folder / "run", profile, *options, *sets(**short, **keys))


def loaded(server: VllmServer, folder: Path, profile: str, *, requests: int = REQUESTS, **keys: object) -> Loaded:
    """A run all of whose requests are completed; the generator may have been late beside a server on two cores."""
    ran = load(server, folder, profile, **keys)
    # 1: an SLO of the ready profile was missed, which this machine is not made for.
    assert ran.exit_code in (0, 1, 4), ran.stdout + ran.stderr
    reasons = ran.summary.verdict.reasons
    assert all(reason.startswith(("Lateness p99", "Event loop lag p99")) for reason in reasons), reasons
    (stage,) = ran.summary.stages
    assert stage.books.completed == stage.books.intended == requests
    assert stage.latency_seconds.response.count == stage.latency_seconds.service.count == requests
    return Loaded(ran, stage)


# --- a model that generates -------------------------------------------------------------------------------------------


def test_a_choice_is_always_one_of_its_labels(vllm_server, tmp_path):
    ran, stage = done = loaded(vllm_server, tmp_path, "choice")
    assert set(stage.labels) <= {"positive", "negative", "neutral"}
    assert sum(stage.labels.values()) == REQUESTS
    # The tiny model is nearly indifferent: one label alone in 20 answers at temperature 1 is as good as impossible.
    assert len(stage.labels) > 1
    assert {record.finish_reason for record in done.records} == {"stop"}
    assert "labels" in ran.stdout
    assert not OF_TOKENS & done.latencies


def test_texts_of_a_file_are_classified_and_held_against_what_it_says_is_right(vllm_server, tmp_path):
    done = loaded(vllm_server, tmp_path, "classify")
    right = sum(record.label == record.expected for record in done.records)
    assert (done.stage.accuracy.correct, done.stage.accuracy.judged) == (right, REQUESTS)
    assert done.ran.summary.environment["target"]["constraint"] == "structured_outputs"


def test_a_score_tells_each_token_of_the_completion_and_how_many_a_second(vllm_server, tmp_path):
    done = loaded(vllm_server, tmp_path, "score")
    stage = done.stage
    assert (stage.items.what, stage.items.mean) == ("scored tokens", 32)
    assert {record.items for record in done.records} == {32}
    assert stage.throughput.items == pytest.approx(32 * stage.throughput.requests)
    # Ids are sent, so that the server counts what was asked for.
    assert [record.prompt_tokens for record in done.records] == [record.prompt_tokens_asked for record in done.records]
    assert not OF_TOKENS & done.latencies


def test_a_text_to_tokenize_has_the_tokens_asked_for(vllm_server, tmp_path):
    done = loaded(vllm_server, tmp_path, "tokenize")
    assert done.stage.tokens.prompt == pytest.approx(done.stage.tokens.prompt_asked, rel=0.02)
    assert done.stage.throughput.prompt_tokens == pytest.approx(
        done.stage.tokens.prompt * done.stage.throughput.requests
    )
    assert done.stage.throughput.output_tokens == 0
    assert done.stage.items is None
    assert not OF_TOKENS & done.latencies


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_responses_have_exactly_the_tokens_asked_for(vllm_server, tmp_path, stream):
    keys = {"workload__prompt_tokens": 32, "workload__output_tokens": 8, "target__stream": stream}
    done = loaded(vllm_server, tmp_path, "constant", workload__kind="responses", **keys)
    assert done.stage.tokens.prompt == pytest.approx(32, rel=0.02)
    assert {record.output_tokens for record in done.records} == {8}
    assert {record.finish_reason for record in done.records} == {"length"}
    assert done.stage.tokens.counted_by == "usage"
    assert ({"ttft", "service_ttft", "itl"} <= done.latencies) == stream


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_messages_have_at_most_the_tokens_asked_for(vllm_server, tmp_path, stream):
    keys = {"workload__prompt_tokens": 32, "workload__output_tokens": 8, "target__stream": stream}
    done = loaded(vllm_server, tmp_path, "constant", workload__kind="messages", workload__system="be brief", **keys)
    # The system message comes on top.
    assert 32 < done.stage.tokens.prompt < 64
    for record in done.records:
        # A model of random weights ends by itself now and then.
        assert record.output_tokens == 8 if record.finish_reason == "length" else 1 <= record.output_tokens <= 8
    assert {record.finish_reason for record in done.records} <= {"length", "stop"}
    assert done.stage.short == 0
    assert ({"ttft", "service_ttft", "itl"} <= done.latencies) == stream


@pytest.mark.parametrize(
    ("kind", "keys"), [("embed", {}), ("transcribe", {"workload__audio__seconds": 1.0})], ids=["embed", "transcribe"]
)
def test_a_kind_that_the_model_is_not_made_for_is_refused_in_one_line(vllm_server, tmp_path, kind, keys):
    ran = load(vllm_server, tmp_path, "constant", workload__kind=kind, **keys)
    assert ran.exit_code == 3
    (line,) = ran.stderr.strip().splitlines()
    assert "404" in line
    assert f'check that its model is made for workload.kind = "{kind}"' in line


# --- a model that makes vectors, on a server that wants a key ---------------------------------------------------------


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setenv("KEY_OF_THE_SERVER", API_KEY)
    return {"target__api_key_env": "KEY_OF_THE_SERVER"}


def test_an_embedding_has_a_vector_for_each_input(embedding_server, tmp_path, keyed):
    done = loaded(embedding_server, tmp_path, "embed", **keyed)
    stage = done.stage
    assert (stage.items.mean, stage.items.dimensions) == (8, VECTOR_LENGTH)
    assert {(record.items, record.dimensions) for record in done.records} == {(8, VECTOR_LENGTH)}
    assert stage.throughput.items == pytest.approx(8 * stage.throughput.requests)
    assert stage.tokens.prompt == pytest.approx(stage.tokens.prompt_asked, rel=0.02)
    assert not OF_TOKENS & done.latencies


def test_a_vector_in_base64_has_the_same_dimensions(embedding_server, tmp_path, keyed):
    keys = {"workload__inputs": 2, "workload__body__encoding_format": "base64"}
    done = loaded(embedding_server, tmp_path, "embed", **keys, **keyed)
    assert {(record.items, record.dimensions) for record in done.records} == {(2, VECTOR_LENGTH)}


def test_dimensions_that_the_model_cannot_give_are_refused_in_the_servers_words(embedding_server, tmp_path, keyed):
    ran = load(embedding_server, tmp_path, "embed", workload__dimensions=16, **keyed)
    assert ran.exit_code == 3
    (line,) = ran.stderr.strip().splitlines()
    assert "does not support Matryoshka embeddings" in line


def test_without_its_key_the_server_is_not_loaded(embedding_server, tmp_path):
    ran = load(embedding_server, tmp_path, "embed")
    assert ran.exit_code == 3
    (line,) = ran.stderr.strip().splitlines()
    assert "target.api_key_env" in line


@pytest.mark.parametrize(("kind", "what"), [("pooling", "pooled texts"), ("rerank", "documents")])
def test_a_model_of_vectors_pools_and_ranks(embedding_server, tmp_path, keyed, kind, what):
    keys = {"workload__kind": kind, "workload__inputs": 3, "workload__prompt_tokens": 32}
    done = loaded(embedding_server, tmp_path, "constant", **keys, **keyed)
    assert (done.stage.items.what, done.stage.items.mean) == (what, 3)
    # A query is embedded once, beside its documents.
    texts = 3 if kind == "pooling" else 4
    assert done.stage.tokens.prompt == pytest.approx(texts * 32, rel=0.02)
    assert not OF_TOKENS & done.latencies


@pytest.fixture(scope="module")
def further_servers(
    start_server: Callable[..., AbstractContextManager[VllmServer]], tiny_scorer: Path, tiny_transcriber: Path
) -> Iterator[tuple[VllmServer, VllmServer]]:
    """Of a model that scores pairs and of one that hears. They start at once, on a core each."""
    flags = {tiny_scorer: ("--runner", "pooling"), tiny_transcriber: ("--max-model-len", "448")}  # Whisper's own
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        starts = [threads.submit(stack.enter_context, start_server(*own, model=model)) for model, own in flags.items()]
        yield starts[0].result(), starts[1].result()


# --- a model that scores pairs ----------------------------------------------------------------------------------------


@pytest.fixture
def scoring_server(further_servers: tuple[VllmServer, VllmServer]) -> VllmServer:
    return further_servers[0]


# Of a text the tokenizer makes `[CLS] text [SEP]`, which is within the length asked for. Of a pair it makes
# `[CLS] query [SEP] document [SEP]`: of two such texts the second `[CLS]` is left out, for each of three documents.
@pytest.mark.parametrize(("kind", "tokens"), [("pooling", 3 * 32), ("rerank", 3 * (2 * 32 - 1))])
def test_a_model_without_a_chat_template_gets_the_lengths_asked_for(scoring_server, tmp_path, kind, tokens):
    keys = {"workload__kind": kind, "workload__inputs": 3, "workload__prompt_tokens": 32}
    done = loaded(scoring_server, tmp_path, "constant", **keys)
    assert {record.items for record in done.records} == {3}
    assert done.stage.tokens.prompt == pytest.approx(tokens, rel=0.02)
    assert not any("tokens on average" in warning for warning in done.ran.summary.verdict.warnings)
    assert not OF_TOKENS & done.latencies


# --- a model that hears -----------------------------------------------------------------------------------------------


@pytest.fixture
def transcribing_server(further_servers: tuple[VllmServer, VllmServer]) -> VllmServer:
    return further_servers[1]


SOUND_SECONDS = 2.0
TRANSCRIPT_TOKENS = 12


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_transcription_has_a_real_time_factor(transcribing_server, tmp_path, stream):
    keys = {"workload__audio__seconds": SOUND_SECONDS, "workload__body__max_completion_tokens": TRANSCRIPT_TOKENS}
    done = loaded(transcribing_server, tmp_path, "constant", workload__kind="transcribe", target__stream=stream, **keys)
    stage = done.stage
    assert stage.items.real_time_factor == pytest.approx(stage.latency_seconds.service.mean / SOUND_SECONDS)
    assert ({"ttft", "service_ttft", "itl"} <= done.latencies) == stream
    if stream:
        # The tiny model speaks on until it is stopped.
        assert {record.output_tokens for record in done.records} == {TRANSCRIPT_TOKENS}
        assert {record.finish_reason for record in done.records} == {"length"}
        assert stage.tokens.counted_by == "usage"
    else:
        # A whole transcript is its text, and says neither how many tokens it has nor why it ended.
        assert {(record.output_tokens, record.finish_reason) for record in done.records} == {(None, None)}


def test_a_sound_that_is_heard_in_two_pieces_is_one_answer(transcribing_server, tmp_path):
    # Whisper hears 30 s at a time: vLLM writes a longer sound down piece by piece, each with its own finish reason.
    keys = {"workload__audio__seconds": 31.0, "workload__body__max_completion_tokens": TRANSCRIPT_TOKENS}
    done = loaded(
        transcribing_server, tmp_path, "constant", requests=SECONDS, workload__kind="transcribe", load__rate=1, **keys
    )
    assert {record.output_tokens for record in done.records} == {2 * TRANSCRIPT_TOKENS}
