"""One event loop's connections to the server: the client's requests over the HTTP target, and its failures raised."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, TypeVar
from weakref import WeakKeyDictionary

import anyio
import msgspec
from yarl import URL

from loadgen.client.types import ModelInfo, RequestError, Token
from loadgen.clock import MonotonicClock
from loadgen.measure.outcome import TIMEOUT, Exchange
from loadgen.profile import HttpTarget, Workload
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.chunks import PROTOCOL, read_other, read_whole
from loadgen.targets.http.endpoints.endpoint import ReadWhole
from loadgen.targets.http.error_body import one_line
from loadgen.targets.http.session import HttpSession, Prepared
from loadgen.targets.http.transport import Transport, open_transport
from loadgen.units import NS_PER_SECOND, Duration
from loadgen.workload.request import Message, Request

T = TypeVar("T")
Kind = Literal["chat", "completion"]

_AUTO: Final = "auto"
_MOST_CONNECT_SECONDS: Final = 10.0
_NO_BODY: Final = b""


class Settings(msgspec.Struct, frozen=True):
    """What a client was made with."""

    model: str
    target: HttpTarget
    api_key: str | None
    timeout: float
    """Seconds for each request, from its send to the end of its answer."""
    max_tokens: int
    extra_body: dict[str, Any]


class Constraint(msgspec.Struct, frozen=True):
    """What the probe found out about constrained answers."""

    field: str | None
    """The field that constrains; None where none does."""
    reason: str = ""
    """Why none does."""
    masks_logprobs: bool = True
    """Whether log-probabilities are told after the constraint took away what is not allowed."""
    end: Token | None = None
    """The token with which the model ends an answer; None where the server did not tell it."""


class Known(msgspec.Struct):
    """What a client learnt about its server and need not ask again."""

    model: str | None = None
    constraint: Constraint | None = None
    locks: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, anyio.Lock]]" = msgspec.field(
        default_factory=WeakKeyDictionary
    )

    def asking(self, what: str) -> anyio.Lock:
        """Held by the one call of the running loop that asks for `what`. It belongs to the client and not to its
        connections, since calls of a client that is not open have connections of their own."""
        return self.locks.setdefault(asyncio.get_running_loop(), {}).setdefault(what, anyio.Lock())


class _Models(msgspec.Struct):
    data: list[ModelInfo]


class Connection:
    """Connections of one event loop, with what the client knows."""

    def __init__(self, transport: Transport, settings: Settings, known: Known) -> None:
        self.settings = settings
        self.known = known
        self._transport = transport
        self._clock = MonotonicClock()
        self._plain = self._session("chat", {}, None)
        self.server = self._plain.server

    async def chat(self, messages: tuple[Message, ...], fields: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of `/v1/chat/completions`, where `fields` come on top of the client's own `extra_body`.

        Raises:
            RequestError: there is no good answer.
            PromptError: an image or sound cannot be read.
        """
        request = Request(index=0, messages=messages)
        return await self._generate("chat", request, fields)

    async def complete(self, prompt: tuple[int, ...], fields: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of `/v1/completions` to a prompt of token ids. Raises as `chat` does."""
        return await self._generate("completion", Request(index=0, prompt=prompt), fields)

    async def post(self, url: URL, fields: Mapping[str, Any], request: Request | None = None) -> dict[str, Any]:
        """The answer of an endpoint that generates nothing, the model being named. Raises as `chat` does."""
        session = self._session("completion", fields, await self.model())
        return await self._ask(session, "POST", url, session.prepare(request or Request(index=0)), read_other)

    async def models(self) -> tuple[ModelInfo, ...]:
        """What the server serves.

        Raises:
            RequestError: there is no good answer, or it names no model.
        """
        url = self.server.api("models")
        raw = await self._ask(self._plain, "GET", url, Prepared("models", _NO_BODY), read_other)
        models = typed(raw, _Models, f"GET {url}").data
        if not models:
            raise RequestError(f"GET {url}", PROTOCOL, "the server names no model", 200)
        return tuple(models)

    async def model(self) -> str:
        """The model to name: the client's own, or for `auto` the first that the server serves, asked once."""
        if self.settings.model != _AUTO:
            return self.settings.model
        known = self.known
        if known.model is None:
            async with known.asking("model"):
                if known.model is None:
                    known.model = (await self.models())[0].id
        return known.model

    async def version(self) -> str | None:
        """The server's version; None where it does not tell."""
        url = self.server.at("version")
        try:
            raw = await self._ask(self._plain, "GET", url, Prepared("version", _NO_BODY), read_other)
        except RequestError as error:
            if error.status is None:
                raise
            return None
        version = raw.get("version")
        return version if isinstance(version, str) else None

    async def _generate(self, kind: Kind, request: Request, fields: Mapping[str, Any]) -> dict[str, Any]:
        session = self._session(kind, fields, await self.model())
        return await self._ask(session, "POST", session.url, session.prepare(request), read_whole)

    def _session(self, kind: Kind, fields: Mapping[str, Any], model: str | None) -> HttpSession:
        """A view on the connections for one request: it costs microseconds, and holds nothing to be closed."""
        settings = self.settings
        workload = Workload(kind=kind, body=dict(fields))
        info = TargetInfo(kind="http", model=model)
        return HttpSession(
            self._transport, settings.target, workload, info, self._clock.now_ns, api_key=settings.api_key
        )

    async def _ask(
        self, session: HttpSession, method: str, url: URL, prepared: Prepared, read: ReadWhole
    ) -> dict[str, Any]:
        """The decoded body of a good answer."""
        asked = f"{method} {url}"
        exchange = Exchange()
        bodies: list[bytes] = []

        def keep(body: bytes, into: Exchange) -> None:
            bodies.append(body)
            read(body, into)

        try:
            with anyio.fail_after(self.settings.timeout):
                await session.ask(method, url, prepared, exchange, keep)
        except TimeoutError:
            words = f"no whole answer within timeout = {self.settings.timeout:g} s"
            raise RequestError(asked, TIMEOUT, words, exchange.status) from None
        if exchange.failure is not None:
            raise RequestError(asked, exchange.failure, exchange.message, exchange.status)
        if not bodies:
            words = "a stream, where a whole answer was asked for"
            raise RequestError(asked, PROTOCOL, words, exchange.status)
        raw: dict[str, Any] = msgspec.json.decode(bodies[0])  # an object: `read` found no fault
        return raw


@asynccontextmanager
async def open_connection(settings: Settings, known: Known) -> AsyncIterator[Connection]:
    """Connections for the running event loop (asyncio's), closed at the end of the block; none is made yet.

    Raises:
        TargetError: the address is none.
    """
    connect = Duration(round(min(settings.timeout, _MOST_CONNECT_SECONDS) * NS_PER_SECOND))
    async with open_transport(connect, settings.target.verify_tls, MonotonicClock()) as transport:
        yield Connection(transport, settings, known)


def typed(raw: dict[str, Any], shape: type[T], asked: str) -> T:
    """An answer as a value of a type. Raises RequestError (`protocol`) where it is of another shape."""
    try:
        return msgspec.convert(raw, shape, str_keys=True)  # as JSON has them, ids too
    except msgspec.ValidationError as error:
        words = one_line(f"{error}: {msgspec.json.encode(raw)[:200].decode(errors='replace')}")
        raise RequestError(asked, PROTOCOL, words, 200) from None
