import json
import logging
from itertools import pairwise

import anyio
import pytest

from loadgen.clock import MonotonicClock
from loadgen.errors import TargetError
from loadgen.measure.outcome import Exchange
from loadgen.profile import HttpTarget, Workload
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.session import ServerUrl, open_http
from loadgen.units import NS_PER_MS
from loadgen.workload.prompt import PromptError
from loadgen.workload.request import Image, Message, Request, Text
from tests.targets.http.loopback import (
    DONE,
    ROLE,
    STREAM_END,
    STREAM_HEAD,
    answering,
    chunk,
    event,
    last_token,
    refused_port,
    reply,
    serving,
    token,
    usage,
)

pytestmark = pytest.mark.anyio

HELLO = Request(index=3, messages=(Message("user", "hello"),), output_tokens=4)
SECRET = "sk-not-to-be-seen"
ANSWER = STREAM_HEAD + chunk(ROLE, token("a")) + chunk(last_token("b")) + chunk(usage(7, 2)) + chunk(DONE) + STREAM_END


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


def session(url="http://127.0.0.1:1", workload=None, info=None, **target):
    info = info or TargetInfo(kind="http", model="tiny")
    return open_http(HttpTarget(url=url, **target), workload or Workload(), info, MonotonicClock())


async def exchanged(*parts, request=HELLO, workload=None, **target):
    """The exchange of one request with a server that answers these parts."""
    exchange = Exchange()
    async with serving(answering(*parts)) as server, session(server.url, workload, **target) as sender:
        await sender.send(sender.prepare(request), exchange)
    return exchange


async def body_of(request=HELLO, workload=None, info=None, **target):
    async with session(workload=workload, info=info, **target) as sender:
        return json.loads(sender.prepare(request).body)


# --- what is sent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("http://host:8000/v1", "http://host:8000"),
        ("http://host:8000/v1/", "http://host:8000"),
        ("http://host:8000/v1/chat/completions", "http://host:8000"),
        ("http://host/v1/completions", "http://host"),
        ("https://host/proxy/llm/v1", "https://host/proxy/llm"),
        ("http://user:word@host/v1", "http://host"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_a_server_is_named_in_many_ways(given, root):
    server = ServerUrl(given)
    assert str(server) == root
    assert str(server.api("models")) == f"{root}/v1/models"
    assert str(server.at("health")) == f"{root}/health"


@pytest.mark.parametrize("given", ["http://", "http://host:99999", "http://[::1"])
def test_what_is_no_address_is_refused(given):
    with pytest.raises(TargetError, match=r"target\.url"):
        ServerUrl(given)


async def test_a_chat_asks_for_a_stream_with_usage_and_an_exact_length():
    assert await body_of() == {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "min_tokens": 4,
        "ignore_eos": True,
    }


@pytest.mark.parametrize("prompt", ["hello", (5, 6, 7)])
async def test_a_completion_has_a_prompt_of_text_or_token_ids(prompt):
    body = await body_of(Request(index=0, prompt=prompt), Workload(kind="completion"), stream=False)
    assert body == {"model": "tiny", "prompt": prompt if isinstance(prompt, str) else list(prompt)}


async def test_a_chat_with_an_image_has_typed_blocks():
    png = b"\x89PNG\r\n\x1a\n"
    messages = (Message("system", "be brief"), Message("user", (Image(png), Text("what?"))))
    body = await body_of(Request(index=0, messages=messages))
    url = "data:image/png;base64,iVBORw0KGgo="
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}],
        },
    ]


async def test_a_request_with_an_image_that_cannot_be_read_is_not_prepared():
    request = Request(index=0, messages=(Message("user", (Image("no.png"),)),))
    with pytest.raises(PromptError, match=r"image 1 of 1: there is no file 'no\.png'"):
        await body_of(request)


async def test_fields_of_the_workload_take_the_place_of_ours():
    theirs = {"temperature": 0.5, "max_tokens": 9, "stream_options": {"include_usage": False}, "model": "other"}
    body = await body_of(workload=Workload(body=theirs))
    assert {name: body[name] for name in theirs} == theirs
    assert "min_tokens" not in body  # it could lie above their maximum


async def test_max_completion_tokens_takes_the_place_of_max_tokens():
    body = await body_of(workload=Workload(body={"max_completion_tokens": 9}))
    assert not {"max_tokens", "min_tokens"} & set(body)


