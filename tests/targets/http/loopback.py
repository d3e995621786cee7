"""Servers on loopback that answer with exact bytes, for tests of what a client makes of them."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@dataclass
class Seen:
    """A request as the server saw it; `connection` counts the connections, from 0."""

    connection: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Respond = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Loopback:
    """A running server: where it is, what it was asked, and whether a client hung up."""

    port: int = 0
    scheme: str = "http"
    seen: list[Seen] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"


@asynccontextmanager
async def serving(respond: Respond, tls: SSLContext | None = None) -> AsyncIterator[Loopback]:
    """A server that lets `respond` write the answer to each request, and keeps connections open until it closes one."""
    loopback = Loopback(scheme="https" if tls else "http")
    connections = iter(range(1_000_000))

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = next(connections)
        with suppress(ConnectionError):
            while (seen := await _read_request(reader, connection)) is not None and not writer.is_closing():
                loopback.seen.append(seen)
                await respond(seen, writer)
        loopback.hung_up.set()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls, backlog=512)
    loopback.port = server.sockets[0].getsockname()[1]
    try:
        yield loopback
    finally:
        server.close()


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode().rstrip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    method, path, _ = first.split(" ")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Seen(connection, method, path, headers, body)


def chunk(*parts: bytes) -> bytes:
    """One chunk of a chunked body."""
    data = b"".join(parts)
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(data: Any) -> bytes:
    """One server-sent event that carries JSON."""
    return b"data: %s\n\n" % json.dumps(data, separators=(",", ":")).encode()


def token(text: str, **more: Any) -> bytes:
    """The event of one token of a chat, as vLLM sends it."""
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **more}]})


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})


def last_token(text: str, reason: str = "length") -> bytes:
    return token(text, finish_reason=reason)


def usage(prompt: int, completion: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def reply(status: int, body: bytes | Any, content_type: str = "application/json", extra: str = "") -> bytes:
    """A whole answer; a body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Reason\r\nContent-Type: {content_type}\r\nContent-Length: {len(data)}\r\n{extra}\r\n"
    return head.encode() + data


def answering(*parts: bytes | float | str) -> Respond:
    """Answer each request with these parts: bytes are written, a float is a pause in seconds, and `close`, `reset` and
    `hang` end the connection, break it, and leave it open without another word."""

    async def respond(seen: Seen, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            match part:
                case bytes():
                    writer.write(part)
                    await writer.drain()
                case float():
                    await asyncio.sleep(part)
                case "close":
                    writer.close()
                case "reset":
                    writer.transport.abort()
                case "hang":
                    return

    return respond


@contextmanager
def refused_port() -> Iterator[int]:
    """A port on which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
