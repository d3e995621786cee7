import asyncio
import ssl
import subprocess
import time

import anyio
import pytest
from yarl import URL

from loadgen.clock import MonotonicClock
from loadgen.measure.outcome import Exchange
from loadgen.targets.http.transport import TransportError, open_transport
from loadgen.units import NS_PER_MS, NS_PER_SECOND, Duration
from tests.targets.http.loopback import STREAM_END, STREAM_HEAD, answering, chunk, refused_port, reply, serving

pytestmark = pytest.mark.anyio

OK = reply(200, b"fine", "text/plain")


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


def transport(connect_timeout=5.0, verify_tls=True, clock=None):
    timeout = Duration(round(connect_timeout * NS_PER_SECOND))
    return open_transport(timeout, verify_tls, clock or MonotonicClock())


async def fetch(sender, url, exchange=None, method="POST"):
    """Send a request and read its answer to the end: status, body."""
    answer = await sender.open(method, URL(url), {"X-Header": "value"}, b"{}", exchange or Exchange())
    try:
        body = b""
        while data := (await answer.read())[1]:
            body += data
    finally:
        answer.close()
    return answer.status, body


async def failure(url, **options):
    async with transport(**options) as sender:
        with pytest.raises(TransportError) as raised:
            await fetch(sender, url)
    return raised.value


async def test_a_request_goes_out_as_given():
    async with serving(answering(OK)) as server, transport() as sender:
        assert await fetch(sender, f"{server.url}/path") == (200, b"fine")
    [seen] = server.seen
    assert (seen.method, seen.path, seen.body) == ("POST", "/path", b"{}")
    assert seen.headers["x-header"] == "value"
    assert "accept-encoding" not in seen.headers


async def test_only_a_new_connection_has_a_connect_time():
    async with serving(answering(OK)) as server, transport() as sender:
        first, second = Exchange(), Exchange()
        await fetch(sender, server.url, first)
        await fetch(sender, server.url, second)
    assert first.connect_ns > 0
    assert second.connect_ns is None
    assert [seen.connection for seen in server.seen] == [0, 0]


async def test_any_status_is_an_answer():
    async with serving(answering(reply(503, b"", extra="Retry-After: 1\r\n"))) as server, transport() as sender:
        assert await fetch(sender, server.url) == (503, b"")


async def test_a_redirect_is_not_followed():
    async with serving(answering(reply(307, b"", extra="Location: /there\r\n"))) as server, transport() as sender:
        assert (await fetch(sender, server.url))[0] == 307
    assert len(server.seen) == 1


async def test_an_instant_is_that_of_the_arrival_and_not_of_the_reading():
    parts = answering(STREAM_HEAD + chunk(b"a"), 0.02, chunk(b"b"), 0.05, chunk(b"c") + STREAM_END)
    async with serving(parts) as server, transport() as sender:
        answer = await sender.open("POST", URL(server.url), {}, b"", Exchange())
        first_ns, first = await answer.read()
        assert answer.headers_ns == first_ns
        await anyio.sleep(0.05)
        late_ns = time.monotonic_ns()
        second_ns, second = await answer.read()
        third_ns, third = await answer.read()
        answer.close()
    assert (first, second, third) == (b"a", b"b", b"c")
    assert first_ns < second_ns < third_ns
    assert late_ns - second_ns > 10 * NS_PER_MS


async def test_an_instant_stays_that_of_its_own_request_when_the_connection_serves_the_next_one():
    # The whole first answer has come, so that its connection is free, and is in use again, before its reader looks.
    async with serving(answering(STREAM_HEAD + chunk(b"a") + STREAM_END)) as server, transport() as sender:
        first = await sender.open("POST", URL(server.url), {}, b"", Exchange())
        await anyio.sleep(0.05)
        between_ns = time.monotonic_ns()
        second = await sender.open("POST", URL(server.url), {}, b"", Exchange())
        first_ns, data = await first.read()
        second_ns, _ = await second.read()
        first.close()
        second.close()
    assert [seen.connection for seen in server.seen] == [0, 0]
    assert data == b"a"
    assert 0 < first_ns < between_ns < second_ns


