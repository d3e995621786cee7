"""The seam for speed: a request's bytes out, `(instant, bytes)` of its answer in. It knows sockets, and no API.

It stands on aiohttp, and so on asyncio or uvloop. Instants are taken when the event loop hands over what one read of
the socket gave, before it is parsed and before any task wakes up.
"""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from loadgen.clock import Clock, MonotonicClock
from loadgen.measure.outcome import Exchange
from loadgen.targets.http.error_body import one_line
from loadgen.units import NS_PER_SECOND, Duration

_READ_BUFFER: Final = 1 << 20
"""Bytes that one connection may hold unread; aiohttp's own 64 kB stop and start the socket at long contexts."""
_KEEPALIVE_SECONDS: Final = 4.0
"""Under the 5 s after which vLLM's server closes an idle connection, so that the client closes first."""
_DNS_TTL_SECONDS: Final = 60
_STALE_NS: Final = NS_PER_SECOND
"""A kept connection that breaks later than this after a send was not closed before the send."""


class TransportError(Exception):
    """A request that got no whole answer. `kind` is the kind of failure of an `Exchange`, the text its message,
    one line."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(one_line(message))
        self.kind = kind


class Answer:
    """An answer whose headers have come. `close` it, whatever happens."""

    def __init__(self, response: aiohttp.ClientResponse, call: "_Call") -> None:
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: Mapping[str, str] = response.headers
        self.headers_ns = call.instant_ns
        self._response = response
        self._call = call
        self._content = response.content

    async def read(self) -> tuple[int, bytes]:
        """Wait for the next bytes of the body and return all that are there, with the instant of the read that
        brought the last of them; `b""` at the body's end.

        Raises:
            TransportError: the connection broke before the body's end.
        """
        try:
            data = await self._content.readany()
        except Exception as error:
            raise _transport_error(error) from error
        return self._call.instant_ns, data

    @property
    def at_end(self) -> bool:
        """Whether the body's end is known to have come, all of it having been read."""
        return self._content.at_eof()

    def close(self) -> None:
        """Give the connection back, or cut it where the body was not read to its end: then the server sees it go."""
        self._response.close()


class Transport:
    """The connections to one server: as many as there are requests in flight, kept open between requests.

    A kept connection may have been closed by the server at the very moment it is used again. Where that is so, no byte
    of an answer having come within a second of the send, the request is sent once more over a new connection. This is
    part of the one request, told nowhere; what breaks later, or on a new connection, is the server's failure.
    """

    def __init__(self, connect_timeout: Duration, verify_tls: bool, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._verify_tls = verify_tls
        self._limits = aiohttp.ClientTimeout(total=None, connect=connect_timeout.seconds)
        self._kept = _session(_Connector(now_ns, verify_tls, keepalive_timeout=_KEEPALIVE_SECONDS), self._limits)
        self._fresh: aiohttp.ClientSession | None = None
        """Made when it is first needed, which it hardly ever is."""

    async def open(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None, exchange: Exchange
    ) -> Answer:
        """Send a request and wait for the headers of its answer, which any status may have.

        Sets `exchange.connect_ns` where a connection had to be made.

        Raises:
            TransportError: no connection, or no answer over it.
        """
        call = _Call()
        sent_ns = self._now_ns()
        try:
            answer = await _open(self._kept, call, method, url, headers, body)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, ConnectionError) as error:
            exchange.connect_ns = call.connect_ns
            if not call.was_kept or call.instant_ns or self._now_ns() - sent_ns > _STALE_NS:
                raise _transport_error(error) from error
            call = _Call()
            try:
                answer = await _open(self._always_new(), call, method, url, headers, body)
            except Exception as second:
                raise _transport_error(second) from second
        except Exception as error:
            exchange.connect_ns = call.connect_ns
            raise _transport_error(error) from error
        exchange.connect_ns = call.connect_ns
        return answer

    def _always_new(self) -> aiohttp.ClientSession:
        if self._fresh is None:
            self._fresh = _session(_Connector(self._now_ns, self._verify_tls, force_close=True), self._limits)
        return self._fresh

    async def close(self) -> None:
        """Close every connection."""
        await self._kept.close()
        if self._fresh is not None:
            await self._fresh.close()


