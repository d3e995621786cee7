"""The simulated vLLM over real HTTP on loopback: its answers, errors and statistics."""

import json
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.sim.api.server import open_server
from loadgen.sim.config import SimConfig, SimFaults

pytestmark = pytest.mark.anyio

# Steps of 1 ms: fast, and still one event a token.
FAST = SimConfig(step_base_seconds=0.001, max_model_len=1024, num_kv_blocks=8192)
CHAT = {"model": "sim", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 5}
COMPLETION = {"model": "sim", "prompt": "hello there", "max_tokens": 5}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@asynccontextmanager
async def _serving(config: SimConfig = FAST, faults: SimFaults | None = None, **settings):
    """A server and a client session on it."""
    async with open_server(config, faults, **settings) as server, aiohttp.ClientSession(server.url) as session:
        yield server, session


async def _post(session, path: str, body, **headers) -> tuple[int, dict]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with session.post(path, data=data, headers=headers) as response:
        return response.status, json.loads(await response.text())


async def _events(session, path: str, **body) -> list:
    """The events of a stream, decoded; the end marker as it is."""
    async with session.post(path, json=body | {"stream": True}) as response:
        assert response.status == 200
        text = await response.text()
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


async def test_a_chat_stream_has_the_role_the_tokens_the_finish_and_the_end_marker():
    async with _serving() as (_, session):
        *chunks, end = await _events(session, "/v1/chat/completions", **CHAT, ignore_eos=True)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert end == "[DONE]"
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all(choice["delta"]["content"] for choice in choices[1:])
    assert [choice["finish_reason"] for choice in choices[1:]] == [None] * (len(choices) - 2) + ["length"]
    assert "".join(choice["delta"]["content"] for choice in choices).count(" ") == 4  # five words


async def test_the_role_comes_in_one_write_with_the_first_token():
    body = CHAT | {"stream": True}
    async with _serving() as (_, session), session.post("/v1/chat/completions", json=body) as response:
        first = await response.content.readany()
    assert first.count(b"data: ") >= 2


async def test_usage_comes_last_when_asked_for_and_on_every_chunk_when_asked_for_that():
    async with _serving() as (_, session):
        plain = await _events(session, "/v1/completions", **COMPLETION, ignore_eos=True)
        last = await _events(
            session, "/v1/completions", **COMPLETION, ignore_eos=True, stream_options={"include_usage": True}
        )
        options = {"include_usage": True, "continuous_usage_stats": True}
        every = await _events(session, "/v1/completions", **COMPLETION, ignore_eos=True, stream_options=options)
    usage = {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}
    assert not any("usage" in chunk for chunk in plain[:-1])
    assert last[-2]["choices"] == []
    assert last[-2]["usage"] == usage
    assert [chunk["usage"]["completion_tokens"] for chunk in every[:-1]][-2:] == [5, 5]
    assert every[0]["usage"]["prompt_tokens"] == 2


async def test_an_answer_that_is_not_streamed_says_the_same():
    async with _serving() as (_, session):
        _, whole = await _post(session, "/v1/chat/completions", CHAT | {"ignore_eos": True})
        chunks = await _events(session, "/v1/chat/completions", **CHAT, ignore_eos=True)
        status, completion = await _post(session, "/v1/completions", COMPLETION | {"ignore_eos": True})
        _, tokens = await _post(session, "/tokenize", {"messages": CHAT["messages"]})
    streamed = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1])
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": streamed}
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["prompt_tokens"] == tokens["count"]
    assert status == 200
    assert completion["usage"]["completion_tokens"] == 5
    assert completion["choices"][0]["text"].startswith(" ")


async def test_the_text_has_as_many_tokens_as_the_usage_says():
    async with _serving() as (_, session):
        _, answer = await _post(session, "/v1/completions", COMPLETION | {"max_tokens": 200, "ignore_eos": True})
        _, tokens = await _post(session, "/tokenize", {"prompt": answer["choices"][0]["text"]})
    assert answer["usage"]["completion_tokens"] == tokens["count"] == 200


async def test_token_ids_are_returned_when_asked_for():
    async with _serving() as (_, session):
        _, answer = await _post(session, "/v1/completions", COMPLETION | {"return_token_ids": True, "ignore_eos": True})
        chunks = await _events(session, "/v1/completions", **COMPLETION, return_token_ids=True, ignore_eos=True)
        choice = answer["choices"][0]
        _, text = await _post(session, "/detokenize", {"tokens": choice["token_ids"]})
        _, prompt = await _post(session, "/detokenize", {"tokens": choice["prompt_token_ids"]})
    assert text["prompt"] == choice["text"]
    assert prompt["prompt"] == "hello there"
    assert [token for chunk in chunks[:-1] for token in chunk["choices"][0]["token_ids"]] == choice["token_ids"]


