"""The parent's side of all workers: one supervisor each, and the ledger of what each has been given.

The ledger is what makes the books balance: a job is outstanding at one worker from when it is shipped until that worker
says that it ended, gives it back, or dies.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from loadgen.clock import Clock
from loadgen.errors import LoadgenError, RunFailure, TargetError, one_failure
from loadgen.measure.journal import WorkerDeath, WorkerOpened
from loadgen.measure.outcome import LOST, UNFINISHED
from loadgen.measure.recorder import Recorder
from loadgen.targets.base import Opening, Patience
from loadgen.units import NS_PER_SECOND
from loadgen.workers.channel import ChannelClosed
from loadgen.workers.launch import Incarnation, Launcher, NotStarted
from loadgen.workers.messages import (
    Cancel,
    Failed,
    Finish,
    Gone,
    Grant,
    Jobs,
    Message,
    Ready,
    Returned,
    Setup,
    Snapshot,
    StageStart,
    Started,
    Stop,
    Stopped,
)

_ENDING_SECONDS: Final = 15
"""For the process of a worker to end after its channel has."""
_SILENCE_SECONDS: Final = 20
"""A worker sends a snapshot four times a second; one that says nothing for so long hangs."""
_STOP_GRACE_NS: Final = 15 * NS_PER_SECOND
"""How long after a drain a worker may take to say that its stage is over before it is taken for hung."""


class Outstanding(msgspec.Struct, frozen=True):
    """A job at a worker. `intended_ns` is None in a closed loop until a slot has started it."""

    stage: int
    intended_ns: int | None


class Requeued(msgspec.Struct, frozen=True):
    """A job that came back from a worker that died, to be given to another. `account` is where it ends if its stage
    does before that."""

    stage: int
    index: int
    intended_ns: int | None
    account: str = LOST


class Port:
    """The parent's end of one live worker."""

    def __init__(self, worker: int, incarnation: Incarnation, credits: int) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.channel = incarnation.channel
        self.pid = incarnation.pid
        self.credits = credits
        self.outstanding: dict[int, Outstanding] = {}
        self.unstarted = 0
        """Closed loop: jobs given to it that no slot has started, as far as it has told."""
        self.stopped: set[int] = set()
        """Stages of which nothing is left in this worker."""


