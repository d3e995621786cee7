"""Every failure of a call is an error with its kind, the status and the server's words."""

import json
import pickle
import ssl
import subprocess
from pathlib import Path

import anyio
import pytest

from loadgen.client import RequestError, VLLMClient
from tests.client.scripted import answer
from tests.targets.http.loopback import (
    DONE,
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
)

pytestmark = pytest.mark.anyio

HTML = b"<html><head><title>502 Bad Gateway</title></head></html>"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A server's context with a certificate that only its own key signed."""
    folder: Path = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return context


STREAMED = STREAM_HEAD + chunk(token("a"))


@pytest.mark.parametrize(
    ("parts", "kind", "status", "words"),
    [
        ([reply(400, {"error": {"message": "too long", "param": "input_tokens"}})], "http_400", 400, "too long"),
        ([reply(401, {"error": "Unauthorized"})], "http_401", 401, "Unauthorized"),
        ([reply(404, {"detail": "Not Found"})], "http_404", 404, "Not Found"),
        ([reply(429, {"error": {"message": "slow down"}})], "http_429", 429, "slow down"),
        ([reply(503, b"")], "http_503", 503, "without a body"),
        ([reply(502, HTML, "text/html")], "http_502", 502, "502 Bad Gateway"),
        ([reply(200, HTML, "text/html")], "protocol", 200, "text/html instead of an answer: 502 Bad Gateway"),
        ([reply(200, b"")], "protocol", 200, "truncated"),
        ([reply(200, b"[]")], "protocol", 200, "array"),
        ([reply(200, {"choices": []})], "protocol", 200, "without choices"),
        ([reply(200, {"choices": [{"text": "a"}]})], "protocol", 200, "missing required field `message`"),
        ([reply(200, {"error": {"message": "it died"}})], "server_error", 200, "it died"),
        ([reply(200, answer("a", "abort"))], "abort", 200, "aborted"),
        ([STREAMED + chunk(event({"error": {"message": "it died"}}), DONE) + STREAM_END], "server_error", 200, "died"),
        ([STREAMED + STREAM_END], "disconnect", 200, "before its end marker"),
        ([STREAMED + chunk(last_token("b"), DONE) + STREAM_END], "protocol", 200, "a stream, where a whole answer"),
        (["close"], "disconnect", None, "without an answer"),
        (["reset"], "disconnect", None, ""),
        ([b"SSH-2.0\r\n\r\n"], "protocol", None, ""),
        (["hang"], "timeout", None, "timeout = 0.2 s"),
        ([STREAM_HEAD, "hang"], "timeout", 200, "timeout = 0.2 s"),
    ],
)
async def test_a_failure_is_an_error_with_kind_status_and_words(parts, kind, status, words):
    limit = 0.2 if kind == "timeout" else 30.0
    async with serving(answering(*parts)) as server, VLLMClient("tiny", server.url, timeout=limit) as client:
        with pytest.raises(RequestError) as caught:
            await client.achat("hi")
    assert (caught.value.kind, caught.value.status) == (kind, status)
    assert words in caught.value.words
    assert caught.value.asked == f"POST {server.url}/v1/chat/completions"


async def test_a_server_that_is_not_there_is_told():
    with refused_port() as port, pytest.raises(RequestError) as caught:
        await VLLMClient("tiny", f"http://127.0.0.1:{port}").achat("hi")
    assert (caught.value.kind, caught.value.status) == ("connect", None)
    assert "refused" in caught.value.words


async def test_a_host_without_an_address_is_told():
    with pytest.raises(RequestError) as caught:
        await VLLMClient("tiny", "http://no-such-host.invalid").achat("hi")
    assert caught.value.kind == "dns"


async def test_a_certificate_that_nobody_vouches_for_is_told(certificate):
    async with serving(answering("close"), tls=certificate) as server:
        with pytest.raises(RequestError) as caught:
            await VLLMClient("tiny", server.url).achat("hi")
    assert caught.value.kind == "tls"


@pytest.mark.parametrize(
    ("refusal", "kind", "words"),
    [
        (reply(500, {"error": {"message": "it died"}}), "http_500", "it died"),
        (reply(200, {"error": {"message": "it died"}}), "server_error", "it died"),
        (reply(200, b""), "protocol", "truncated"),
        (reply(200, {}), "protocol", ""),
    ],
    ids=["status", "error inside", "empty body", "empty object"],
)
@pytest.mark.parametrize("call", ["amodels", "atokenize", "adetokenize", "aembed", "ascore"])
async def test_every_call_tells_a_failure_and_none_gives_nothing(call, refusal, kind, words):
    arguments = {"amodels": [], "atokenize": ["a"], "adetokenize": [[1]], "aembed": ["a"], "ascore": ["a", "b"]}[call]
    async with serving(answering(refusal)) as server, VLLMClient("tiny", server.url) as client:
        with pytest.raises(RequestError) as caught:
            await getattr(client, call)(*arguments)
    assert (caught.value.kind, caught.value.status) == (kind, 500 if kind == "http_500" else 200)
    assert words in caught.value.words


def test_an_error_survives_a_pickle():
    error = RequestError("POST http://host/v1", "http_500", "it died", 500)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.asked, copy.kind, copy.words, copy.status) == ("POST http://host/v1", "http_500", "it died", 500)
    assert str(copy) == "POST http://host/v1: http_500: it died"


async def test_a_call_that_is_cancelled_hangs_up():
    async with serving(answering("hang")) as server, VLLMClient("tiny", server.url) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.achat("hi"))
            with anyio.fail_after(5):
                while not server.seen:
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(5):
            await server.hung_up.wait()
    assert json.loads(server.seen[0].body)["model"] == "tiny"
