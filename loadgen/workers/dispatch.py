"""A worker's heart: jobs wait until they are due, for a free slot if need be, and become one task each.

Runs on asyncio and trio, in real or virtual time. It knows no channel: what the worker must tell the parent is left in
`Dispatcher.news`.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup, TaskStatus

from loadgen.clock import Clock
from loadgen.measure.aggregate import StageMeter
from loadgen.measure.outcome import CANCELLED, COMPLETED, DROPPED, FAILED, TIMEOUT, UNFINISHED, Exchange, Outcome
from loadgen.targets.base import Target
from loadgen.units import NS_PER_SECOND, NS_PER_US
from loadgen.workers.jobs import Job, News, StageRun
from loadgen.workers.messages import Stop

_RENDER_SLICE_NS: Final = 200 * NS_PER_US
"""How long rendering ahead may hold the loop at a stretch; it adds to the lateness of what falls due meanwhile."""

_ABANDON_SECONDS: Final = 5
"""How long requests in flight may take to end by themselves once their target is gone."""

_RELEASE_AT_ONCE: Final = 16
"""How many due jobs start before the loop reads its sockets again. A worker that is behind would otherwise start all
that is due at once, each on a new connection, though answers that have come would free some: connecting costs several
times a request, so it would fall behind further."""


class Dispatcher:
    """Starts each job at its intended start, never before, or as soon after as one of `slots` is free."""

    def __init__(self, target: Target, clock: Clock, *, slots: int, timeout_ns: int, open_since_ns: int = 0) -> None:
        """`open_since_ns` is when the target could first be loaded: what is due before it waits for a slot."""
        self._target = target
        self._clock = clock
        self._timer = clock.timer()
        self._slots = slots
        self._timeout_ns = timeout_ns
        self._runs: dict[int, StageRun] = {}
        self._due: list[Job] = []
        """A heap by intended start."""
        self._waiting: deque[Job] = deque()
        """Due jobs without a slot, in order."""
        self._unrendered: deque[Job] = deque()
        self._to_render = anyio.Event()
        self._free_since_ns = open_since_ns
        """Since when a slot has been free, while one is."""
        self._in_flight = 0
        self._sent: dict[Job, int] = {}
        """When those in flight were sent, in order: with one timeout for all, the first is the next to reach it."""
        self._tasks: TaskGroup | None = None
        self._abandoned = False
        """The target is gone: nothing is started any more."""
        self._one_ended = anyio.Event()
        self.news = News()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def queued(self) -> int:
        """Jobs that are due and wait for a slot."""
        return len(self._waiting)

    @property
    def meters(self) -> list[StageMeter]:
        """The meters of the stages that are not over, oldest first."""
        return [run.meter for run in self._runs.values()]

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Dispatch until cancelled; requests in flight then are cancelled too."""
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._render_ahead)
                self._tasks.start_soon(self._time_out_forever)
                task_status.started()
                await self._release_forever()
        finally:
            self._timer.close()

    # --- what the parent asks for -------------------------------------------------------------------------------------

    def begin(self, run: StageRun, *, slots: int, slots_from_ns: int, stop_ns: int | None) -> None:
        """A stage begins; a closed one with `slots` slots from `slots_from_ns`, and no start from `stop_ns` on."""
        self._runs[run.stage] = run
        run.stop_ns = stop_ns
        if run.closed:
            assert self._tasks is not None
            self._tasks.start_soon(self._open_slots, run, slots, slots_from_ns)

    def add(self, stage: int, indices: list[int], intended_ns: list[int], queued_until_ns: int = 0) -> None:
        """Take jobs: of an open loop with their intended starts, of a closed one for the slots to start.

        Until `queued_until_ns` they waited for a target, and not for the generator.
        """
        if self._abandoned:
            return
        run = self._runs[stage]
        run.held += len(indices)
        if run.closed:
            jobs = [Job(run, index, 0) for index in indices]
            run.prefetched.extend(jobs)
        else:
            pairs = zip(indices, intended_ns, strict=True)
            jobs = [Job(run, index, intended, queued_until_ns) for index, intended in pairs]
            for job in jobs:
                heapq.heappush(self._due, job)
            if self._due:
                self._timer.arm(self._due[0].intended_ns)
        self._unrendered.extend(jobs)
        self._to_render.set()
        if run.closed:
            self._match(run)

    def stop(self, stop: Stop) -> list[int]:
        """End the arrivals of a stage; returns the indices of the jobs that were never intended.

        Jobs intended up to `stop.stop_ns` that have not been sent end as unfinished; those in flight go on, at most
        until `stop.drain_until_ns`.
        """
        run = self._runs[stop.stage]
        run.stopped = True
        run.stop_ns = stop.stop_ns
        self._release(min(self._clock.now_ns(), stop.stop_ns))
        recalled = [job for job in self._due if job.run is run and job.intended_ns > stop.stop_ns]
        recalled.extend(run.prefetched)
        run.prefetched.clear()
        self._due = [job for job in self._due if job.run is not run or job.intended_ns <= stop.stop_ns]
        heapq.heapify(self._due)
        unsent = [job for job in self._waiting if job.run is run]
        self._waiting = deque(job for job in self._waiting if job.run is not run)
        for job in unsent:
            self._end_unsent(job, UNFINISHED)
        for job in recalled:
            job.cut = CANCELLED  # so that rendering ahead passes over it
        run.held -= len(recalled)
        self.news.credits += len(recalled)
        self.news.tell()
        if stop.drain_until_ns is not None:
            assert self._tasks is not None
            self._tasks.start_soon(self._drain, run, stop.drain_until_ns)
        self._close_if_over(run)
        return [job.index for job in recalled]

    def cancel(self, stage: int) -> None:
        """End what is in flight of a stage as cancelled."""
        if stage in self._runs:
            self._cut(self._runs[stage].in_flight.values(), CANCELLED)

    async def abandon(self) -> None:
        """The target is gone: start nothing more, and wait for what is in flight to end, as it soon does.

        Jobs that were not sent stay unrecorded: the parent, which knows of them, gives them to others.
        """
        self._abandoned = True
        self._due.clear()
        self._waiting.clear()
        for run in self._runs.values():
            run.prefetched.clear()
        with anyio.move_on_after(_ABANDON_SECONDS):
            await self._none_in_flight()
        for run in list(self._runs.values()):
            self._cut(run.in_flight.values(), FAILED + "target")
        await self._none_in_flight()

    async def _none_in_flight(self) -> None:
        while self._in_flight:
            self._one_ended = anyio.Event()
            await self._one_ended.wait()

    # --- the tasks ----------------------------------------------------------------------------------------------------

    async def _release_forever(self) -> None:
        while True:
            await self._timer.wait()
            self._release(self._clock.now_ns(), at_most=_RELEASE_AT_ONCE)
            if self._due and not self._abandoned:
                self._timer.arm(self._due[0].intended_ns)

    async def _render_ahead(self) -> None:
        while True:
            await self._to_render.wait()
            self._to_render = anyio.Event()
            began_ns = self._clock.now_ns()
            while self._unrendered:
                self._render(self._unrendered.popleft())
                if self._clock.now_ns() - began_ns > _RENDER_SLICE_NS:
                    await anyio.lowlevel.checkpoint()
                    began_ns = self._clock.now_ns()

    async def _time_out_forever(self) -> None:
        # One watch over all, since a timer for each request costs more than all else that is done for its timeout.
        while True:
            oldest = next(iter(self._sent), None)
            # Where nothing is in flight, what is sent from now on cannot reach its timeout before this.
            sent_ns = self._clock.now_ns() if oldest is None else self._sent[oldest]
            if oldest is None or sent_ns + self._timeout_ns > self._clock.now_ns():
                await self._clock.sleep_until(sent_ns + self._timeout_ns)
                continue
            del self._sent[oldest]
            assert oldest.scope is not None
            oldest.scope.cancel()

    async def _open_slots(self, run: StageRun, slots: int, from_ns: int) -> None:
        await self._clock.sleep_until(from_ns)
        run.free_slots.extend([from_ns] * slots)
        self._match(run)

    async def _drain(self, run: StageRun, until_ns: int) -> None:
        with anyio.CancelScope() as run.drain_scope:
            if run.held:
                await self._clock.sleep_until(until_ns)
                self._cut(run.in_flight.values(), UNFINISHED)

    async def _follow(self, job: Job, admitted_ns: int) -> None:
        self._render(job)
        exchange = Exchange(texts=[] if job.run.texts else None)
        if job.fault is not None:
            exchange.failure, exchange.message = "request", job.fault
            self._end(job, admitted_ns, None, exchange)
            return
        assert job.scope is not None
        sent_ns = self._sent[job] = self._clock.now_ns()
        job.run.meter.entered(sent_ns)
        with job.scope:
            try:
                await (job.run.target or self._target).send(job.prepared, exchange)
            except Exception as error:
                # A target books its failures itself; one that raises has a fault of its own, which must cost one
                # request and not the worker with all that it has in flight.
                exchange.failure, exchange.message = "target", f"{type(error).__name__}: {error}"
        self._sent.pop(job, None)
        # A target may be cancelled while it tidies up after a complete answer: then the request has ended all the same.
        cancelled = job.scope.cancelled_caught and exchange.end_ns is None
        if cancelled and job.cut is None:
            exchange.failure, exchange.message = TIMEOUT, f"no end after {self._timeout_ns / NS_PER_SECOND:g} s"
        self._end(job, admitted_ns, sent_ns, exchange, cut=job.cut if cancelled else None)

    # --- the steps of a job -------------------------------------------------------------------------------------------

    def _render(self, job: Job) -> None:
        if job.prepared is not None or job.fault is not None or job.cut is not None:
            return
        try:
            job.request = job.run.workload.request(job.index)
            job.prepared = (job.run.target or self._target).prepare(job.request)
        except Exception as error:  # what one row of the workload holds must not end the run; it is booked as failed
            job.fault = f"{type(error).__name__}: {error}"

    def _release(self, now_ns: int, at_most: float = math.inf) -> None:
        while self._due and self._due[0].intended_ns <= now_ns and at_most > 0 and not self._abandoned:
            at_most -= 1
            job = heapq.heappop(self._due)
            if self._in_flight < self._slots and not self._waiting:
                self._start(job, max(job.queued_until_ns, self._free_since_ns))
            elif job.run.drop:
                self._end_unsent(job, DROPPED)
            else:
                self._waiting.append(job)

    def _match(self, run: StageRun) -> None:
        """Start prefetched jobs on the free slots of a closed loop; the instant a slot became free is their start."""
        while run.free_slots and run.prefetched and not run.stopped and not self._abandoned:
            free_ns = run.free_slots[0]
            if run.stop_ns is not None and max(free_ns, self._clock.now_ns()) >= run.stop_ns:
                return
            run.free_slots.popleft()
            job = run.prefetched.popleft()
            job.intended_ns = free_ns
            indices, intended = self.news.started.setdefault(run.stage, ([], []))
            indices.append(job.index)
            intended.append(free_ns)
            self.news.tell()
            self._start(job, free_ns)

    def _start(self, job: Job, admitted_ns: int) -> None:
        assert self._tasks is not None
        self._in_flight += 1
        job.scope = anyio.CancelScope()
        job.run.in_flight[job.index] = job
        self._tasks.start_soon(self._follow, job, admitted_ns)

    def _end(
        self, job: Job, admitted_ns: int, sent_ns: int | None, exchange: Exchange, *, cut: str | None = None
    ) -> None:
        run = job.run
        end_ns = self._clock.now_ns() if exchange.end_ns is None else exchange.end_ns
        # Before this one's slot starts another, which would only fail, too.
        self._abandoned = self._abandoned or exchange.target_gone
        if sent_ns is not None:
            run.meter.left(end_ns)
        del run.in_flight[job.index]
        account = cut or (COMPLETED if exchange.failure is None else FAILED + exchange.failure)
        self._record(job, account, admitted_ns, sent_ns, end_ns, exchange)
        self._free_slot(run, end_ns)
        self._close_if_over(run)
        if self._abandoned:
            self._one_ended.set()

    def _end_unsent(self, job: Job, account: str) -> None:
        job.cut = account
        self._record(job, account, None, None, self._clock.now_ns(), Exchange())

    def _record(
        self, job: Job, account: str, admitted_ns: int | None, sent_ns: int | None, end_ns: int, exchange: Exchange
    ) -> None:
        request = job.request
        job.run.meter.record(
            Outcome(
                stage=job.run.stage,
                index=job.index,
                account=account,
                intended_ns=job.intended_ns,
                admitted_ns=admitted_ns,
                sent_ns=sent_ns,
                end_ns=end_ns,
                prompt_tokens_asked=None if request is None else request.prompt_tokens,
                output_tokens_asked=None if request is None else request.output_tokens,
                exchange=exchange,
                expected=None if request is None else request.expected,
                again=request is not None and request.again,
            )
        )
        job.run.held -= 1
        self.news.credits += 1
        self.news.tell()

    def _free_slot(self, run: StageRun, at_ns: int) -> None:
        was_full = self._in_flight >= self._slots
        self._in_flight -= 1
        if run.closed:
            run.free_slots.append(at_ns)
            self._match(run)
        elif self._waiting and not self._abandoned:
            job = self._waiting.popleft()
            self._start(job, max(at_ns, job.queued_until_ns))
        elif was_full:
            self._free_since_ns = at_ns

    def _cut(self, jobs: Iterable[Job], account: str) -> None:
        for job in jobs:
            job.cut = job.cut or account
            if job.scope is not None:
                job.scope.cancel()

    def _close_if_over(self, run: StageRun) -> None:
        # Once abandoned it takes no jobs, and so cannot tell whether the parent has given it all: its end tells.
        if run.stopped and run.held == 0 and not self._abandoned:
            if run.drain_scope is not None:
                run.drain_scope.cancel()
            self._runs.pop(run.stage, None)
            self.news.tell_over(run)
