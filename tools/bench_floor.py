"""The floor under any client in Python: a bare asyncio protocol that sends the same bytes and only counts.

It keeps N connections to `tools/sink.py` busy, each with one request after the other, as a closed loop does. Nothing is
parsed: an answer has ended when its last bytes say so, and its events are its blank lines. What a real client costs
beyond this is what it does for its user. Prints a line of JSON.

usage: python tools/bench_floor.py --port PORT --connections N --requests N [--streamed]
"""

import argparse
import asyncio
import json
import time
from typing import cast

import uvloop

BODY = b'{"messages":[{"role":"user","content":"%s"}],"max_tokens":128,"stream":true}' % (b"word " * 64)
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
)
STREAM_END = b"\r\n0\r\n\r\n"
WHOLE_END = b"}}"


class Counts:
    """What all connections of a run have left to do and have seen."""

    def __init__(self, requests: int, done: asyncio.Event) -> None:
        self.to_send = requests
        self.to_end = requests
        self.events = 0
        self.reads = 0
        self.last_ns = 0
        self.done = done


class Connection(asyncio.Protocol):
    """One connection. An answer's end may be split over reads, so the last bytes of each read are kept."""

    def __init__(self, counts: Counts, end: bytes, events: bool) -> None:
        self.counts = counts
        self.end = end
        self.events = events
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.send()

    def send(self) -> None:
        if self.counts.to_send > 0:
            self.counts.to_send -= 1
            self.transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        counts = self.counts
        counts.last_ns = time.monotonic_ns()
        counts.reads += 1
        if self.events:
            # A blank line whose two line feeds came in two reads.
            counts.events += data.count(b"\n\n") + (self.tail.endswith(b"\n") and data.startswith(b"\n"))
        self.tail = (self.tail + data)[-len(self.end) :]
        if self.tail == self.end:
            self.tail = b""
            counts.to_end -= 1
            if counts.to_end == 0:
                counts.done.set()
            self.send()


async def run(port: int, connections: int, requests: int, streamed: bool) -> Counts:
    loop = asyncio.get_running_loop()
    counts = Counts(requests, asyncio.Event())
    end = STREAM_END if streamed else WHOLE_END
    for _ in range(min(connections, requests)):
        await loop.create_connection(lambda: Connection(counts, end, streamed), "127.0.0.1", port)
    await counts.done.wait()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--streamed", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    counts = uvloop.run(run(options.port, options.connections, options.requests, options.streamed))
    seen = {"wall_seconds": time.monotonic() - began, "events": counts.events, "reads": counts.reads}
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
