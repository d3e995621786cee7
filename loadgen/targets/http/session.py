"""The HTTP target: what a request of the OpenAI API says, and how its answer is followed. It knows no socket."""

import base64
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from copy import copy
from typing import Any, Final

import anyio
import msgspec
from yarl import URL

from loadgen import profile
from loadgen.clock import Clock
from loadgen.errors import TargetError
from loadgen.measure.outcome import Exchange
from loadgen.targets.base import Opening, TargetInfo
from loadgen.targets.http.chunks import DISCONNECT, PROTOCOL, read_whole
from loadgen.targets.http.content import openai_messages
from loadgen.targets.http.endpoints.endpoint import ReadWhole
from loadgen.targets.http.endpoints.table import PATHS, endpoint_of
from loadgen.targets.http.error_body import words_of_body
from loadgen.targets.http.headers import headers_for, seconds_to_wait, secret_values
from loadgen.targets.http.sse import EventParser
from loadgen.targets.http.transport import Answer, Transport, TransportError, open_transport
from loadgen.units import NS_PER_SECOND
from loadgen.workload.request import Message, Request

_STRUCTURED: Final = {"structured_outputs", "response_format", "guided_choice", "guided_json", "guided_regex"}
"""Body fields that give an answer a form, and so an end of its own."""
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
        for endpoint in PATHS:
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
    content_type: str | None = None
    """None for JSON."""
    read: ReadWhole = read_whole
    """Reads the body of a whole answer into its exchange."""


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
        api_key: str | None = None,
    ) -> None:
        """`api_key` is the key itself, where a caller holds it; it takes the place of the one that the target names.

        Raises:
            TargetError: the address is none, or the environment does not hold the API key.
        """
        self.server = ServerUrl(target.url)
        self._profile, self._info = target, info
        self.model = info.model
        self._transport = transport
        self._now_ns = now_ns
        self._headers = headers_for(target, self.server.authorization, api_key)
        self._secrets = secret_values(self._headers)
        self._retry, self._timeout_ns = target.retry, target.timeout
        self._session_id = f"loadgen-{secrets.token_hex(4)}"
        self._set_workload(workload)

    def with_workload(self, workload: profile.Workload) -> "HttpSession":
        other = copy(self)
        other._set_workload(workload)
        return other

    def _set_workload(self, workload: profile.Workload) -> None:
        """Choose the endpoint, encode what is the same in every body, and note which of the other fields are wanted."""
        info, target = self._info, self._profile
        self._endpoint = endpoint_of(workload, info)
        at = self.server.at if self._endpoint.at_root else self.server.api
        self.url = at(self._endpoint.path)
        """Where requests are sent."""
        theirs = workload.body
        unwanted = set(theirs) | set(info.omitted_fields)
        if "max_completion_tokens" in theirs:
            unwanted.add("max_tokens")
        if "max_tokens" in unwanted:  # a minimum may lie above the user's own maximum
            unwanted.add("min_tokens")
        if _STRUCTURED & set(theirs):  # forced on, the answer would break its constraint
            unwanted |= {"min_tokens", "ignore_eos"}
        self._stream = self._endpoint.streams and bool(theirs.get("stream", target.stream))
        ours: dict[str, Any] = dict(self._endpoint.fields)
        if info.model is not None:
            ours["model"] = info.model
        if self._stream:
            ours |= self._endpoint.stream_fields
        self._fields = fixed = {name: value for name, value in ours.items() if name not in unwanted} | theirs
        self._fixed = _ENCODE(fixed)[1:-1]
        self._unwanted = frozenset(unwanted)
        self._lengths = tuple(name for name in self._endpoint.length_fields if name not in unwanted)

    def prepare(self, request: Request) -> Prepared:
        """Render a request's body. Fields of `[workload.body]` take the place of ours.

        Raises:
            PromptError: an image or sound cannot be read, or there is video.
            LoadgenError: an image or sound needs a library that is not installed.
        """
        endpoint = self._endpoint
        request_id = f"{self._session_id}-{request.index}"
        if endpoint.write is not None:
            return Prepared(request_id, *endpoint.write(self._fields, request), endpoint.reader(request))
        parts = [self._fixed] if self._fixed else []
        if request.messages is not None and endpoint.conversation is not None:
            self._add(parts, endpoint.conversation(request.messages))
        elif request.messages is not None and "messages" not in self._unwanted:
            parts.append(b'"messages":' + _encode_messages(request.messages))
        if request.prompt is not None:
            self._add(parts, {endpoint.prompt_field: request.prompt})
        if request.inputs is not None:
            self._add(parts, {endpoint.inputs_field: request.inputs})
        if endpoint.own_fields is not None:
            self._add(parts, endpoint.own_fields(request))
        asked = request.most_output_tokens if request.output_tokens is None else request.output_tokens
        if asked is not None:
            count = str(asked).encode()
            for name in self._lengths:
                parts.append(b'"%s":%s' % (name.encode(), b"true" if name == "ignore_eos" else count))
        return Prepared(request_id, b"{" + b",".join(parts) + b"}", None, endpoint.reader(request))

    def _add(self, parts: list[bytes], fields: dict[str, Any]) -> None:
        """Put fields into a body that is being made, but for those that stand in it already."""
        for name, value in fields.items():
            if name not in self._unwanted:
                parts.append(b'"%s":%s' % (name.encode(), _ENCODE(value)))

    async def send(self, prepared: Prepared, exchange: Exchange) -> None:
        """Send a prepared request and follow its answer to the end (the contract is `targets.base.Target.send`).

        Cancelled, it closes the connection, so that the server gives the request up. Where `exchange.end_ns` was set
        before the cancellation the answer had been complete.
        """
        await self.ask("POST", self.url, prepared, exchange, prepared.read)

    async def ask(self, method: str, url: URL, prepared: Prepared, exchange: Exchange, read: ReadWhole) -> None:
        """Send anything that was prepared to any address of the server, as `send` does and by the same contract.

        `read` gets the body of a whole answer and writes into the exchange what it means, a failure too.
        """
        exchange.streamed = self._stream
        exchange.request_id = prepared.request_id
        headers = self._headers.copy()
        headers.setdefault("X-Request-Id", prepared.request_id)
        if prepared.content_type is not None:
            headers["Content-Type"] = prepared.content_type
        give_up_ns = self._now_ns() + self._timeout_ns
        while True:
            try:
                answer = await self._transport.open(method, url, headers, prepared.body or None, exchange)
            except TransportError as error:
                self._fail(exchange, error.kind, str(error))
                exchange.end_ns = self._now_ns()
                return
            try:
                exchange.status = answer.status
                exchange.headers_ns = answer.headers_ns
                wait = self._wait_of(answer, exchange, give_up_ns)
                if wait is None:
                    await self._follow(answer, exchange, read)
                    return
                await _read_rest(answer)
            finally:
                answer.close()
            exchange.retries += 1
            await anyio.sleep(wait)

    def _wait_of(self, answer: Answer, exchange: Exchange, give_up_ns: int) -> float | None:
        """Seconds after which to send the request again; None where its answer is to be read as it is."""
        if exchange.retries >= self._retry:
            return None
        wait = seconds_to_wait(answer.status, answer.headers)
        late = wait is not None and self._now_ns() + wait * NS_PER_SECOND >= give_up_ns
        return None if late else wait

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

    async def _follow(self, answer: Answer, exchange: Exchange, read: ReadWhole) -> None:
        """Read an answer whose headers have come, by what its status and content type say it is."""
        content_type = answer.headers.get("Content-Type", "").lower()
        if not 200 <= answer.status < 300:
            await self._read_refusal(answer, exchange)
        elif content_type.startswith("text/html"):
            await self._read_refusal(answer, exchange, PROTOCOL)
        elif content_type.startswith("text/event-stream"):
            await self._read_stream(answer, exchange)
        elif content_type.startswith("application/json") or not self._stream:
            await self._read_whole(answer, exchange, read)
        else:
            await self._read_stream(answer, exchange)

    async def _read_stream(self, answer: Answer, exchange: Exchange) -> None:
        exchange.streamed = True
        parser = EventParser()
        reader = self._endpoint.follow(exchange)
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

    async def _read_whole(self, answer: Answer, exchange: Exchange, read: ReadWhole) -> None:
        exchange.streamed = False
        try:
            body, exchange.reads = await _read_all(answer)
        except TransportError as error:
            self._fail(exchange, error.kind, str(error))
        else:
            read(body, exchange)
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
    """Wait a little for the body's end, of which nothing more is wanted: the connection can then be used again."""
    with anyio.move_on_after(_END_GRACE_SECONDS), suppress(TransportError):
        while (await answer.read())[1]:
            pass


def _encode_messages(messages: tuple[Message, ...]) -> bytes:
    for message in messages:
        if not isinstance(message.content, str):
            return _ENCODE(openai_messages(messages))
    return _ENCODE(messages)  # text alone is in the API's own shape already
