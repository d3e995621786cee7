"""The HTTP target: what a request of the OpenAI API says, and how its answer is followed. It knows no socket."""

import base64
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
import msgspec
from multidict import CIMultiDict
from yarl import URL

from loadgen import profile
from loadgen.clock import Clock
from loadgen.errors import TargetError
from loadgen.metrics.outcome import Exchange
from loadgen.targets.base import Opening, TargetInfo
from loadgen.targets.chunks import DISCONNECT, PROTOCOL, ChunkReader, read_whole
from loadgen.targets.content import openai_messages
from loadgen.targets.sse import EventParser
from loadgen.targets.transport import Answer, Transport, TransportError, open_transport
from loadgen.targets.words import words_of_body
from loadgen.workload.request import Message, Request

LENGTH_FIELDS: Final = ("max_tokens", "min_tokens", "ignore_eos")
"""The body fields that ask for an exact number of output tokens."""
_ENDPOINTS: Final = {"chat": "chat/completions", "completion": "completions"}
_SECRET_HEADER_PARTS: Final = ("auth", "key", "token", "secret", "cookie")
_MIN_SECRET: Final = 4
"""Shorter values keep no secret, and cutting them out would spoil a message."""
_MAX_REFUSAL: Final = 1 << 16
"""Bytes of an error's body that are read for its words."""
_MAX_EVENT: Final = 1 << 22
_MAX_BODY: Final = 1 << 26
"""Bytes of one event and of one whole answer that are kept; a server that sends more has lost its way."""
_END_GRACE_SECONDS: Final = 0.25
"""How long the end of the body may come after the end marker, so that the connection can be kept."""

_ENCODE: Final = msgspec.json.Encoder().encode


class ServerUrl:
    """The addresses of one server, given by its root, its API's base, or one of its endpoints.

    `http://host`, `http://host/v1` and `http://host/v1/chat/completions` name the same server, and so it is under a
    path such as `/proxy`. A user name in the address becomes basic authorization and is in none of the addresses.

    Raises:
        TargetError: the text is no address of a server.
    """

    def __init__(self, text: str) -> None:
        try:
            url = URL(text)
        except ValueError as error:
            raise TargetError(f"target.url is no address: {error}") from None
        if not url.host:
            raise TargetError("target.url names no host")
        self.authorization: str | None = None
        if url.user is not None:
            self.authorization = "Basic " + base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
        path = url.path.rstrip("/")
        for endpoint in _ENDPOINTS.values():
            path = path.removesuffix(f"/{endpoint}")
        self._root = url.origin().with_path(path.removesuffix("/v1"))

    def api(self, path: str) -> URL:
        """The address of an endpoint of the OpenAI API, e.g. `models`."""
        return self.at(f"v1/{path}")

    def at(self, path: str) -> URL:
        """The address of a path under the server's root, e.g. `health`."""
        return self._root.joinpath(path)

    def __str__(self) -> str:
        return str(self._root).rstrip("/")


class Prepared(msgspec.Struct, frozen=True):
    """A request ready to be sent: its body, and the `X-Request-Id` by which the server's log names it."""

    request_id: str
    body: bytes


class Reply(msgspec.Struct, frozen=True):
    """A whole answer of the server to something beside the load."""

    status: int
    reason: str
    body: bytes

    @property
    def words(self) -> str:
        """Status and the server's own words, one line."""
        return f"{self.status} {words_of_body(self.body) or self.reason}".rstrip()


