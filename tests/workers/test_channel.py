"""Messages between parent and worker: whole, in order, over sockets and in memory, on asyncio and trio."""

import anyio
import pytest
from anyio.streams.stapled import StapledByteStream
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workers.channel import ChannelClosed, SocketChannel, memory_channels
from loadgen.workers.messages import Cancel, Finish, Grant, Hello, Jobs, Message, Started, Stop, Stopped

MESSAGES = st.one_of(
    st.builds(Jobs, st.integers(0, 9), st.lists(st.integers(0, 2**62), max_size=200), st.just([])),
    st.builds(Started, st.integers(0, 9), st.just([1, 2]), st.just([2**62, 0])),
    st.builds(Hello, st.text(max_size=40), st.integers(0, 9), st.integers(0, 2**22)),
    st.builds(Stop, st.integers(0, 9), st.integers(0, 2**62), st.none() | st.integers(0, 2**62)),
    st.sampled_from([Finish(), Grant(7), Cancel(1), Stopped(2)]),
)


class Pieces:
    """A byte stream that gives what was written in pieces of the sizes that it is told."""

    def __init__(self, sizes: list[int]) -> None:
        self.written = bytearray()
        self.sizes = sizes

    async def send(self, data: bytes) -> None:
        self.written += data

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self.written:
            raise anyio.EndOfStream
        size = self.sizes.pop(0) if self.sizes else max_bytes
        piece = bytes(self.written[:size])
        del self.written[:size]
        return piece

    async def send_eof(self) -> None: ...

    async def aclose(self) -> None: ...


@given(st.lists(MESSAGES, max_size=8), st.lists(st.integers(1, 40), max_size=60))
def test_messages_arrive_whole_and_in_order_however_the_bytes_are_split(messages: list[Message], sizes: list[int]):
    async def exchange() -> list[Message]:
        pieces = Pieces(sizes)
        channel = SocketChannel(StapledByteStream(pieces, pieces))
        for message in messages:
            await channel.send(message)
        received = [await channel.receive() for _ in messages]
        with pytest.raises(ChannelClosed):
            await channel.receive()
        return received

    assert anyio.run(exchange) == messages


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_many_senders_share_a_socket_without_garbling_it(anyio_backend):
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        received: list[Message] = []
        done = anyio.Event()

        async def serve(stream) -> None:
            channel = SocketChannel(stream)
            for _ in range(50):
                received.append(await channel.receive())
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            client = SocketChannel(await anyio.connect_tcp("127.0.0.1", port))
            async with anyio.create_task_group() as senders:
                for sender in range(50):
                    # Large enough to fill the socket, so that senders wait for each other.
                    senders.start_soon(client.send, Jobs(sender, list(range(20_000)), []))
            with anyio.fail_after(10):
                await done.wait()
            await client.aclose()
            tasks.cancel_scope.cancel()
    assert sorted(message.stage for message in received) == list(range(50))
    assert all(message.indices == list(range(20_000)) for message in received)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_memory_channel_tells_when_the_other_end_is_gone(anyio_backend):
    parent, worker = memory_channels()
    await worker.send(Grant(1))
    await worker.aclose()
    assert await parent.receive() == Grant(1)
    with pytest.raises(ChannelClosed):
        await parent.receive()
    with pytest.raises(ChannelClosed):
        await parent.send(Finish())