@asynccontextmanager
async def open_transport(connect_timeout: Duration, verify_tls: bool, clock: Clock) -> AsyncIterator[Transport]:
    """A transport, closed at the end of the block. It connects to nothing yet."""
    # The bound function itself, since it is called for every read.
    now_ns = time.monotonic_ns if isinstance(clock, MonotonicClock) else clock.now_ns
    transport = Transport(connect_timeout, verify_tls, now_ns)
    try:
        yield transport
    finally:
        await transport.close()


class _Call:
    """What the connector tells about the connection of one request.

    The stamp is the call's and not the connection's: the connection may serve the next request before the reader of
    this one's last bytes has come to look at their instant.
    """

    __slots__ = ("connect_ns", "instant_ns", "was_kept")

    def __init__(self) -> None:
        self.connect_ns: int | None = None
        self.instant_ns = 0
        """When bytes of the answer last came; 0 where none did."""
        self.was_kept = False


_current: ContextVar[_Call] = ContextVar("current call")


class _StampedProtocol(ResponseHandler):
    """A connection that tells the call it serves the instant of each read."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ns: Callable[[], int]) -> None:
        super().__init__(loop)
        self._now_ns = now_ns
        self.call = _Call()

    def data_received(self, data: bytes) -> None:
        if data:  # aiohttp itself comes with none when it goes on with what it holds
            self.call.instant_ns = self._now_ns()
        super().data_received(data)


class _Connector(aiohttp.TCPConnector):
    """Connections that stamp their reads, and that tell the current call how they came about."""

    def __init__(self, now_ns: Callable[[], int], verify_tls: bool, **options: Any) -> None:
        super().__init__(limit=0, ttl_dns_cache=_DNS_TTL_SECONDS, ssl=verify_tls, **options)
        self._now_ns = now_ns
        loop = asyncio.get_running_loop()
        self._factory = lambda: _StampedProtocol(loop, now_ns)  # type: ignore[assignment]

    async def connect(self, *args: Any, **named: Any) -> Any:
        call = _current.get()
        connection = await super().connect(*args, **named)
        protocol = connection.protocol
        assert isinstance(protocol, _StampedProtocol)
        protocol.call = call
        call.was_kept = call.connect_ns is None
        return connection

    async def _create_connection(self, *args: Any, **named: Any) -> Any:
        call = _current.get()
        start_ns = self._now_ns()
        protocol = await super()._create_connection(*args, **named)
        call.connect_ns = self._now_ns() - start_ns
        return protocol


def _session(connector: _Connector, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        raise_for_status=False,
        read_bufsize=_READ_BUFFER,
        skip_auto_headers=("Accept-Encoding", "User-Agent", "Accept"),
    )


async def _open(
    session: aiohttp.ClientSession,
    call: _Call,
    method: str,
    url: URL,
    headers: Mapping[str, str],
    body: bytes | None,
) -> Answer:
    token = _current.set(call)
    try:
        response = await session.request(method, url, data=body, headers=headers, allow_redirects=False)
    finally:
        _current.reset(token)
    return Answer(response, call)


def _transport_error(error: Exception) -> TransportError:
    """Name what aiohttp raised by the kinds of failure; a fault of the program itself is raised as it is."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return TransportError("dns", f"{error.host}: {_reason(error.os_error)}")
        case aiohttp.ClientConnectorCertificateError():
            return TransportError("tls", str(error.certificate_error))
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return TransportError("tls", _reason(error))
        case aiohttp.ConnectionTimeoutError():
            return TransportError("connect_timeout", str(error))
        case aiohttp.ClientConnectorError():
            return TransportError("connect", f"{error.host}:{error.port}: {_why_no_connection(error.os_error)}")
        case aiohttp.ServerDisconnectedError():
            return TransportError("disconnect", "the server closed the connection without an answer")
        case aiohttp.ClientPayloadError() | aiohttp.ClientOSError() | ConnectionError():
            return TransportError("disconnect", _reason(error))
        case aiohttp.ClientConnectionError():
            return TransportError("disconnect", _reason(error))
        case aiohttp.ClientError() | aiohttp.http.HttpProcessingError():
            return TransportError("protocol", _reason(error))
        case _:
            raise error


def _why_no_connection(error: OSError) -> str:
    """The system's words, where the libraries in between have put in theirs."""
    return os.strerror(error.errno) if error.errno else _reason(error)


def _reason(error: BaseException) -> str:
    """An exception in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(getattr(error, "message", "")) or str(error) or type(error).__name__