@pytest.mark.parametrize("prompt", ["one two three", ["one two three"], [11, 12, 13], [[11, 12, 13]]])
async def test_a_prompt_may_be_a_text_or_token_ids(prompt):
    async with _serving() as (_, session):
        status, answer = await _post(session, "/v1/completions", COMPLETION | {"prompt": prompt})
    assert status == 200
    assert answer["usage"]["prompt_tokens"] == 3


async def test_without_ignore_eos_an_answer_stops_of_its_own_accord_at_a_length_that_the_prompt_decides():
    lengths = set()
    async with _serving() as (_, session):
        for number in range(8):
            body = COMPLETION | {"prompt": f"prompt {number}", "max_tokens": 50, "min_tokens": 10}
            answers = [(await _post(session, "/v1/completions", body))[1] for _ in range(2)]
            assert answers[0]["usage"] == answers[1]["usage"]
            assert answers[0]["choices"][0]["finish_reason"] == "stop"
            lengths.add(answers[0]["usage"]["completion_tokens"])
    assert 10 <= min(lengths) <= max(lengths) <= 50
    assert len(lengths) > 3


async def test_an_output_that_does_not_fit_is_silently_shorter():
    async with _serving() as (_, session):
        body = {"prompt": [20] * 1000, "max_tokens": 100, "ignore_eos": True}
        status, answer = await _post(session, "/v1/completions", body)
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 24  # 1,024 - 1,000
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_the_request_id_is_kept():
    async with _serving() as (_, session):
        _, chat = await _post(session, "/v1/chat/completions", CHAT, **{"X-Request-Id": "a"})
        _, completion = await _post(session, "/v1/completions", COMPLETION, **{"X-Request-Id": "b"})
    assert (chat["id"], completion["id"]) == ("chatcmpl-a", "cmpl-b")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (COMPLETION | {"model": "other"}, 404, "model"),
        ({"prompt": [20] * 1024}, 400, "input_tokens"),
        (COMPLETION | {"max_tokens": 0}, 400, "max_tokens"),
        (COMPLETION | {"n": 2}, 400, "n"),
        (COMPLETION | {"prompt": ["a", "b"]}, 400, "prompt"),
        (COMPLETION | {"min_tokens": 9}, 400, "min_tokens"),
        ({"model": "sim"}, 400, None),
        (COMPLETION | {"max_tokens": "many"}, 400, None),
        (b'{"model": ', 400, None),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_in_vllms_shape(body, status, param):
    async with _serving() as (_, session):
        answered, answer = await _post(session, "/v1/completions", body)
    assert answered == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert (answer["error"]["code"], answer["error"]["param"]) == (status, param)


async def test_a_chat_without_messages_is_refused():
    async with _serving() as (_, session):
        assert (await _post(session, "/v1/chat/completions", {"model": "sim"}))[0] == 400
        assert (await _post(session, "/v1/chat/completions", {"model": "sim", "messages": []}))[0] == 400


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}


def _chat_of(*blocks) -> dict:
    return {"model": "sim", "messages": [{"role": "user", "content": list(blocks)}], "max_tokens": 5}


async def test_a_chat_of_text_blocks_says_the_same_as_one_of_text():
    blocks = _chat_of({"type": "text", "text": "hello "}, {"type": "text", "text": "there"})
    async with _serving() as (_, session):
        answers = [(await _post(session, "/v1/chat/completions", body))[1] for body in (CHAT, blocks)]
    assert answers[0]["usage"] == answers[1]["usage"]
    assert answers[0]["choices"] == answers[1]["choices"]


async def test_images_and_sounds_of_a_chat_count_as_prompt_tokens():
    hello = {"type": "text", "text": "hello there"}
    body = _chat_of(IMAGE, SOUND, hello, SOUND) | {"return_token_ids": True}
    async with _serving() as (_, session):
        _, bare = await _post(session, "/v1/chat/completions", CHAT)
        status, answer = await _post(session, "/v1/chat/completions", body)
        _, tokens = await _post(session, "/tokenize", {"messages": body["messages"]})
    assert status == 200
    prompt_tokens = bare["usage"]["prompt_tokens"] + 576 + 2 * 125
    assert answer["usage"]["prompt_tokens"] == tokens["count"] == prompt_tokens
    assert len(answer["prompt_token_ids"]) == prompt_tokens


async def test_another_image_gets_another_answer():
    async with _serving() as (_, session):
        words = set()
        for letter in "ABCD":
            image = IMAGE | {"image_url": {"url": f"data:image/png;base64,AAA{letter}"}}
            _, answer = await _post(session, "/v1/chat/completions", _chat_of(image) | {"ignore_eos": True})
            words.add(answer["choices"][0]["message"]["content"])
    assert len(words) == 4


