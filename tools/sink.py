"""A server far cheaper than any client: it answers chat and completion requests with canned bytes.

For measuring the generator itself. `python tools/sink.py --port 0 [--tokens N] [--step-ms MS]` prints its port; with
`--tokens 0` each answer is one JSON body, otherwise a stream of N events, one every MS milliseconds, all streams in
lock-step as an engine's steps are (MS = 0: the whole stream at once). Requests are recognised by their blank line and
Content-Length alone; any GET is answered with a list of models that also says how many POSTs were `served`. It ends
when its standard input does.
"""

import argparse
import asyncio
import json
import resource
import sys
from typing import Any, cast

import uvloop

EVENT = {"id": "cmpl-0", "object": "chat.completion.chunk", "created": 1, "model": "sink"}


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """One event of a chat stream as one HTTP chunk."""
    body = {**EVENT, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}
    return http_chunk(b"data: " + json.dumps(body).encode() + b"\n\n")


def http_chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Canned:
    """What all connections say, and what they count. `streams` are the connections that the next step serves."""

    def __init__(self, tokens: int, *, stepped: bool) -> None:
        self.tokens = tokens
        self.streams: dict[Sink, int] = {}
        self.served = 0
        usage = {"prompt_tokens": 8, "completion_tokens": max(tokens, 1), "total_tokens": 8 + max(tokens, 1)}
        message = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}
        body = json.dumps({**EVENT, "object": "chat.completion", "choices": [message], "usage": usage}).encode()
        self.answer = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        self.head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(
            {"role": "assistant", "content": ""}
        )
        self.token = chunk({"content": " word"})
        last = {**EVENT, "choices": [], "usage": usage}
        self.tail = (
            chunk({"content": " word"}, "length")
            + http_chunk(b"data: " + json.dumps(last).encode() + b"\n\n")
            + http_chunk(b"data: [DONE]\n\n")
            + b"0\r\n\r\n"
        )
        if tokens and not stepped:
            self.answer = self.head + self.token * (tokens - 1) + self.tail
        self.at_once = not tokens or not stepped


class Sink(asyncio.Protocol):
    """One connection."""

    def __init__(self, canned: Canned) -> None:
        self.canned = canned
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, error: Exception | None) -> None:
        self.canned.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = self.received[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.received) < end + 4 + length:
                return
            self.received = self.received[end + 4 + length :]
            self.reply(head)

    def reply(self, head: bytes) -> None:
        canned = self.canned
        if head.startswith(b"get"):
            body = b'{"object":"list","data":[{"id":"sink"}],"served":%d}' % canned.served
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return
        if b"/tokenize" in head.split(b"\r\n", 1)[0]:
            self.transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        canned.served += 1
        if canned.at_once:
            self.transport.write(canned.answer)
        else:
            self.transport.write(canned.head)
            canned.streams[self] = canned.tokens

    def step(self) -> None:
        canned = self.canned
        left = canned.streams[self] = canned.streams[self] - 1
        self.transport.write(canned.token if left else canned.tail)
        if not left:
            del canned.streams[self]


async def step_forever(streams: dict[Sink, int], step_seconds: float) -> None:
    """Serve every stream at each step; a step that took too long shifts those after it, as an engine's does."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due = max(due + step_seconds, loop.time())
        await asyncio.sleep(due - loop.time())
        for stream in list(streams):
            stream.step()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=10.0)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loop = asyncio.get_running_loop()
    canned = Canned(options.tokens, stepped=options.step_ms > 0)
    server = await loop.create_server(lambda: Sink(canned), "127.0.0.1", options.port, backlog=8192)
    print(server.sockets[0].getsockname()[1], flush=True)
    stepping = None
    if options.step_ms > 0:
        stepping = asyncio.create_task(step_forever(canned.streams, options.step_ms / 1000))
    await loop.run_in_executor(None, sys.stdin.read)
    if stepping is not None:
        stepping.cancel()


if __name__ == "__main__":
    uvloop.run(main())