async def test_a_body_names_each_field_once():
    workload = Workload(body={"messages": [], "max_tokens": 1, "ignore_eos": False, "stream": False})
    async with session(workload=workload) as sender:
        pairs = json.loads(sender.prepare(HELLO).body, object_pairs_hook=list)
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names))
    assert "stream_options" not in names


async def test_omitted_fields_and_an_unknown_model_are_left_out():
    info = TargetInfo(kind="http", model=None, omitted_fields=("ignore_eos", "stream_options"))
    body = await body_of(info=info)
    assert set(body) == {"stream", "messages", "max_tokens", "min_tokens"}


@pytest.mark.parametrize(("kind", "path"), [("chat", "/v1/chat/completions"), ("completion", "/v1/completions")])
async def test_a_request_goes_to_its_kind_s_endpoint(kind, path):
    async with serving(answering(ANSWER)) as server, session(f"{server.url}/v1", Workload(kind=kind)) as sender:
        await sender.send(sender.prepare(HELLO), Exchange())
    assert (server.seen[0].method, server.seen[0].path) == ("POST", path)


async def test_headers_are_ours_and_theirs(monkeypatch):
    monkeypatch.setenv("THE_KEY", SECRET)
    headers = {"X-Team": "blue", "accept": "text/event-stream"}
    key = {"api_key_env": "THE_KEY", "headers": headers}
    async with serving(answering(ANSWER)) as server, session(server.url, **key) as sender:
        for index in range(2):
            await sender.send(sender.prepare(Request(index=index, prompt="a")), Exchange())
    first, second = (seen.headers for seen in server.seen)
    assert first["authorization"] == f"Bearer {SECRET}"
    assert first["x-team"] == "blue"
    assert first["accept"] == "text/event-stream"
    assert first["accept-encoding"] == "identity"
    assert first["content-type"] == "application/json"
    assert first["x-request-id"] != second["x-request-id"]


async def test_a_user_in_the_address_is_authorization():
    async with serving(answering(ANSWER)) as server, session(server.url.replace("//", "//me:word@")) as sender:
        await sender.send(sender.prepare(HELLO), Exchange())
    assert server.seen[0].headers["authorization"] == "Basic bWU6d29yZA=="


async def test_a_key_that_the_environment_lacks_is_told(monkeypatch):
    monkeypatch.delenv("THE_KEY", raising=False)
    with pytest.raises(TargetError, match="THE_KEY"):
        async with session(api_key_env="THE_KEY"):
            pass


# --- what is seen -----------------------------------------------------------------------------------------------------


async def test_a_stream_is_followed_to_its_end():
    before_ns = MonotonicClock().now_ns()
    first, second, third = chunk(ROLE, token("a")), chunk(token("")), chunk(last_token("b"))
    end = (chunk(usage(7, 3), DONE), STREAM_END)
    exchange = await exchanged(STREAM_HEAD, 0.02, first, 0.02, second, 0.02, third, *end)
    assert exchange.failure is None
    assert exchange.streamed
    assert exchange.status == 200
    assert (exchange.prompt_tokens, exchange.output_tokens, exchange.finish_reason) == (7, 3, "length")
    assert exchange.events == 6
    assert 3 <= exchange.reads <= 5
    assert exchange.connect_ns > 0
    assert len(exchange.chunks_ns) == 3
    assert exchange.first_content_ns == exchange.chunks_ns[0]
    instants = [before_ns, exchange.headers_ns, *exchange.chunks_ns, exchange.end_ns, MonotonicClock().now_ns()]
    assert instants == sorted(instants)
    assert all(late - early > 10 * NS_PER_MS for early, late in pairwise(exchange.chunks_ns))


async def test_chunks_of_one_read_share_its_instant():
    exchange = await exchanged(ANSWER)
    assert exchange.headers_ns == exchange.chunks_ns[0] == exchange.chunks_ns[1] == exchange.end_ns
    assert exchange.reads == 1


async def test_the_bytes_of_a_stream_may_be_split_anywhere():
    body = ROLE + token('{"a": "é"}') + last_token("\r\n") + usage(7, 2) + DONE
    exchange = await exchanged(STREAM_HEAD, *(chunk(body[at : at + 7]) for at in range(0, len(body), 7)), STREAM_END)
    assert (exchange.failure, len(exchange.chunks_ns), exchange.output_tokens) == (None, 2, 2)