class HttpSession:
    """One worker's connections to a server that speaks the OpenAI API as vLLM does (a `targets.base.Target`)."""

    opening: Opening | None = None

    def __init__(
        self,
        transport: Transport,
        target: profile.HttpTarget,
        workload: profile.Workload,
        info: TargetInfo,
        now_ns: Callable[[], int],
    ) -> None:
        """Raises TargetError where the address is none, or the environment does not hold the API key."""
        self.server = ServerUrl(target.url)
        self.url = self.server.api(_ENDPOINTS[workload.kind])
        """Where requests are sent."""
        self.model = info.model
        self._transport = transport
        self._now_ns = now_ns
        self._headers = _headers(target, self.server.authorization)
        self._secrets = _secret_values(self._headers)
        self._session_id = f"loadgen-{secrets.token_hex(4)}"
        self._set_body(target, workload, info)

    def _set_body(self, target: profile.HttpTarget, workload: profile.Workload, info: TargetInfo) -> None:
        """Encode what is the same in every body, and note which of the other fields are wanted."""
        theirs = workload.body
        unwanted = set(theirs) | set(info.omitted_fields)
        if "max_completion_tokens" in theirs:
            unwanted.add("max_tokens")
        if "max_tokens" in unwanted:  # a minimum may lie above the user's own maximum
            unwanted.add("min_tokens")
        self._stream = bool(theirs.get("stream", target.stream))
        ours: dict[str, Any] = {}
        if info.model is not None:
            ours["model"] = info.model
        if self._stream:
            ours |= {"stream": True, "stream_options": {"include_usage": True}}
        fixed = {name: value for name, value in ours.items() if name not in unwanted} | theirs
        self._fixed = _ENCODE(fixed)[1:-1]
        self._unwanted = frozenset(unwanted)
        self._lengths = tuple(name for name in LENGTH_FIELDS if name not in unwanted)

    def prepare(self, request: Request) -> Prepared:
        """Render a request's body. Fields of `[workload.body]` take the place of ours.

        Raises:
            PromptError: an image or sound cannot be read, or there is video.
            LoadgenError: an image or sound needs a library that is not installed.
        """
        parts = [self._fixed] if self._fixed else []
        if request.messages is not None and "messages" not in self._unwanted:
            parts.append(b'"messages":' + _encode_messages(request.messages))
        if request.prompt is not None and "prompt" not in self._unwanted:
            parts.append(b'"prompt":' + _ENCODE(request.prompt))
        if request.output_tokens is not None:
            count = str(request.output_tokens).encode()
            for name in self._lengths:
                parts.append(b'"%s":%s' % (name.encode(), b"true" if name == "ignore_eos" else count))
        return Prepared(f"{self._session_id}-{request.index}", b"{" + b",".join(parts) + b"}")

    async def send(self, prepared: Prepared, exchange: Exchange) -> None:
        """Send a prepared request and follow its answer to the end (the contract is `targets.base.Target.send`).

        Cancelled, it closes the connection, so that the server gives the request up. Where `exchange.end_ns` was set
        before the cancellation the answer had been complete.
        """
        exchange.streamed = self._stream
        exchange.request_id = prepared.request_id
        headers = self._headers.copy()
        headers.setdefault("X-Request-Id", prepared.request_id)
        try:
            answer = await self._transport.open("POST", self.url, headers, prepared.body, exchange)
        except TransportError as error:
            self._fail(exchange, error.kind, str(error))
            exchange.end_ns = self._now_ns()
            return
        try:
            exchange.status = answer.status
            exchange.headers_ns = answer.headers_ns
            await self._follow(answer, exchange)
        finally:
            answer.close()

    async def watch(self) -> str:
        await anyio.sleep_forever()  # a server that is gone is told by each request
        return ""

    async def fetch(self, method: str, url: URL, payload: Any = None) -> Reply:
        """Ask the server something beside the load, with the session's own headers; secrets are cut from the answer.

        Raises:
            TransportError: no whole answer came.
        """
        body = None if payload is None else _ENCODE(payload)
        answer = await self._transport.open(method, url, self._headers, body, Exchange())
        try:
            content, _ = await _read_all(answer)
        finally:
            answer.close()
        return Reply(answer.status, answer.reason, self._redacted(content))

    async def _follow(self, answer: Answer, exchange: Exchange) -> None:
        """Read an answer whose headers have come, by what its status and content type say it is."""
        content_type = answer.headers.get("Content-Type", "").lower()
        if not 200 <= answer.status < 300:
            await self._read_refusal(answer, exchange)
        elif content_type.startswith("text/html"):
            await self._read_refusal(answer, exchange, PROTOCOL)
        elif content_type.startswith("text/event-stream"):
            await self._read_stream(answer, exchange)
        elif content_type.startswith("application/json") or not self._stream:
            await self._read_whole(answer, exchange)
        else:
            await self._read_stream(answer, exchange)

    async def _read_stream(self, answer: Answer, exchange: Exchange) -> None:
        exchange.streamed = True
        parser = EventParser()
        reader = ChunkReader(exchange)
        broken: TransportError | None = None
        instant_ns = answer.headers_ns
        try:
            while not reader.ended:
                instant_ns, data = await answer.read()
                if not data:
                    instant_ns = self._now_ns()
                    break
                exchange.reads += 1
                reader.take(parser.feed(data, instant_ns))
                if parser.pending_bytes > _MAX_EVENT:
                    raise TransportError(PROTOCOL, f"an event of more than {_MAX_EVENT:,} bytes")
        except TransportError as error:
            broken = error
            instant_ns = self._now_ns()
        reader.finish(parser.mid_event)
        if broken is not None and exchange.failure == DISCONNECT:
            exchange.failure = broken.kind
            exchange.message = f"{exchange.message}: {broken}"
        self._redact(exchange)
        exchange.end_ns = instant_ns
        if reader.ended and exchange.failure is None and not answer.at_end:
            await _read_rest(answer)

    async def _read_whole(self, answer: Answer, exchange: Exchange) -> None:
        exchange.streamed = False
        try:
            body, exchange.reads = await _read_all(answer)
        except TransportError as error:
            self._fail(exchange, error.kind, str(error))
        else:
            read_whole(body, exchange)
            self._redact(exchange)
        exchange.end_ns = self._now_ns()

    async def _read_refusal(self, answer: Answer, exchange: Exchange, kind: str | None = None) -> None:
        """Read an answer that is none, for its words. Its status is the kind of failure where none is given."""
        body = b""
        # The status stands whatever becomes of the body.
        with suppress(TransportError):
            while len(body) < _MAX_REFUSAL:
                _, data = await answer.read()
                if not data:
                    break
                body += data
        words = words_of_body(self._redacted(body)) or f"{answer.status} {answer.reason}, without a body".strip()
        if kind is not None:
            words = f"{answer.headers.get('Content-Type')} instead of an answer: {words}"
        if location := answer.headers.get("Location"):
            words = f"{words} (to {location})"
        self._fail(exchange, kind or f"http_{answer.status}", words)
        exchange.end_ns = self._now_ns()

    def _fail(self, exchange: Exchange, kind: str, message: str) -> None:
        exchange.failure = kind
        exchange.message = message
        self._redact(exchange)

    def _redact(self, exchange: Exchange) -> None:
        for secret in self._secrets:
            exchange.message = exchange.message.replace(secret, "***")

    def _redacted(self, body: bytes) -> bytes:
        for secret in self._secrets:
            body = body.replace(secret.encode(), b"***")
        return body


