"""The client as a whole: its calls, what they open and close, threads and loops, and every failure by its kind."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import anyio
import pytest
import uvloop
from anyio.from_thread import start_blocking_portal

import loadgen
from loadgen.client import ChatMessage, Image, ModelInfo, RequestError, Text, Usage, VLLMClient
from loadgen.client.client import VLLMClient as Home
from loadgen.sim.api.server import SimServer, open_server
from tests.client.scripted import MODELS, Vllm, answer, scripted
from tests.targets.http.loopback import answering, reply, serving

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    """A simulated vLLM in a thread of its own, so that calls that block can reach it."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(open_server(api_key="sk-key")) as server:
        yield server


def client_of(sim: SimServer, **options) -> VLLMClient:
    return VLLMClient(base_url=sim.url, api_key="sk-key", **options)


def test_the_package_exports_it():
    assert loadgen.VLLMClient is Home


# --- the calls --------------------------------------------------------------------------------------------------------


async def test_a_chat_has_content_usage_and_the_whole_answer():
    async with scripted(Vllm(free=" hello\n").respond) as server, VLLMClient(base_url=server.url) as client:
        response = await client.achat("hi", temperature=0.0, max_tokens=5)
    assert (response.content, response.label, response.finish_reason) == (" hello\n", "hello", "stop")
    assert response.usage == Usage(7, 2, 9)
    assert (response.logprobs, response.label_logprobs) == (None, None)
    assert response.raw["choices"][0]["message"]["content"] == " hello\n"
    assert server.seen[-1].json == {
        "model": "tiny",
        "max_tokens": 5,
        "temperature": 0.0,
        "messages": [{"role": "user", "content": "hi"}],
    }


async def test_log_probabilities_have_texts_ids_and_the_likeliest():
    entries = [
        {"token": "he", "logprob": -1.0, "top_logprobs": [{"token": "he", "logprob": -1.0}]},
        {"token": "<end>", "logprob": -0.5, "top_logprobs": []},
    ]

    def respond(path, body):
        return MODELS if path == "/v1/models" else answer("he", logprobs={"content": entries}, token_ids=[8, 3])

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        response = await client.achat("hi", logprobs=True, top_logprobs=1)
    first, last = response.logprobs
    assert (first.token.text, first.token.id, first.logprob, first.top_logprobs[0].token.text) == ("he", 8, -1.0, "he")
    assert (last.token.id, last.top_logprobs) == (3, ())
    body = server.seen[-1].json
    assert (body["logprobs"], body["top_logprobs"]) == (True, 1)


async def test_an_image_is_sent_and_labels_after_it_cannot_be_scored():
    messages = [ChatMessage("user", (Image(b"\x89PNG\r\n\x1a\n"), Text("what?")))]
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        assert (await client.achat(messages, constrain_labels=["cat", "dog"])).label == "cat"
        sent = server.seen[-1].json["messages"][0]["content"]
        with pytest.raises(ValueError, match="only messages of text"):
            await client.achat(messages, constrain_labels=["cat", "dog"], logprobs=True)
    assert sent[0] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    assert sent[1] == {"type": "text", "text": "what?"}


async def test_an_answer_without_content_has_no_label():
    async with (
        scripted(lambda path, body: MODELS if path == "/v1/models" else answer(None, "length")) as server,
        VLLMClient(base_url=server.url) as client,
    ):
        response = await client.achat("hi")
    assert (response.content, response.label) == (None, None)


async def test_fields_of_the_call_stand_over_those_of_the_client():
    theirs = {"seed": 1, "temperature": 0.3, "max_completion_tokens": 4}
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url, extra_body=theirs) as client:
        await client.achat("hi", temperature=0.9, extra_body={"seed": 2})
    body = server.seen[-1].json
    assert (body["seed"], body["temperature"], body["max_completion_tokens"]) == (2, 0.9, 4)
    assert "max_tokens" not in body


@pytest.mark.parametrize("call", [{"max_tokens": 9}, {"extra_body": {"max_tokens": 9}}], ids=["argument", "body"])
@pytest.mark.parametrize("theirs", [{}, {"max_tokens": 4}, {"max_completion_tokens": 4}], ids=str)
async def test_a_maximum_of_the_call_beats_the_client_s_whichever_its_name(theirs, call):
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url, extra_body=theirs) as client:
        await client.achat("hi", **call)
        maxima = [name for name in server.seen[-1].json if "max" in name]
        assert {name: server.seen[-1].json[name] for name in maxima} == {"max_tokens": 9}
        await client.achat("hi", extra_body={"max_completion_tokens": 3})
        maxima = [name for name in server.seen[-1].json if "max" in name]
        assert {name: server.seen[-1].json[name] for name in maxima} == {"max_completion_tokens": 3}