async def test_a_kept_connection_that_the_server_closed_is_no_failure():
    # The server closes the first connection without a word when it is used again, as if it had been idle too long.
    async def respond(seen, writer):
        if seen.connection == 0 and len(server.seen) > 1:
            writer.close()
        else:
            writer.write(OK)

    async with serving(respond) as server, transport() as sender:
        await fetch(sender, server.url)
        exchange = Exchange()
        assert await fetch(sender, server.url, exchange) == (200, b"fine")
    assert [seen.connection for seen in server.seen] == [0, 0, 1]
    assert exchange.connect_ns is not None


async def test_a_kept_connection_is_tried_again_only_once():
    async def respond(seen, writer):
        if len(server.seen) > 1:
            writer.close()
        else:
            writer.write(OK)

    async with serving(respond) as server, transport() as sender:
        await fetch(sender, server.url)
        with pytest.raises(TransportError) as raised:
            await fetch(sender, server.url)
    assert raised.value.kind == "disconnect"
    assert len(server.seen) == 3


async def test_a_kept_connection_that_breaks_within_an_answer_is_a_failure():
    async def respond(seen, writer):
        if len(server.seen) > 1:
            writer.write(b"HTTP/1.1 200")
            writer.close()
        else:
            writer.write(OK)

    async with serving(respond) as server, transport() as sender:
        await fetch(sender, server.url)
        with pytest.raises(TransportError) as raised:
            await fetch(sender, server.url)
    assert raised.value.kind in ("disconnect", "protocol")
    assert len(server.seen) == 2


async def test_a_new_connection_that_is_closed_without_an_answer_is_a_disconnect():
    async with serving(answering("close")) as server:
        assert (await failure(server.url)).kind == "disconnect"
    assert len(server.seen) == 1


async def test_nobody_listens():
    with refused_port() as port:
        error = await failure(f"http://127.0.0.1:{port}")
    assert error.kind == "connect"
    assert f"127.0.0.1:{port}" in str(error)
    assert "refused" in str(error)


async def test_no_such_host():
    error = await failure("http://nonexistent.invalid")
    assert error.kind == "dns"
    assert str(error).startswith("nonexistent.invalid: ")


async def test_a_server_that_resets():
    async with serving(answering("reset")) as server:
        assert (await failure(server.url)).kind == "disconnect"


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_an_answer_that_breaks_off(end):
    async with serving(answering(STREAM_HEAD + chunk(b"a"), 0.01, end)) as server, transport() as sender:
        answer = await sender.open("POST", URL(server.url), {}, b"", Exchange())
        assert (await answer.read())[1] == b"a"
        with pytest.raises(TransportError) as raised:
            await answer.read()
        answer.close()
    assert raised.value.kind == "disconnect"


async def test_an_answer_shorter_than_it_says():
    async with serving(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfine", 0.01, "close")) as server:
        assert (await failure(server.url)).kind == "disconnect"


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"])
async def test_what_answers_is_no_http(answer):
    async with serving(answering(answer)) as server:
        assert (await failure(server.url)).kind == "protocol"


async def test_a_chunk_of_no_length_is_no_http():
    async with serving(answering(STREAM_HEAD + b"xyz\r\nabc\r\n")) as server:
        assert (await failure(server.url)).kind == "protocol"


async def test_a_connection_that_takes_too_long():
    # A handshake that is never answered: the socket is accepted, and TLS waits for it.
    async with serving(answering()) as server:
        error = await failure(f"https://127.0.0.1:{server.port}", connect_timeout=0.1)
    assert error.kind == "connect_timeout"


async def test_closing_an_unfinished_answer_hangs_up():
    async with serving(answering(STREAM_HEAD + chunk(b"a"), "hang")) as server, transport() as sender:
        answer = await sender.open("POST", URL(server.url), {}, b"", Exchange())
        await answer.read()
        answer.close()
        with anyio.fail_after(2):
            await server.hung_up.wait()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A server's context with a certificate that only its key signed."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return context


async def test_a_certificate_that_nobody_vouches_for(certificate):
    async with serving(answering(OK), certificate) as server:
        error = await failure(server.url)
    assert error.kind == "tls"
    assert "certificate" in str(error).lower()


async def test_a_certificate_that_is_not_to_be_verified(certificate):
    async with serving(answering(OK), certificate) as server, transport(verify_tls=False) as sender:
        assert await fetch(sender, server.url) == (200, b"fine")


async def test_tls_to_a_server_without():
    # This server speaks first, as one that does not understand what came would.
    async def respond(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        error = await failure(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert error.kind == "tls"
