"""How workers come to be: processes of their own on this machine, or tasks of this event loop.

Either way a launched worker is an `Incarnation`: a channel that has said Hello, and a way to learn how it ended.
"""

import hmac
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

import anyio
from anyio.abc import Process, SocketAttribute, SocketStream
from anyio.streams.stapled import MultiListener

from loadgen.clock import Clock
from loadgen.errors import RunFailure, one_failure
from loadgen.processes import end_process, how_it_ended
from loadgen.workers.channel import Channel, ChannelClosed, SocketChannel, memory_channels
from loadgen.workers.messages import Hello
from loadgen.workers.worker import ADDRESS_ENV, TOKEN_ENV, WORKER_ENV, run_worker

_HELLO_SECONDS: Final = 60
_GREETING_SECONDS: Final = 5


class NotStarted(RunFailure):
    """A worker process that ended, or said nothing, before its Hello."""

    def __init__(self, message: str, pid: int) -> None:
        super().__init__(message)
        self.pid = pid


class Incarnation(Protocol):
    """One life of one worker."""

    channel: Channel
    pid: int

    async def ended(self) -> str:
        """How it ended, in words, once it has: `exit code 1`, `signal SIGKILL`, with the last words it logged."""


class Launcher(Protocol):
    """Starts workers. An incarnation left behind by its context has been ended."""

    def launch(self, worker: int) -> AbstractAsyncContextManager[Incarnation]:
        """Start worker number `worker` and wait for its Hello. Raises NotStarted where none comes."""


class _LocalIncarnation:
    def __init__(self, channel: Channel, process: Process, log: Path) -> None:
        self.channel = channel
        self.pid = process.pid
        self._process = process
        self._log = log

    async def ended(self) -> str:
        return how_it_ended(await self._process.wait(), self._log)


class LocalLauncher:
    """Worker processes on this machine, fresh interpreters that dial back over loopback with the run's token."""

    def __init__(self, log_directory: Path) -> None:
        self._log_directory = log_directory
        self._token = secrets.token_hex(16)
        self._address = ""
        self._arrived: dict[int, Channel] = {}
        self._arrival = anyio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["LocalLauncher"]:
        """Accept the workers' connections while the context lasts."""
        listener: MultiListener[SocketStream] = await anyio.create_tcp_listener(local_host="127.0.0.1")
        async with listener, anyio.create_task_group() as tasks:
            port = listener.extra(SocketAttribute.local_port)  # noqa: S610
            self._address = f"127.0.0.1:{port}"
            tasks.start_soon(listener.serve, self._greet)
            yield self
            tasks.cancel_scope.cancel()

    async def _greet(self, stream: SocketStream) -> None:
        channel = SocketChannel(stream)
        try:
            with anyio.fail_after(_GREETING_SECONDS):
                hello = await channel.receive()
        except (ChannelClosed, TimeoutError, ValueError):
            hello = None
        if not isinstance(hello, Hello) or not hmac.compare_digest(hello.token, self._token):
            await channel.aclose()
            return
        self._arrived[hello.worker] = channel
        self._arrival.set()
        self._arrival = anyio.Event()  # replaced by who sets it: several may wait for it, each for its own worker

    @asynccontextmanager
    async def launch(self, worker: int) -> AsyncIterator[Incarnation]:
        log = self._log_directory / f"worker-{worker}.log"
        environment = {**os.environ, ADDRESS_ENV: self._address, TOKEN_ENV: self._token, WORKER_ENV: str(worker)}
        with log.open("ab") as output:
            process = await anyio.open_process(
                [sys.executable, "-m", "loadgen.workers.worker"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # a Ctrl-C of the terminal reaches the parent alone
            )
        try:
            channel = await self._hello_of(worker, process, log)
            try:
                yield _LocalIncarnation(channel, process, log)
            finally:
                with anyio.CancelScope(shield=True):
                    await channel.aclose()
        finally:
            await end_process(process)
            if log.exists() and log.stat().st_size == 0:
                log.unlink()

    async def _hello_of(self, worker: int, process: Process, log: Path) -> Channel:
        with anyio.move_on_after(_HELLO_SECONDS), one_failure():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._fail_on_exit, worker, process, log)
                while worker not in self._arrived:
                    await self._arrival.wait()
                tasks.cancel_scope.cancel()
            return self._arrived.pop(worker)
        raise NotStarted(f"worker {worker} did not report within {_HELLO_SECONDS} s of its start", process.pid)

    async def _fail_on_exit(self, worker: int, process: Process, log: Path) -> None:
        how = how_it_ended(await process.wait(), log)
        raise NotStarted(f"worker {worker} did not start: {how}", process.pid)


class InlineLauncher:
    """Workers as tasks of this event loop, for runs in virtual time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @asynccontextmanager
    async def launch(self, worker: int) -> AsyncIterator[Incarnation]:
        parent_end, worker_end = memory_channels()
        async with anyio.create_task_group() as tasks:
            incarnation = _InlineIncarnation(parent_end)

            async def live() -> None:
                try:
                    await run_worker(worker_end, self._clock, worker, "")
                finally:
                    await worker_end.aclose()
                    incarnation.gone.set()

            tasks.start_soon(live)
            await parent_end.receive()  # its Hello
            yield incarnation
            await parent_end.aclose()
            tasks.cancel_scope.cancel()


class _InlineIncarnation:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.pid = os.getpid()
        self.gone = anyio.Event()

    async def ended(self) -> str:
        await self.gone.wait()
        return "its task ended"