async def test_a_stream_with_crlf_is_read_as_well():
    body = (ROLE + token("a") + last_token("b") + DONE).replace(b"\n", b"\r\n")
    exchange = await exchanged(STREAM_HEAD, chunk(body), STREAM_END)
    assert (exchange.failure, len(exchange.chunks_ns), exchange.output_tokens) == (None, 2, None)


async def test_a_finish_reason_ends_a_stream_without_an_end_marker():
    exchange = await exchanged(STREAM_HEAD, chunk(token("a"), last_token("b")), STREAM_END)
    assert exchange.failure is None


async def test_a_server_that_keeps_the_stream_open_after_its_end_is_not_waited_for():
    with anyio.fail_after(2):
        exchange = await exchanged(STREAM_HEAD, chunk(token("a"), last_token("b"), DONE), "hang")
    assert exchange.failure is None
    assert exchange.end_ns == exchange.chunks_ns[-1]


async def test_a_connection_is_kept_after_a_stream():
    async with serving(answering(STREAM_HEAD + chunk(DONE), 0.01, STREAM_END)) as server, session(server.url) as sender:
        for index in range(3):
            await sender.send(sender.prepare(Request(index=index, prompt="a")), Exchange())
    assert [seen.connection for seen in server.seen] == [0, 0, 0]