async def test_the_vectors_come_in_the_order_of_their_texts():
    data = [{"index": 1, "embedding": [0.5, 1]}, {"index": 0, "embedding": [0.25, 2]}]

    def respond(path, body):
        return {"data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3}} if "embed" in path else MODELS

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        response = await client.aembed(["a", "b"])
        assert response.vectors == ((0.25, 2.0), (0.5, 1.0))
        assert response.usage == Usage(3, None, 3)
        with pytest.raises(RequestError, match="2 vectors"):
            await client.aembed("a")
        with pytest.raises(ValueError, match="no text"):
            await client.aembed([])


async def test_models_are_told_and_none_is_an_error():
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        assert await client.amodels() == (ModelInfo("tiny", 1024),)
    async with scripted(lambda path, body: {"data": []}) as server, VLLMClient(base_url=server.url) as client:
        with pytest.raises(RequestError, match="names no model"):
            await client.amodels()


async def test_the_model_is_asked_for_once_and_not_where_it_is_given():
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        await client.achat("hi")
        await client.achat("hi")
        assert [seen.path for seen in server.seen].count("/v1/models") == 1
        server.seen.clear()
        await VLLMClient("mine", server.url).achat("hi")
    assert [(seen.path, seen.json["model"]) for seen in server.seen] == [("/v1/chat/completions", "mine")]


async def test_a_client_tells_its_model_once_it_is_known_and_its_address_without_secrets():
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        assert client.model == "auto"
        await client.achat("hi")
        assert (client.model, client.base_url) == ("tiny", f"{server.url}/v1")
    mine = VLLMClient("mine", "http://me:secret@host/proxy/v1/")
    assert (mine.model, mine.base_url) == ("mine", "http://host/proxy/v1")
    assert repr(mine) == "VLLMClient(model='mine', base_url='http://host/proxy/v1')"


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
async def test_the_address_may_have_v1_or_not(path):
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url + path) as client:
        await client.achat("hi")
        await client.atokenize("hi")
    assert [seen.path for seen in server.seen] == ["/v1/models", "/v1/chat/completions", "/tokenize"]


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": "localhost:8000"},
        {"base_url": "http://a b"},
        {"timeout": 0},
        {"max_tokens": -1},
        {"extra_body": {"stream": True}},
    ],
)
def test_settings_that_cannot_be_are_refused(options):
    with pytest.raises(ValueError, match=r"url|timeout|max_tokens|stream"):
        VLLMClient(**options)


# --- keys -------------------------------------------------------------------------------------------------------------


async def test_the_key_is_sent_and_never_shown(sim):
    client = client_of(sim)
    assert "sk-key" not in repr(client)
    assert (await client.amodels())[0].id
    with pytest.raises(RequestError) as caught:
        await VLLMClient(base_url=sim.url, api_key="sk-wrong").amodels()
    assert (caught.value.kind, caught.value.status, caught.value.words) == ("http_401", 401, "Unauthorized")


async def test_a_key_as_a_file_holds_it_is_the_key(sim):
    assert (await VLLMClient(base_url=sim.url, api_key="sk-key\n").amodels())[0].id


async def test_a_key_that_a_server_says_back_is_cut_out_of_its_words():
    refusal = reply(401, {"error": "sk-secret is no key"})
    async with serving(answering(refusal)) as server:
        with pytest.raises(RequestError, match=r"\*\*\* is no key") as caught:
            await VLLMClient("tiny", server.url, api_key="sk-secret").achat("hi")
    assert "sk-secret" not in str(caught.value)


# --- what is opened and closed ----------------------------------------------------------------------------------------


async def test_an_open_client_keeps_its_connection_and_a_closed_one_has_none():
    async with scripted(Vllm().respond) as server:
        async with VLLMClient("tiny", server.url) as client:
            for _ in range(3):
                await client.achat("hi")
        assert {seen.connection for seen in server.seen} == {0}
        with anyio.fail_after(5):
            await server.hung_up.wait()


async def test_a_client_that_is_not_open_closes_after_each_call():
    async with scripted(Vllm().respond) as server:
        client = VLLMClient("tiny", server.url)
        await client.achat("hi")
        with anyio.fail_after(5):
            await server.hung_up.wait()
        await client.achat("hi")
    assert [seen.connection for seen in server.seen] == [0, 1]


async def test_a_client_is_opened_once_in_a_loop_and_again_after_its_end():
    client = VLLMClient("tiny", "http://127.0.0.1:1")
    async with client:
        with pytest.raises(RuntimeError, match="already"):
            await client.__aenter__()
    async with client:
        pass


def threads() -> set[threading.Thread]:
    return set(threading.enumerate())


async def wait_for(event: asyncio.Event) -> None:
    with anyio.fail_after(5):
        await event.wait()