class Pool:
    """All workers of a run. Use `running()`; then `ports` are the live ones."""

    def __init__(
        self,
        launcher: Launcher,
        setups: list[Setup],
        recorder: Recorder,
        clock: Clock,
        *,
        max_restarts: int,
        fail: Callable[[str], None],
        patience: Patience,
    ) -> None:
        self._launcher = launcher
        self._setups = setups
        self._recorder = recorder
        self._clock = clock
        self._max_restarts = max_restarts
        self._fail = fail
        self._patience = patience
        self._stages: dict[int, Callable[[int, int], StageStart]] = {}
        self._stop_messages: dict[int, Stop] = {}
        self._begun = False
        self._finishing = False
        self._changed = anyio.Event()
        self._returned = anyio.Event()
        self._alive = len(setups)
        self.ports: list[Port] = []
        self.requeued: list[Requeued] = []
        self._waiting: set[int] = set()
        """Of those, the indices of the jobs that were due at a target that died."""
        self.started: defaultdict[int, int] = defaultdict(int)
        """By stage, the closed-loop jobs that have started."""
        self.last_start_ns: defaultdict[int, int] = defaultdict(int)
        self.overtaken: defaultdict[int, int] = defaultdict(int)
        """By stage, the jobs due after its stop that a worker had sent by the time it learnt of the stop."""

    @property
    def size(self) -> int:
        """Workers that the run has, dead ones included."""
        return len(self._setups)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Pool"]:
        """Start all workers and wait until each has opened its target; end them all with the context.

        Raises TargetError where a target cannot be opened, and RunFailure where a worker does not start, or has used up
        its restarts while others still open their targets.
        """
        async with anyio.create_task_group() as tasks:
            for worker in range(self.size):
                tasks.start_soon(self._supervise, worker)
            while len(self.ports) < self.size:  # each supervisor has a deadline of its own
                await self.changed()
            self._begun = True
            yield self
            await self._finish(tasks)

    async def changed(self) -> None:
        """Return at the next change: credits, jobs that ended or came back, a worker that came or went."""
        await self._changed.wait()

    async def returned(self) -> None:
        """Return when next jobs come back from a worker, to be given to another."""
        await self._returned.wait()

    def outstanding(self, stage: int) -> int:
        """Jobs of a stage that are at a worker or wait to be given to another one."""
        at_workers = sum(job.stage == stage for port in self.ports for job in port.outstanding.values())
        return at_workers + sum(job.stage == stage for job in self.requeued)

    def oldest_ns(self, stage: int) -> int | None:
        """The earliest intended start of the jobs of a stage that have not ended, as far as they were given out."""
        jobs: list[Requeued | Outstanding] = [*self.requeued]
        for port in self.ports:
            jobs += port.outstanding.values()
        instants = (job.intended_ns for job in jobs if job.stage == stage)
        return min((instant for instant in instants if instant is not None), default=None)

    async def begin(self, stage: int, start: Callable[[int, int], StageStart]) -> None:
        """Tell all workers of a stage; `start(worker, now_ns)` is what each is told, those started later included."""
        self._stages[stage] = start
        for port in list(self.ports):
            await self._send(port, start(port.worker, self._clock.now_ns()))

    async def ship(self, port: Port, stage: int, indices: list[int], intended_ns: list[int]) -> None:
        """Give jobs to a worker; `intended_ns` is empty in a closed loop."""
        port.credits -= len(indices)
        port.unstarted += 0 if intended_ns else len(indices)
        for position, index in enumerate(indices):
            port.outstanding[index] = Outstanding(stage, intended_ns[position] if intended_ns else None)
        waited = self._waiting.intersection(indices)
        self._waiting -= waited
        await self._send(port, Jobs(stage, indices, intended_ns, self._clock.now_ns() if waited else 0))

    def requeue(self, stage: int, indices: list[int], intended_ns: list[int]) -> None:
        """Take back jobs that could not be given to a worker, to be given to another."""
        for position, index in enumerate(indices):
            self.requeued.append(Requeued(stage, index, intended_ns[position] if intended_ns else None))
        self._notify_of_returned()

    async def stop(self, stop: Stop) -> None:
        """End the arrivals of a stage in all workers, and wait until nothing of it is left in any.

        Jobs that were waiting for another worker are booked as lost if they had been intended. A worker that does not
        answer in time after the drain is ended, and what it had is lost.
        """
        stage = stop.stage
        self._stop_messages[stage] = stop
        self._abandon_requeued(stop)
        for port in list(self.ports):
            await self._send(port, stop)
        deadline_ns = None if stop.drain_until_ns is None else stop.drain_until_ns + _STOP_GRACE_NS
        while late := [port for port in self.ports if stage not in port.stopped]:
            now_ns = self._clock.now_ns()
            if deadline_ns is not None and now_ns >= deadline_ns:
                for port in late:
                    self._bury(port, "it did not answer after the drain and was ended")
                    await port.channel.aclose()
                break
            with anyio.move_on_after(1.0 if deadline_ns is None else (deadline_ns - now_ns) / NS_PER_SECOND):
                await self.changed()
        self._stages.pop(stage, None)

    async def cancel(self, stage: int) -> None:
        """End what is in flight of a stage, as cancelled."""
        for port in list(self.ports):
            await self._send(port, Cancel(stage))

    # --- supervision --------------------------------------------------------------------------------------------------

    async def _supervise(self, worker: int) -> None:
        for life in range(self._max_restarts + 1):
            try:
                with one_failure():
                    await self._live(worker)
            except LoadgenError as error:
                if life == 0:
                    raise
                pid = error.pid if isinstance(error, NotStarted) else None
                self._recorder.worker_died(WorkerDeath(worker, pid, str(error), 0))
            if self._finishing:
                self.ports = [port for port in self.ports if port.worker != worker]
                self._notify()
                return
        if not self._begun:  # nothing is lost yet, and a load without this worker's share would be another load
            raise RunFailure(f"worker {worker} died more often than workers.max_restarts allows, before the load began")
        self._alive -= 1
        if self._alive == 0:
            self._fail("no worker is left: each died more often than workers.max_restarts allows")
        self._notify()

    async def _live(self, worker: int) -> None:
        """One life of a worker, from its start to its end, however that comes."""
        async with self._launcher.launch(worker) as incarnation:
            port = await self._set_up(worker, incarnation)
            silent = await self._listen(port)
            if self._finishing:
                return
            if port in self.ports:  # else it has been buried already
                self._bury(port, silent or await self._ending_of(incarnation))

    async def _set_up(self, worker: int, incarnation: Incarnation) -> Port:
        channel = incarnation.channel
        try:
            await channel.send(self._setups[worker])
            with anyio.fail_after(self._patience.open_seconds):
                answer = await channel.receive()
        except TimeoutError:
            limit = self._patience.open_seconds
            raise RunFailure(f"worker {worker} did not open its target within {limit} s") from None
        except ChannelClosed:
            how = await self._ending_of(incarnation)
            raise NotStarted(f"worker {worker} ended while it opened its target: {how}", incarnation.pid) from None
        if isinstance(answer, Failed):
            raise LoadgenError(answer.reason) if answer.usage else TargetError(answer.reason)
        assert isinstance(answer, Ready)
        if answer.opening is not None:
            self._record_opening(worker, incarnation.pid, answer.opening)
        port = Port(worker, incarnation, answer.credits)
        await self._tell_of_stages(port)
        self.ports.append(port)
        self._notify()
        return port

    def _record_opening(self, worker: int, pid: int, opening: Opening) -> None:
        facts = msgspec.to_builtins(opening.info)
        self._recorder.worker_opened(WorkerOpened(worker, pid, opening.start_ns, opening.memory_bytes, facts))

    async def _tell_of_stages(self, port: Port) -> None:
        """Tell a worker of the stages under way, those included that begin or stop meanwhile."""
        begun: set[int] = set()
        stopped: set[int] = set()
        while True:
            begin = self._stages.keys() - begun
            stop = self._stages.keys() & self._stop_messages.keys() - stopped
            if not begin and not stop:
                return
            for stage in begin:
                await self._send(port, self._stages[stage](port.worker, self._clock.now_ns()))
                begun.add(stage)
            for stage in stop & begun:
                await self._send(port, self._stop_messages[stage])
                stopped.add(stage)

    async def _ending_of(self, incarnation: Incarnation) -> str:
        with anyio.move_on_after(_ENDING_SECONDS):
            return await incarnation.ended()
        return "its connection ended, but not its process"

    async def _listen(self, port: Port) -> str | None:
        """Hear a worker until its channel ends; returns what to say of one that hangs, None of one that is gone."""
        try:
            with anyio.CancelScope() as listening:
                while True:
                    listening.deadline = anyio.current_time() + _SILENCE_SECONDS
                    message = await port.channel.receive()
                    if port in self.ports:  # one that was buried has been accounted for, and has no more to tell
                        self._hear(port, message)
                    self._notify()
        except ChannelClosed:
            return None
        return f"it said nothing for {_SILENCE_SECONDS} s and was ended"

    def _hear(self, port: Port, message: Message) -> None:
        match message:
            case Grant():
                port.credits += message.credits
            case Started():
                self.started[message.stage] += len(message.indices)
                port.unstarted -= len(message.indices)
                for index, intended_ns in zip(message.indices, message.intended_ns, strict=True):
                    self.last_start_ns[message.stage] = max(self.last_start_ns[message.stage], intended_ns)
                    if index in port.outstanding:
                        port.outstanding[index] = Outstanding(message.stage, intended_ns)
            case Snapshot():
                self._recorder.worker(message.stats)
                for delta in message.deltas:
                    stop = self._stop_messages.get(delta.stage)
                    for index in delta.ended:
                        job = port.outstanding.pop(index, None)
                        if stop is not None and job is not None and (job.intended_ns or 0) > stop.stop_ns:
                            self.overtaken[delta.stage] += 1
                    self._recorder.apply(delta, port.worker, self._clock.now_ns())
            case Returned():
                for index in message.indices:
                    returned = port.outstanding.pop(index, None)
                    port.unstarted -= returned is not None and returned.intended_ns is None
            case Stopped():
                port.stopped.add(message.stage)
            case Gone():
                self._bury(port, message.reason, unsent=True)
            case _:
                raise RunFailure(f"worker {port.worker} sent {type(message).__name__} out of turn")

    def _bury(self, port: Port, reason: str, *, unsent: bool = False) -> None:
        """A worker is dead: what was due or in flight there is lost, the rest goes to others.

        `unsent`: it has told of all that it sent, so that nothing is lost, and what was due waits for the target.
        """
        now_ns = self._clock.now_ns()
        self.ports.remove(port)
        account = UNFINISHED if unsent else LOST
        over: defaultdict[int, list[int]] = defaultdict(list)
        for index, job in port.outstanding.items():
            stop = self._stop_messages.get(job.stage)
            if stop is None and (unsent or job.intended_ns is None or job.intended_ns > now_ns):
                self.requeued.append(Requeued(job.stage, index, job.intended_ns, account))
                if job.intended_ns is not None and job.intended_ns <= now_ns:
                    self._waiting.add(index)
            elif job.intended_ns is not None and job.intended_ns <= (now_ns if stop is None else stop.stop_ns):
                over[job.stage].append(job.intended_ns)
        for stage, intended_ns in over.items():
            # Those lost are not excused: some of them were never sent, and that is the generator's doing.
            self._recorder.book(stage, account, intended_ns, queued=unsent)
        lost = 0 if unsent else sum(map(len, over.values()))
        self._recorder.worker_died(WorkerDeath(port.worker, port.pid, reason, lost))
        self._notify()
        self._notify_of_returned()

    def _abandon_requeued(self, stop: Stop) -> None:
        ours = [job for job in self.requeued if job.stage == stop.stage]
        self.requeued = [job for job in self.requeued if job.stage != stop.stage]
        for account in (LOST, UNFINISHED):
            over = [
                job.intended_ns
                for job in ours
                if job.account == account and job.intended_ns is not None and job.intended_ns <= stop.stop_ns
            ]
            if over:
                self._recorder.book(stop.stage, account, over, queued=account == UNFINISHED)

    async def _finish(self, tasks: TaskGroup) -> None:
        self._finishing = True
        for port in list(self.ports):
            port.incarnation.finishing = True
            await self._send(port, Finish())
        with anyio.move_on_after(self._patience.close_seconds):
            while self.ports:
                await self.changed()
        tasks.cancel_scope.cancel()

    async def _send(self, port: Port, message: Message) -> None:
        try:
            await port.channel.send(message)
        except ChannelClosed:
            return  # its supervisor sees the same end and books what it had

    def _notify_of_returned(self) -> None:
        self._returned.set()
        self._returned = anyio.Event()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