@pytest.mark.parametrize(
    "block",
    [
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
        {"text": "of no type"},
        {"type": "text"},
        {"type": "image_url", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_audio", "input_audio": {"data": "AAAA"}},
    ],
)
async def test_a_block_of_an_unknown_kind_or_shape_is_refused_in_vllms_shape(block):
    async with _serving() as (_, session):
        status, answer = await _post(session, "/v1/chat/completions", _chat_of(block))
    assert status == 400
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert ".content[" in answer["error"]["message"]


async def test_an_unknown_route_has_the_frameworks_own_shape():
    async with _serving() as (_, session):
        assert await _post(session, "/v1/nothing", {}) == (404, {"detail": "Not Found"})


async def test_a_key_guards_the_api_and_leaves_the_rest_open():
    async with _serving(api_key="secret") as (_, session):
        assert await _post(session, "/v1/completions", COMPLETION) == (401, {"error": "Unauthorized"})
        assert (await _post(session, "/v1/completions", COMPLETION, Authorization="Bearer wrong"))[0] == 401
        assert (await _post(session, "/v1/completions", COMPLETION, Authorization="Bearer secret"))[0] == 200
        assert (await _post(session, "/tokenize", {"prompt": "a"}))[0] == 200
        for path in ("/health", "/metrics"):
            async with session.get(path) as response:
                assert response.status == 200


async def test_the_models_and_the_version_are_told():
    async with _serving() as (_, session):
        async with session.get("/v1/models") as response:
            models = await response.json()
        async with session.get("/version") as response:
            version = await response.json()
    assert (models["data"][0]["id"], models["data"][0]["max_model_len"]) == ("sim", 1024)
    assert "version" in version


async def test_tokenize_tells_pieces_when_asked_and_detokenize_gives_the_text_back():
    async with _serving() as (_, session):
        _, tokens = await _post(session, "/tokenize", {"prompt": "see the sea", "return_token_strs": True})
        _, text = await _post(session, "/detokenize", {"tokens": tokens["tokens"]})
        _, plain = await _post(session, "/tokenize", {"prompt": "see"})
        missing, _ = await _post(session, "/tokenize", {})
    assert tokens["token_strs"] == ["see", "Ġthe", "Ġsea"]
    assert (tokens["count"], tokens["max_model_len"]) == (3, 1024)
    assert text["prompt"] == "see the sea"
    assert plain["token_strs"] is None
    assert missing == 400


async def test_metrics_have_vllms_names_and_count_what_was_answered():
    async with _serving() as (_, session):
        for _ in range(3):
            await _post(session, "/v1/completions", COMPLETION | {"ignore_eos": True})
        async with session.get("/metrics") as response:
            text = await response.text()
    samples = {
        (sample.name, sample.labels.get("finished_reason")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }
    assert samples["vllm:num_requests_running", None] == samples["vllm:num_requests_waiting", None] == 0
    assert samples["vllm:kv_cache_usage_perc", None] == 0
    assert samples["vllm:prompt_tokens_total", None] == 6
    assert samples["vllm:generation_tokens_total", None] == 15
    assert samples["vllm:request_success_total", "length"] == 3
    assert samples["vllm:num_preemptions_total", None] == 0
    assert samples["vllm:time_to_first_token_seconds_count", None] == 3
    assert samples["vllm:inter_token_latency_seconds_count", None] == 12


async def test_a_client_that_disconnects_is_aborted_in_the_engine_at_once():
    async with _serving() as (server, session):
        body = COMPLETION | {"max_tokens": 1000, "ignore_eos": True}
        response = await session.post("/v1/completions", json=body | {"stream": True})
        await response.content.readany()
        assert server.api.engine.running == 1
        response.close()
        with anyio.move_on_after(0.3):
            while server.api.engine.running:  # noqa: ASYNC110 - the engine has no event for it
                await anyio.sleep(0.002)
        assert server.api.engine.running == 0
        assert server.api.engine.statistics.aborted == 1


async def test_the_server_knows_how_many_requests_it_had_at_once():
    async with _serving(faults=SimFaults(response_delay_seconds=0.2)) as (server, session):
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(_post, session, "/v1/completions", COMPLETION)
        async with session.get("/sim/stats?reset=1") as response:
            before = await response.json()
        async with session.get("/sim/stats") as response:
            after = await response.json()
    assert (before["total_requests"], before["max_concurrent"], before["finished"]) == (20, 20, 20)
    assert before["stretch"]["requests"] == before["stretch"]["max"] == 20
    # Each was there for 0.2 s at least: 4 s of requests, over however long the stretch was.
    assert before["stretch"]["mean"] * before["stretch"]["seconds"] >= 4
    assert before["stretch"]["mean"] <= 20
    assert (after["total_requests"], after["stretch"]["requests"]) == (20, 0)
    assert server.api.concurrency.max == 20