def ended(since: set[threading.Thread]) -> bool:
    """Whether all threads that were started since have ended, or soon do: a client that is garbage may have been found
    to be so in its own thread, which then ends a moment later."""
    for thread in threads() - since:
        thread.join(5)
    return threads() <= since


def test_without_async_the_calls_are_the_same_and_leave_no_thread(sim):
    before = threads()
    with client_of(sim) as client:
        with pytest.raises(RuntimeError, match="already"), client:
            pass
        assert client.chat("hi", max_tokens=3, extra_body={"ignore_eos": True}).usage.completion_tokens == 3
        assert client.detokenize(client.tokenize("hello world").ids) == "hello world"
        assert client.models()[0].id
    assert threads() <= before


def test_a_call_of_a_client_that_is_not_open_leaves_no_thread_after_the_client(sim):
    before = threads()
    assert client_of(sim).tokenize("hello").count == 1
    gc.collect()
    assert ended(before)


def test_a_client_in_a_cycle_of_garbage_ends_its_thread(sim):
    before = threads()
    client = client_of(sim)
    client.itself = client
    assert client.tokenize("hello").count == 1
    del client
    gc.collect()
    assert ended(before)


def test_calls_of_a_client_that_is_not_open_share_a_thread_and_a_connection():
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(scripted(Vllm().respond)) as server:
        before = threads()
        client = VLLMClient("tiny", server.url)
        for _ in range(3):
            client.chat("hi")
        assert len(threads() - before) == 1
        assert {seen.connection for seen in server.seen} == {0}
        client.close()
        assert threads() <= before
        portal.call(wait_for, server.hung_up)
        client.close()  # once more is no fault
        client.chat("hi")
        assert server.seen[-1].connection == 1
        client.close()
        assert threads() <= before


def test_the_end_of_the_block_ends_a_thread_that_an_earlier_call_started(sim):
    before = threads()
    client = client_of(sim)
    client.tokenize("hello")
    with client:
        client.tokenize("hello")
    assert threads() <= before


def test_threads_that_call_first_at_once_share_one_thread(sim):
    before = threads()
    client = client_of(sim)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: client.tokenize("hello").count, range(16))) == {1}
    assert len(threads() - before) == 1
    client.close()
    assert threads() <= before


def test_a_call_that_another_thread_waits_for_ends_when_the_client_is_closed():
    arrived = threading.Event()

    async def stay_silent(seen, writer):
        arrived.set()

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(stay_silent)) as server:
        client = VLLMClient("tiny", server.url)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.chat, "hi")
            assert arrived.wait(5)
            client.close()
            with pytest.raises(RequestError, match="closed meanwhile"):
                waiting.result(5)


def test_an_interpreter_ends_though_a_client_is_still_there(sim):
    code = f"import loadgen; client = loadgen.VLLMClient(base_url={sim.url!r}, api_key='sk-key')\n"
    code += "print(client.tokenize('hello').count)"
    ran = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_starts_a_thread_of_its_own(sim):
    code = f"""if True:
        import os, loadgen
        client = loadgen.VLLMClient(base_url={sim.url!r}, api_key='sk-key')
        client.tokenize('hello')
        child = os.fork()
        print(client.tokenize('hello').count, flush=True)
        if child:
            raise SystemExit(os.waitpid(child, 0)[1])
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stdout) == (0, "1\n1\n"), ran.stderr


def test_many_threads_share_one_client(sim):
    with client_of(sim) as client, ThreadPoolExecutor(8) as pool:
        texts = [f"hello {n}" for n in range(40)]
        assert list(pool.map(lambda text: client.detokenize(client.tokenize(text).ids), texts)) == texts


@pytest.mark.parametrize("held", [False, True], ids=["closed", "open"])
async def test_a_call_that_blocks_works_inside_a_running_loop(sim, held):
    with ExitStack() as stack:
        client = client_of(sim)
        if held:
            stack.enter_context(client)
        blocked = client.tokenize("hello world")
        assert blocked == await client.atokenize("hello world")


async def test_one_client_may_be_open_in_a_loop_and_in_its_own_thread(sim):
    async with client_of(sim) as client:
        with client:
            assert client.tokenize("hello") == await client.atokenize("hello")
        assert (await client.atokenize("hello")).count == 1


def test_a_client_serves_one_loop_after_another(sim):
    client = client_of(sim)

    async def count() -> int:
        async with client:
            return (await client.atokenize("hello world")).count

    assert [asyncio.run(count()), uvloop.run(count()), asyncio.run(count())] == [2, 2, 2]


def test_a_failure_comes_out_of_a_call_that_blocks_as_it_is(sim):
    with pytest.raises(RequestError) as caught, client_of(sim, model="none") as client:
        client.chat("hi")
    assert caught.value.kind == "http_404"
    with pytest.raises(ValueError, match="no messages"):
        client_of(sim).chat([])