@asynccontextmanager
async def open_http(
    target: profile.HttpTarget, workload: profile.Workload, info: TargetInfo, clock: Clock
) -> AsyncIterator[HttpSession]:
    """A session with a server, its connections closed at the end of the block. It connects to nothing yet.

    Raises:
        TargetError: the address is none, or the environment does not hold the API key.
    """
    async with open_transport(target.connect_timeout, target.verify_tls, clock) as transport:
        yield HttpSession(transport, target, workload, info, clock.now_ns)


async def _read_all(answer: Answer) -> tuple[bytes, int]:
    """The whole body, and the number of reads that brought it."""
    parts: list[bytes] = []
    size = 0
    while True:
        _, data = await answer.read()
        if not data:
            return b"".join(parts), len(parts)
        parts.append(data)
        size += len(data)
        if size > _MAX_BODY:
            raise TransportError(PROTOCOL, f"an answer of more than {_MAX_BODY:,} bytes")


async def _read_rest(answer: Answer) -> None:
    """Wait a little for the body's end after the stream's end marker: the connection can then be used again."""
    with anyio.move_on_after(_END_GRACE_SECONDS), suppress(TransportError):
        while (await answer.read())[1]:
            pass


def _encode_messages(messages: tuple[Message, ...]) -> bytes:
    for message in messages:
        if not isinstance(message.content, str):
            return _ENCODE(openai_messages(messages))
    return _ENCODE(messages)  # text alone is in the API's own shape already


def _headers(target: profile.HttpTarget, authorization: str | None) -> CIMultiDict[str]:
    headers = CIMultiDict({"Content-Type": "application/json", "Accept": "*/*", "Accept-Encoding": "identity"})
    if authorization is not None:
        headers["Authorization"] = authorization
    if target.api_key_env is not None:
        key = os.environ.get(target.api_key_env, "").strip()
        if not key:
            raise TargetError(f'target.api_key_env = "{target.api_key_env}": no such environment variable, or empty')
        headers["Authorization"] = f"Bearer {key}"
    headers.update(target.headers)
    return headers


def _secret_values(headers: CIMultiDict[str]) -> tuple[str, ...]:
    """The values of headers that may be secret, and what follows a scheme such as `Bearer` in them; longest first."""
    values = [
        value.strip() for name, value in headers.items() if any(part in name.lower() for part in _SECRET_HEADER_PARTS)
    ]
    values += [value.partition(" ")[2].strip() for value in values]
    return tuple(sorted((value for value in values if len(value) >= _MIN_SECRET), key=len, reverse=True))
