"""What is sent where, for each kind of workload."""

import email
import email.policy
import json
from typing import Any, get_args

import pytest

from loadgen.clock import MonotonicClock
from loadgen.measure.outcome import Exchange
from loadgen.profile import Audio, Dataset, HttpTarget, Workload
from loadgen.profile.kinds import KINDS, KindName, kinds_with
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.endpoints import table
from loadgen.targets.http.endpoints.table import PATHS, endpoint_of
from loadgen.targets.http.session import ServerUrl, open_http
from loadgen.workload.request import Audio as Sound
from loadgen.workload.request import Message, Request
from tests.targets.http.loopback import answering, reply, serving

pytestmark = pytest.mark.anyio

INFO = TargetInfo(kind="http", model="tiny", version="0.32.0")
CHOICE = Workload(kind="choice", labels=("yes", "no"))
SCORE = Workload(kind="score", prompt_format="tokens")
TALK = (Message("system", "be brief"), Message("user", "hello"))
WORKLOADS = {
    "choice": (CHOICE, Request(index=0, messages=(Message("user", "hot?"),))),
    "score": (SCORE, Request(index=0, prompt=(5, 6, 7), scored_tokens=1)),
    "tokenize": (Workload(kind="tokenize"), Request(index=0, prompt="hello")),
    "embed": (Workload(kind="embed", inputs=2), Request(index=0, inputs=("hello", "you"))),
    "pooling": (Workload(kind="pooling", inputs=2), Request(index=0, inputs=("hello", "you"))),
    "rerank": (Workload(kind="rerank", inputs=2), Request(index=0, prompt="hot", inputs=("hello", "you"))),
    "responses": (Workload(kind="responses"), Request(index=0, messages=TALK, output_tokens=4)),
    "messages": (Workload(kind="messages"), Request(index=0, messages=TALK, most_output_tokens=4)),
    "transcribe": (
        Workload(kind="transcribe", audio=Audio()),
        Request(index=0, messages=(Message("user", (Sound(b"RIFF\r\n--x"),)),)),
    ),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def body_of(workload: Workload, request: Request, info: TargetInfo = INFO) -> Any:
    async with open_http(HttpTarget(url="http://127.0.0.1:1"), workload, info, MonotonicClock()) as session:
        return json.loads(session.prepare(request).body)


def test_every_kind_of_workload_has_an_endpoint() -> None:
    assert table.ENDPOINTS.keys() == KINDS.keys() == set(get_args(KindName))


def test_the_report_knows_which_kinds_are_streamed() -> None:
    workloads = [Workload(kind="chat"), Workload(kind="completion"), *(workload for workload, _ in WORKLOADS.values())]
    assert {workload.kind for workload in workloads if endpoint_of(workload, INFO).streams} == set(
        kinds_with("streamed")
    )


@pytest.mark.parametrize("path", PATHS)
def test_a_server_may_be_named_by_any_of_its_endpoints(path: str) -> None:
    assert str(ServerUrl(f"http://host:8000/v1/{path}")) == "http://host:8000"


@pytest.mark.parametrize(
    ("kind", "path", "answer"),
    [
        ("choice", "/v1/chat/completions", {"choices": [{"message": {"content": "no"}, "finish_reason": "stop"}]}),
        ("tokenize", "/tokenize", {"count": 1, "tokens": [7]}),
        ("embed", "/v1/embeddings", {"data": [{"embedding": [1, 2]}, {"embedding": [3, 4]}]}),
        ("pooling", "/pooling", {"data": [{"index": 0, "data": [1]}, {"index": 1, "data": [[2]]}]}),
        (
            "rerank",
            "/v1/rerank",
            {"results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]},
        ),
        ("responses", "/v1/responses", {"status": "completed", "error": None}),
        ("messages", "/v1/messages", {"type": "message", "stop_reason": "end_turn"}),
        ("transcribe", "/v1/audio/transcriptions", {"text": "so be it"}),
        (
            "score",
            "/v1/completions",
            {
                "choices": [{"finish_reason": "length", "logprobs": {"token_logprobs": [None, -1, -2, -3]}}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 1},
            },
        ),
    ],
)
async def test_a_request_goes_to_the_endpoint_of_its_kind_and_its_whole_answer_is_read(
    kind: str, path: str, answer: Any
) -> None:
    workload, request = WORKLOADS[kind]
    exchange = Exchange()
    async with (
        serving(answering(reply(200, answer))) as server,
        open_http(HttpTarget(url=f"{server.url}/v1"), workload, INFO, MonotonicClock()) as session,
    ):
        await session.send(session.prepare(request), exchange)
    assert (server.seen[0].method, server.seen[0].path) == ("POST", path)
    assert (exchange.failure, exchange.streamed) == (None, False)
    assert exchange.label == ("no" if kind == "choice" else None)
    assert exchange.items == {"embed": 2, "pooling": 2, "rerank": 2, "score": 1}.get(kind)


async def test_a_choice_asks_for_one_of_its_labels_and_for_no_length_beyond_them() -> None:
    assert await body_of(*WORKLOADS["choice"]) == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hot?"}],
        "max_tokens": 4,  # the bytes of "yes", and the end
        "structured_outputs": {"choice": ["yes", "no"]},
    }


@pytest.mark.parametrize("common", [(), ("yes", "no")], ids=["of rows alone", "of the profile, too"])
async def test_a_row_with_labels_of_its_own_allows_those_and_reads_those(common: tuple[str, ...]) -> None:
    dataset = {} if common else {"source": "dataset", "dataset": Dataset(path="rows.jsonl")}
    workload = Workload(kind="choice", labels=common, **dataset)
    request = Request(index=0, messages=(Message("user", "hot?"),), labels=("warm", "ice-cold"))
    body = await body_of(workload, request)
    assert (body["structured_outputs"], body["max_tokens"]) == ({"choice": ["warm", "ice-cold"]}, 9)
    answer = {"choices": [{"message": {"content": "ice-cold"}, "finish_reason": "stop"}]}
    async with serving(answering(reply(200, answer))) as server:
        target = HttpTarget(url=server.url)
        async with open_http(target, workload, INFO, MonotonicClock()) as session:
            exchange = Exchange()
            await session.send(session.prepare(request), exchange)
    assert (exchange.failure, exchange.label) == (None, "ice-cold")


async def test_a_choice_asks_by_the_field_that_was_seen_to_constrain_whatever_the_version() -> None:
    tried = TargetInfo(kind="http", model="tiny", version="0.32.0", constraint="guided_choice")
    body = await body_of(*WORKLOADS["choice"], tried)
    assert body["guided_choice"] == ["yes", "no"]
    assert "structured_outputs" not in body


async def test_a_choice_asks_an_old_server_by_the_field_that_it_knows() -> None:
    old = TargetInfo(kind="http", model="tiny", version="0.9.1")
    body = await body_of(*WORKLOADS["choice"], old)
    assert body["guided_choice"] == ["yes", "no"]
    assert "structured_outputs" not in body


async def test_fields_of_the_workload_take_the_place_of_an_endpoint_s_own() -> None:
    workload = Workload(kind="score", prompt_format="tokens", body={"max_tokens": 0, "logprobs": 5})
    body = await body_of(workload, WORKLOADS["score"][1])
    assert (body["max_tokens"], body["logprobs"], body["echo"]) == (0, 5, True)


async def test_a_score_echoes_what_was_sent_with_log_probabilities() -> None:
    assert await body_of(*WORKLOADS["score"]) == {
        "model": "tiny",
        "prompt": [5, 6, 7],
        "echo": True,
        "logprobs": 0,
        "max_tokens": 1,
        "temperature": 0,
    }


async def test_a_text_to_tokenize_is_sent_alone() -> None:
    assert await body_of(*WORKLOADS["tokenize"]) == {"model": "tiny", "prompt": "hello"}


@pytest.mark.parametrize("dimensions", [None, 64])
async def test_texts_to_embed_are_sent_as_a_list(dimensions: int | None) -> None:
    workload = Workload(kind="embed", inputs=2, dimensions=dimensions)
    wanted = {} if dimensions is None else {"dimensions": dimensions}
    body = await body_of(workload, WORKLOADS["embed"][1])
    assert body == {"model": "tiny", "input": ["hello", "you"]} | wanted


async def test_texts_to_pool_are_sent_as_a_list() -> None:
    assert await body_of(*WORKLOADS["pooling"]) == {"model": "tiny", "input": ["hello", "you"]}


async def test_documents_to_rerank_are_sent_with_their_query() -> None:
    assert await body_of(*WORKLOADS["rerank"]) == {"model": "tiny", "query": "hot", "documents": ["hello", "you"]}


async def test_a_response_is_asked_for_with_a_maximum_and_no_end_before_it() -> None:
    assert await body_of(*WORKLOADS["responses"]) == {
        "model": "tiny",
        "stream": True,
        "input": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
        "max_output_tokens": 4,
        "ignore_eos": True,
    }


async def test_a_message_has_its_system_message_apart_and_a_maximum_alone() -> None:
    assert await body_of(*WORKLOADS["messages"]) == {
        "model": "tiny",
        "stream": True,
        "system": "be brief",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
    }


async def test_fields_of_the_workload_take_the_place_of_a_conversation() -> None:
    workload = Workload(kind="responses", body={"input": "mine", "max_output_tokens": 9})
    body = await body_of(workload, WORKLOADS["responses"][1])
    assert (body["input"], body["max_output_tokens"]) == ("mine", 9)


async def test_a_sound_is_uploaded_as_a_file_of_a_form() -> None:
    workload = Workload(kind="transcribe", audio=Audio(), body={"language": "en", "temperature": 0})
    target = HttpTarget(url="http://127.0.0.1:1")
    async with open_http(target, workload, INFO, MonotonicClock()) as session:
        prepared = session.prepare(WORKLOADS["transcribe"][1])
    head = f"Content-Type: {prepared.content_type}\r\n\r\n".encode()
    form = email.message_from_bytes(head + prepared.body, policy=email.policy.HTTP)
    parts = {part.get_param("name", header="Content-Disposition"): part for part in form.iter_parts()}
    assert {name: part.get_payload() for name, part in parts.items() if name != "file"} == {
        "model": "tiny",
        "stream": "true",
        "stream_include_usage": "true",
        "language": "en",
        "temperature": "0",
    }
    assert parts["file"].get_filename() == "sound.wav"
    assert parts["file"].get_content_type() == "audio/wav"
    assert parts["file"].get_payload(decode=True) == b"RIFF\r\n--x"
