"""How workers come to be: processes of their own on this machine, or tasks of this event loop.

Either way a launched worker is an `Incarnation`: a channel that has said Hello, and a way to learn how it ended.
"""

import getpass
import hmac
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Protocol

import anyio
import anyio.to_thread
from anyio.abc import Process, SocketAttribute, SocketStream
from anyio.streams.stapled import MultiListener

from loadgen.clock import Clock
from loadgen.errors import RunFailure, one_failure
from loadgen.processes import end_family, end_process, how_it_ended, in_own_group
from loadgen.targets.engine.opening import LOG_ENV
from loadgen.targets.kinds import Opener, open_target
from loadgen.workers.channel import Channel, ChannelClosed, SocketChannel, memory_channels
from loadgen.workers.lifeline import FOLDER_ENV, PARENT_ENV, family_of
from loadgen.workers.messages import Hello
from loadgen.workers.placement import Placement
from loadgen.workers.worker import ADDRESS_ENV, TOKEN_ENV, WORKER_ENV, run_worker

_HELLO_SECONDS: Final = 60
_GREETING_SECONDS: Final = 5
_COMPILED_ENV: Final = "TORCHINDUCTOR_CACHE_DIR"
"""Where torch keeps what it has compiled; by default in the temporary folder."""
ENGINE_FINISH_SECONDS: Final = 75
"""How long a worker that was told to finish may take: somewhat longer than it gives its engine to shut down (60 s)."""
_ENGINE_LOG_LINES: Final = 5
"""How many lines of its log to quote of a worker with an engine: the last one alone seldom says why."""
_LONGEST_TEMPORARY: Final = 54
"""A Unix socket's path has at most 103 bytes (macOS; Linux has 107): less `/lg-` and 8, less `/` and vLLM's 36."""


class NotStarted(RunFailure):
    """A worker process that ended, or said nothing, before its Hello."""

    def __init__(self, message: str, pid: int) -> None:
        super().__init__(message)
        self.pid = pid


class Incarnation(Protocol):
    """One life of one worker."""

    channel: Channel
    pid: int
    finishing: bool
    """Set by who tells it to finish: it is then given the time that its target takes to close in order. Any other end
    is a quick one."""

    async def ended(self) -> str:
        """How it ended, in words, once it has: `exit code 1`, `signal SIGKILL`, with the last words it logged."""


class Launcher(Protocol):
    """Starts workers. An incarnation left behind by its context has been ended."""

    def launch(self, worker: int) -> AbstractAsyncContextManager[Incarnation]:
        """Start worker number `worker` and wait for its Hello. Raises NotStarted where none comes."""


class _LocalIncarnation:
    def __init__(self, channel: Channel, process: Process, log: Path, lines: int) -> None:
        self.channel = channel
        self.pid = process.pid
        self.finishing = False
        self._process = process
        self._log = log
        self._lines = lines

    async def ended(self) -> str:
        return how_it_ended(await self._process.wait(), self._log, lines=self._lines)


