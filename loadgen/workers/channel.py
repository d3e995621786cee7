"""The channel between the parent and a worker: whole messages, in order, over a socket or in memory."""

import math
from typing import Final, Protocol

import anyio
import msgspec
from anyio.abc import ByteStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from loadgen.workers.messages import Message

_READ_BYTES: Final = 1 << 16
_LENGTH_BYTES: Final = 4
_MAX_MESSAGE_BYTES: Final = 1 << 28


class ChannelClosed(Exception):
    """The other end is gone; messages sent before that have all been received."""


class Channel(Protocol):
    """One end of a channel. Any task may send; one task receives."""

    async def send(self, message: Message) -> None:
        """Hand a message over, waiting while the channel is full.

        Atomic: cancelled while it waits for its turn nothing is sent; once begun, the message is sent whole.
        Raises ChannelClosed.
        """

    async def receive(self) -> Message:
        """The next message. Raises ChannelClosed; cancelling loses none."""

    async def aclose(self) -> None:
        """Close this end."""


class SocketChannel:
    """Messages as msgpack behind a 4-byte little-endian length, over any byte stream."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._turn = anyio.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Message)
        self._received = bytearray()

    async def send(self, message: Message) -> None:
        body = self._encoder.encode(message)
        async with self._turn:
            # Half a message would garble all that follow, so a send that has begun is not cancelled. It ends: the
            # other end reads, or is gone.
            with anyio.CancelScope(shield=True):
                try:
                    await self._stream.send(len(body).to_bytes(_LENGTH_BYTES, "little") + body)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                    raise ChannelClosed from error

    async def receive(self) -> Message:
        while (body := self._next_body()) is None:
            try:
                self._received += await self._stream.receive(_READ_BYTES)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise ChannelClosed from error
        return self._decoder.decode(body)

    def _next_body(self) -> bytes | None:
        if len(self._received) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._received[:_LENGTH_BYTES], "little")
        if length > _MAX_MESSAGE_BYTES:
            raise ChannelClosed(f"a message of {length} bytes: not a loadgen channel")
        end = _LENGTH_BYTES + length
        if len(self._received) < end:
            return None
        body = bytes(self._received[_LENGTH_BYTES:end])
        del self._received[:end]
        return body

    async def aclose(self) -> None:
        await self._stream.aclose()


class MemoryChannel:
    """One end of a channel inside one event loop, for tests and for runs in virtual time."""

    def __init__(self, send: MemoryObjectSendStream[Message], receive: MemoryObjectReceiveStream[Message]) -> None:
        self._send = send
        self._receive = receive

    async def send(self, message: Message) -> None:
        try:
            await self._send.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ChannelClosed from error

    async def receive(self) -> Message:
        try:
            return await self._receive.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError) as error:
            raise ChannelClosed from error

    async def aclose(self) -> None:
        self._send.close()
        self._receive.close()


def memory_channels(depth: float = math.inf) -> tuple[MemoryChannel, MemoryChannel]:
    """The two ends of a channel in memory that holds at most `depth` messages each way."""
    to_worker = anyio.create_memory_object_stream[Message](depth)
    to_parent = anyio.create_memory_object_stream[Message](depth)
    return MemoryChannel(to_worker[0], to_parent[1]), MemoryChannel(to_parent[0], to_worker[1])