WHOLE = {"choices": [{"finish_reason": "length", "message": {}}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


@pytest.mark.parametrize("stream", [False, True], ids=["as asked", "although a stream was asked for"])
async def test_a_whole_answer_has_no_chunks(stream):
    exchange = await exchanged(reply(200, WHOLE), stream=stream)
    assert exchange.failure is None
    assert not exchange.streamed
    assert (exchange.prompt_tokens, exchange.output_tokens, exchange.finish_reason) == (7, 2, "length")
    assert not exchange.chunks_ns
    assert exchange.first_content_ns is None
    assert exchange.end_ns >= exchange.headers_ns


async def test_a_stream_that_was_not_asked_for_is_followed():
    exchange = await exchanged(ANSWER, stream=False)
    assert exchange.streamed
    assert len(exchange.chunks_ns) == 2


# --- what fails -------------------------------------------------------------------------------------------------------

HTML = b"<html><head><title>502 Bad Gateway</title></head></html>"
TOKENS = STREAM_HEAD + chunk(ROLE, token("a"), token("b"))


@pytest.mark.parametrize(
    ("parts", "failure", "message"),
    [
        ([reply(401, {"error": "Unauthorized"})], "http_401", "Unauthorized"),
        ([reply(404, {"error": {"message": "no model", "param": "model"}})], "http_404", "no model"),
        ([reply(404, {"detail": "Not Found"})], "http_404", "Not Found"),
        ([reply(429, {"error": {"message": "slow down"}})], "http_429", "slow down"),
        ([reply(500, b"Internal\nServer Error", "text/plain")], "http_500", "Internal Server Error"),
        ([reply(502, HTML, "text/html")], "http_502", "502 Bad Gateway"),
        ([reply(503, b"")], "http_503", "503 Reason, without a body"),
        ([reply(307, b"", extra="Location: /there\r\n")], "http_307", "307 Reason, without a body (to /there)"),
        ([reply(200, HTML, "text/html")], "protocol", "text/html instead of an answer: 502 Bad Gateway"),
        ([reply(200, b"{", "application/json")], "protocol", "Input data was truncated: {"),
        ([reply(200, b"")], "protocol", "Input data was truncated:"),
        ([TOKENS + STREAM_END], "disconnect", "the stream ended before its end marker, after 3 events"),
        (
            [TOKENS + chunk(b"data: {") + STREAM_END],
            "disconnect",
            "the stream ended in the middle of an event, after 3",
        ),
        ([TOKENS + chunk(event({"error": {"message": "it died"}}), DONE) + STREAM_END], "server_error", "it died"),
        ([TOKENS + chunk(last_token("c", "abort"), DONE) + STREAM_END], "abort", "the server aborted the request"),
        ([TOKENS + chunk(b"data: {]\n\n"), "hang"], "protocol", "JSON is malformed: object keys must be strings"),
        (["close"], "disconnect", "the server closed the connection without an answer"),
        ([b"SSH-2.0\r\n\r\n"], "protocol", ""),
    ],
)
async def test_a_failure_has_a_kind_and_the_server_s_words(parts, failure, message):
    exchange = await exchanged(*parts)
    assert exchange.failure == failure
    assert exchange.message.startswith(message)
    assert "\n" not in exchange.message
    assert exchange.end_ns is not None


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_stream_that_breaks_leaves_what_came(end):
    exchange = await exchanged(TOKENS, 0.01, end)
    assert exchange.failure == "disconnect"
    assert len(exchange.chunks_ns) == 2
    assert exchange.end_ns > exchange.chunks_ns[-1]


async def test_a_whole_answer_that_breaks_is_a_disconnect():
    exchange = await exchanged(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{", 0.01, "close"
    )
    assert (exchange.failure, exchange.status) == ("disconnect", 200)


async def test_nobody_listens():
    exchange = Exchange()
    with refused_port() as port:
        async with session(f"http://127.0.0.1:{port}") as sender:
            await sender.send(sender.prepare(HELLO), exchange)
    assert exchange.failure == "connect"
    assert (exchange.status, exchange.headers_ns, exchange.connect_ns) == (None, None, None)
    assert exchange.end_ns is not None


async def test_cancellation_leaves_what_came_and_hangs_up():
    exchange = Exchange()
    async with serving(answering(TOKENS, "hang")) as server, session(server.url) as sender:
        with anyio.move_on_after(0.1) as scope:
            await sender.send(sender.prepare(HELLO), exchange)
        assert scope.cancelled_caught
        with anyio.fail_after(2):
            await server.hung_up.wait()
    assert len(exchange.chunks_ns) == 2
    assert exchange.headers_ns is not None
    assert (exchange.end_ns, exchange.failure) == (None, None)


async def test_cancellation_before_any_answer_hangs_up():
    exchange = Exchange()
    async with serving(answering("hang")) as server, session(server.url) as sender:
        with anyio.move_on_after(0.1):
            await sender.send(sender.prepare(HELLO), exchange)
        with anyio.fail_after(2):
            await server.hung_up.wait()
    assert (exchange.headers_ns, exchange.end_ns, exchange.failure) == (None, None, None)


async def test_many_requests_at_once_do_not_wait_for_each_other():
    async with serving(answering(STREAM_HEAD, 0.3, chunk(last_token("a"), DONE) + STREAM_END)) as server:
        exchanges = [Exchange() for _ in range(150)]
        async with session(server.url) as sender:
            with anyio.fail_after(3):
                async with anyio.create_task_group() as tasks:
                    for index, exchange in enumerate(exchanges):
                        tasks.start_soon(sender.send, sender.prepare(Request(index=index, prompt="a")), exchange)
    assert {exchange.failure for exchange in exchanges} == {None}
    assert len({seen.connection for seen in server.seen}) == 150


async def test_a_secret_is_seen_nowhere(monkeypatch, caplog):
    monkeypatch.setenv("THE_KEY", SECRET)
    caplog.set_level(logging.DEBUG)
    echo = {"error": {"message": f"Incorrect API key provided: {SECRET}"}}
    shown = []
    secrets = {"api_key_env": "THE_KEY", "headers": {"X-Api-Key": SECRET[3:]}}
    for parts in ([reply(401, echo)], [STREAM_HEAD + chunk(event(echo)) + STREAM_END], [reply(200, echo)]):
        async with serving(answering(*parts)) as server, session(server.url, **secrets) as sender:
            exchange = Exchange()
            prepared = sender.prepare(HELLO)
            await sender.send(prepared, exchange)
            shown += [repr(sender), repr(prepared), repr(exchange)]
        assert exchange.message == "Incorrect API key provided: ***"
    assert SECRET[3:] not in "".join(shown) + caplog.text


# --- answers without measure ------------------------------------------------------------------------------------------


async def test_an_event_without_an_end_fails_before_it_fills_the_memory():
    exchange = await exchanged(STREAM_HEAD, *[chunk(b"data: " + b"x" * (1 << 20))] * 6)
    assert exchange.failure == "protocol"
    assert "an event of more than" in exchange.message


@pytest.mark.parametrize("count", [-1, 2**31 + 1, 2**63 - 1, 10**20])
async def test_a_count_of_tokens_that_is_none_fails_the_request(count):
    exchange = await exchanged(
        STREAM_HEAD, chunk(ROLE, token("a")), chunk(last_token("b")), chunk(usage(7, count)), chunk(DONE), STREAM_END
    )
    assert exchange.failure == "protocol"
    assert exchange.output_tokens is None