class LocalLauncher:
    """Worker processes on this machine, fresh interpreters that dial back over loopback with the run's token.

    `placements` are the workers' by number; a worker without one has no engine. What a worker with an engine began, and
    its temporary folder, are gone when its incarnation is, however it ended.
    """

    def __init__(
        self,
        log_directory: Path,
        placements: Sequence[Placement] = (),
        *,
        command: Sequence[str] = (sys.executable, "-m", "loadgen.workers.worker"),
    ) -> None:
        self._log_directory = log_directory
        self._placements = placements
        self._command = command
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
        placement = self._placements[worker] if worker < len(self._placements) else Placement()
        log = self._log_directory / f"worker-{worker}.log"
        lines = _ENGINE_LOG_LINES if placement.engine else 1
        with _folder(placement) as folder:
            process = await self._start(worker, placement, folder, log)
            try:
                channel = await self._hello_of(worker, process, log, lines)
                try:
                    incarnation = _LocalIncarnation(channel, process, log, lines)
                    yield incarnation
                    if incarnation.finishing and folder is not None:
                        with anyio.move_on_after(ENGINE_FINISH_SECONDS):
                            await process.wait()
                finally:
                    with anyio.CancelScope(shield=True):
                        await channel.aclose()
            finally:
                await end_process(process)
                if folder is not None:
                    with anyio.CancelScope(shield=True):
                        # In a thread: it looks at all processes of the machine, and may wait for some.
                        await anyio.to_thread.run_sync(end_family, family_of(process.pid, folder))
                if log.exists() and log.stat().st_size == 0:
                    log.unlink()

    async def _start(self, worker: int, placement: Placement, folder: str | None, log: Path) -> Process:
        # What a run inside of another's worker would inherit is not this worker's own.
        inherited = {name: value for name, value in os.environ.items() if name not in (FOLDER_ENV, PARENT_ENV, LOG_ENV)}
        environment = {
            **inherited,
            **placement.environment,
            ADDRESS_ENV: self._address,
            TOKEN_ENV: self._token,
            WORKER_ENV: str(worker),
            **({} if folder is None else _engine_environment(folder, log)),
        }
        with log.open("ab") as output:
            return await anyio.open_process(
                in_own_group(self._command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )

    async def _hello_of(self, worker: int, process: Process, log: Path, lines: int) -> Channel:
        with anyio.move_on_after(_HELLO_SECONDS), one_failure():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._fail_on_exit, worker, process, log, lines)
                while worker not in self._arrived:
                    await self._arrival.wait()
                tasks.cancel_scope.cancel()
            return self._arrived.pop(worker)
        raise NotStarted(f"worker {worker} did not report within {_HELLO_SECONDS} s of its start", process.pid)

    async def _fail_on_exit(self, worker: int, process: Process, log: Path, lines: int) -> None:
        how = how_it_ended(await process.wait(), log, lines=lines)
        raise NotStarted(f"worker {worker} did not start: {how}", process.pid)


@contextmanager
def _folder(placement: Placement) -> Iterator[str | None]:
    """A temporary folder for an engine's sockets, as long as the context lasts; none for a worker without an engine."""
    if not placement.engine:
        yield None
        return
    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="lg-", dir=parent if len(os.fsencode(parent)) <= _LONGEST_TEMPORARY else "/tmp")  # noqa: S108
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> str:
    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())  # as torch does
    except (KeyError, OSError):  # a user without a name, as in some containers
        return str(os.getuid())


def _engine_environment(folder: str, log: Path) -> dict[str, str]:
    return {
        FOLDER_ENV: folder,
        PARENT_ENV: str(os.getpid()),
        LOG_ENV: str(log.absolute()),
        "VLLM_RPC_BASE_PATH": folder,
        # vLLM and torch leave temporary files behind, `vllm_dist_*` for one: they go with the folder. What torch has
        # compiled is kept, where it would be kept without this.
        "TMPDIR": folder,
        _COMPILED_ENV: os.environ.get(_COMPILED_ENV) or str(Path(tempfile.gettempdir()) / f"torchinductor_{_user()}"),
        # vLLM's processes give themselves titles, which would overwrite the environment that they are known by.
        "SPT_NOENV": "1",
    }


class InlineLauncher:
    """Workers as tasks of this event loop, for runs in virtual time. `opener` opens their holds on the target.

    half_the_snapshots: as `run_worker`'s.
    """

    def __init__(self, clock: Clock, opener: Opener = open_target, *, half_the_snapshots: bool = False) -> None:
        self._clock = clock
        self._opener = opener
        self._half_the_snapshots = half_the_snapshots

    @asynccontextmanager
    async def launch(self, worker: int) -> AsyncIterator[Incarnation]:
        parent_end, worker_end = memory_channels()
        async with anyio.create_task_group() as tasks:
            incarnation = _InlineIncarnation(parent_end)

            async def live() -> None:
                try:
                    await run_worker(
                        worker_end,
                        self._clock,
                        worker,
                        "",
                        self._opener,
                        virtual=True,
                        half_the_snapshots=self._half_the_snapshots,
                    )
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
        self.finishing = False
        self.gone = anyio.Event()

    async def ended(self) -> str:
        await self.gone.wait()
        return "its task ended"
