"""A worker's main: it dials back to the parent, opens one target, and runs jobs on it until it is told to finish.

Started as `python -m loadgen.workers.worker` with the address and the run's token in its environment.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

from loadgen.clock import Clock, MonotonicClock
from loadgen.errors import ExitCode, LoadgenError
from loadgen.measure.aggregate import StageMeter
from loadgen.measure.delta import StageDelta
from loadgen.profile import KINDS, Profile
from loadgen.profile.decoding import decode
from loadgen.targets.base import Target
from loadgen.targets.kinds import Opener, open_target
from loadgen.units import NS_PER_MS, NS_PER_SECOND
from loadgen.workers.channel import Channel, ChannelClosed, SocketChannel
from loadgen.workers.dispatch import Dispatcher
from loadgen.workers.jobs import StageRun
from loadgen.workers.lifeline import lifeline
from loadgen.workers.messages import (
    Cancel,
    Failed,
    Finish,
    Gone,
    Grant,
    Hello,
    Jobs,
    Ready,
    Returned,
    Setup,
    Snapshot,
    StageStart,
    Started,
    Stop,
    Stopped,
)
from loadgen.workers.vitals import Vitals
from loadgen.workload.sources import make_workload

ADDRESS_ENV: Final = "LOADGEN_CHANNEL"
TOKEN_ENV: Final = "LOADGEN_TOKEN"  # noqa: S105  (the name of a variable)
WORKER_ENV: Final = "LOADGEN_WORKER"

SNAPSHOT_NS: Final = 250 * NS_PER_MS
_GRANT_SECONDS: Final = 0.02
"""Credits of an open loop are gathered this long; the lookahead hides the wait."""
_LAG_PROBE_NS: Final = 25 * NS_PER_MS


class Worker:
    """What one worker process holds while a run lasts. `serve` is its whole life."""

    def __init__(
        self,
        channel: Channel,
        clock: Clock,
        setup: Setup,
        profile: Profile,
        target: Target,
        vitals: Vitals,
        *,
        virtual: bool = False,
        half_the_snapshots: bool = False,
    ) -> None:
        self._channel = channel
        self._clock = clock
        self._profile = profile
        self._credits = setup.slots + setup.room
        self._opening = target.opening
        tokenization = setup.tokenization
        if tokenization is None:
            assert self._opening is not None
            tokenization = self._opening.tokenization
        self._tokenization, self._nonce = tokenization, setup.nonce
        self._workload = make_workload(profile.workload, tokenization, setup.nonce)
        self._target = target
        self._dispatcher = Dispatcher(
            target,
            clock,
            slots=setup.slots,
            timeout_ns=profile.target.timeout,
            # What had to wait for a target that is started again waited for the target.
            open_since_ns=0 if self._opening is None else clock.now_ns(),
        )
        self._vitals = vitals
        self._virtual = virtual
        self._half = half_the_snapshots
        self._snapshots = anyio.Lock()
        self._closed_loop = False

    async def serve(self) -> None:
        """Do what the parent says until it says Finish. Raises ChannelClosed where the parent is gone."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._dispatcher.run)
            tasks.start_soon(self._grant_forever)
            tasks.start_soon(self._snapshot_forever)
            if not self._virtual:
                tasks.start_soon(self._probe_lag)
            await self._channel.send(Ready(self._credits, self._opening))
            tasks.start_soon(self._end_with_target, tasks.cancel_scope)
            await self._obey()
            tasks.cancel_scope.cancel()

    async def _end_with_target(self, scope: anyio.CancelScope) -> None:
        """Where the target is gone for good, tell what became of its requests, then that it is gone, and end."""
        reason = await self._target.watch()
        await self._dispatcher.abandon()
        await self._grant()
        await self._snapshot(self._clock.now_ns())
        await self._channel.send(Gone(reason))
        scope.cancel()

    async def _obey(self) -> None:
        while True:
            message = await self._channel.receive()
            match message:
                case Jobs():
                    self._dispatcher.add(message.stage, message.indices, message.intended_ns, message.queued_until_ns)
                case StageStart():
                    self._begin(message)
                case Stop():
                    returned = self._dispatcher.stop(message)
                    if returned:
                        await self._channel.send(Returned(message.stage, returned))
                case Cancel():
                    self._dispatcher.cancel(message.stage)
                case Finish():
                    return
                case _:
                    raise ChannelClosed(f"unexpected {type(message).__name__}")

    def _begin(self, start: StageStart) -> None:
        profile, workload, target = self._profile, self._workload, None
        if start.profile is not None:
            profile = decode(Profile, start.profile)
            workload = make_workload(profile.workload, self._tokenization, self._nonce)
            target = self._target.with_workload(profile.workload)
        meter = StageMeter(start.stage, start.grid, profile.slo, keep_records=self._profile.output.lines)
        # The answers of other kinds are numbers, or an echo of what was sent.
        texts = self._profile.output.texts and KINDS[profile.workload.kind].output_tokens is None
        self._closed_loop = start.slots is not None
        run = StageRun(
            start.stage, workload, meter, drop=start.drop, closed=self._closed_loop, texts=texts, target=target
        )
        self._dispatcher.begin(run, slots=start.slots or 0, slots_from_ns=start.slots_from_ns, stop_ns=start.stop_ns)

    async def _grant_forever(self) -> None:
        news = self._dispatcher.news
        while True:
            await news.wait()
            if not self._closed_loop:
                await anyio.sleep(_GRANT_SECONDS)
            await self._grant()

    async def _grant(self) -> None:
        news = self._dispatcher.news
        credits, news.credits = news.credits, 0
        started, news.started = news.started, {}
        for stage, (indices, intended_ns) in started.items():
            await self._channel.send(Started(stage, indices, intended_ns))
        if credits:
            await self._channel.send(Grant(credits))

    async def _snapshot_forever(self) -> None:
        news = self._dispatcher.news
        next_ns = self._clock.now_ns() + SNAPSHOT_NS
        passed_over = False
        while True:
            with anyio.move_on_after(max(0, next_ns - self._clock.now_ns()) / NS_PER_SECOND):
                await news.wait_over()
            now_ns = self._clock.now_ns()
            next_ns = max(next_ns + SNAPSHOT_NS, now_ns) if now_ns >= next_ns else next_ns
            passed_over = self._half and not passed_over and not news.over and self._dispatcher.in_flight > 0
            if not passed_over:
                await self._snapshot(now_ns)

    async def _snapshot(self, now_ns: int) -> None:
        """Tell what ended since the last one. One at a time: their deltas are told in the order they are taken in."""
        async with self._snapshots:
            news = self._dispatcher.news
            over, news.over = news.over, []
            if over:
                await self._grant()  # every start is told before its stage is over
            meters = [*(run.meter for run in over), *self._dispatcher.meters]
            deltas = [delta for meter in meters if (delta := await self._flush(meter, now_ns)) is not None]
            await self._channel.send(Snapshot(self._vitals.read(now_ns, self._dispatcher), deltas))
            for run in over:
                await self._channel.send(Stopped(run.stage))

    async def _flush(self, meter: StageMeter, now_ns: int) -> StageDelta | None:
        """Flush a meter, and between its slices let go what is due: at a stretch it would hold the loop for 2 ms."""
        slices = meter.flush_in_slices(now_ns)
        while True:
            try:
                next(slices)
            except StopIteration as done:
                delta: StageDelta | None = done.value
                return delta
            await anyio.lowlevel.checkpoint()

    async def _probe_lag(self) -> None:
        """Measure how late the loop runs what is due: the same wait as a job's, every 25 ms."""
        timer = self._clock.timer()
        try:
            due_ns = self._clock.now_ns()
            while True:
                due_ns += _LAG_PROBE_NS
                timer.arm(due_ns)
                await timer.wait()
                now_ns = self._clock.now_ns()
                for meter in self._dispatcher.meters[-1:]:
                    meter.lag(now_ns, now_ns - due_ns)
                due_ns = max(due_ns, now_ns - _LAG_PROBE_NS)
        finally:
            timer.close()


async def run_worker(
    channel: Channel,
    clock: Clock,
    worker: int,
    token: str,
    opener: Opener = open_target,
    *,
    virtual: bool = False,
    half_the_snapshots: bool = False,
) -> None:
    """A worker's whole life on one channel: introduce itself, open the target, serve, close.

    virtual: time is, so that the loop is never late, which is not measured then.
    half_the_snapshots: pass over every second one while requests are in flight. They are much of what a request costs,
        and where nobody looks on and nothing can die they need not come so often.

    A target that cannot be opened is told to the parent as `Failed`. Returns when the parent is done or gone.
    """
    try:
        await channel.send(Hello(token, worker, os.getpid()))
        setup = await channel.receive()
        if not isinstance(setup, Setup):
            raise ChannelClosed(f"expected Setup, got {type(setup).__name__}")
        profile = decode(Profile, setup.profile)
        vitals = Vitals(worker, clock.now_ns())
        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
            stop_listening = await tasks.start(_listen_for_the_end, channel)
            try:
                target = await stack.enter_async_context(opener(profile, setup.info, clock))
            except LoadgenError as error:
                await channel.send(Failed(str(error), usage=error.exit_code == ExitCode.USAGE))
                tasks.cancel_scope.cancel()
                return
            await stop_listening()
            with vitals.watching_gc():
                serving = Worker(
                    channel,
                    clock,
                    setup,
                    profile,
                    target,
                    vitals,
                    virtual=virtual,
                    half_the_snapshots=half_the_snapshots,
                )
                await serving.serve()
    except* ChannelClosed:
        pass  # the parent is gone: there is nobody left to work for


async def _listen_for_the_end(channel: Channel, *, task_status: TaskStatus[Callable[[], Awaitable[None]]]) -> None:
    """Raise ChannelClosed where the parent goes while a target opens, which may take many minutes. The channel is the
    caller's again when it has called what this task starts with."""
    stopped = anyio.Event()
    scope = anyio.CancelScope()

    async def stop() -> None:
        scope.cancel()
        await stopped.wait()

    with scope:
        task_status.started(stop)
        message = await channel.receive()
        raise ChannelClosed(f"unexpected {type(message).__name__}")
    stopped.set()


async def _main() -> None:
    host, _, port = os.environ[ADDRESS_ENV].rpartition(":")
    channel = SocketChannel(await anyio.connect_tcp(host, int(port)))
    await run_worker(channel, MonotonicClock(), int(os.environ[WORKER_ENV]), os.environ.pop(TOKEN_ENV))


def main() -> None:
    """Run one worker process. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with lifeline():
        anyio.run(_main, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})


if __name__ == "__main__":
    main()
