"""The producer: hands the arrivals of one stage to the workers, ahead of their time and within their credits.

An open loop never slows its schedule: without a free credit a job waits here, keeping its intended start, or is
dropped.
"""

from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Final, NamedTuple

import anyio
import numpy as np

from loadgen.clock import Clock
from loadgen.load.arrivals import Schedule
from loadgen.load.halt import Halt
from loadgen.load.stages import StagePlan
from loadgen.measure.outcome import DROPPED, UNFINISHED
from loadgen.measure.recorder import Recorder
from loadgen.units import NS_PER_MS, NS_PER_SECOND
from loadgen.workers.pool import Pool, Port
from loadgen.workers.sizing import slot_shares

INDICES_PER_STAGE: Final = 1_000_000_000
"""Stage s has the indices from s times this on: stages never share one, and a stage that is run again, alone or after
others, sends the same."""
_TICK_NS: Final = 25 * NS_PER_MS
"""Arrivals are shipped in batches at most this often; the lookahead hides it."""
_HALT_TICK_NS: Final = 100 * NS_PER_MS
"""While the pool's news are waited for, how soon the halt is noticed."""


class Ended(NamedTuple):
    """How the arrivals of a stage ended. `intended` is None where only the workers know it (closed loop)."""

    stop_ns: int
    ended_by: str
    intended: int | None


class AutoResetEvent:
    """One thing to wait for where any of several may happen: a wait that returns clears it.

    What happens while nobody waits is kept for the next wait, several of them as one.
    """

    def __init__(self) -> None:
        self._event = anyio.Event()

    async def wait(self) -> None:
        """Return once it is set, at once where it is, and clear it."""
        await self._event.wait()
        self._event = anyio.Event()

    async def set_after(self, happens: Callable[[], Awaitable[None]]) -> None:
        """Set it once `happens()` has returned."""
        await happens()
        self._event.set()

    async def set_after_each(self, happens: Callable[[], Awaitable[None]]) -> None:
        """Set it each time that `happens()` returns, until cancelled."""
        while True:
            await self.set_after(happens)


class Producer:
    """Produces the stages of one run. Each has a range of indices of its own, so that what one stage sends does not
    depend on how far another one came."""

    def __init__(self, pool: Pool, recorder: Recorder, clock: Clock, *, lookahead_ns: int) -> None:
        self._pool = pool
        self._recorder = recorder
        self._clock = clock
        self.lookahead_ns = lookahead_ns
        self._turn = 0
        self.credits_exhausted_ns = 0
        """How long jobs were due and no worker had a credit left."""

    def schedule(self, stage: int, plan: StagePlan, origin_ns: int, seed: int) -> Schedule | None:
        """The arrivals of a stage, drawn from one generator of its own; None in a closed loop.

        A generator for each stage, so that how far one stage got does not change the arrivals of the next.
        """
        if plan.arrivals is None:
            return None
        return Schedule(plan.arrivals, np.random.default_rng((seed, stage)), origin_ns)

    async def produce(
        self, stage: int, plan: StagePlan, origin_ns: int, schedule: Schedule | None, halt: Halt
    ) -> Ended:
        """Ship the arrivals of a stage until they end or its halt is asked for."""
        indices = count(stage * INDICES_PER_STAGE)
        if schedule is None:
            return await self._closed_loop(stage, plan, origin_ns, indices, halt)
        if plan.kind == "offline":
            return await self._offline(stage, schedule, indices, halt)
        return await self._open_loop(stage, plan, schedule, indices, halt)

    async def _open_loop(
        self, stage: int, plan: StagePlan, schedule: Schedule, indices: Iterator[int], halt: Halt
    ) -> Ended:
        wake = AutoResetEvent()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wake.set_after, halt.asked)
            tasks.start_soon(wake.set_after_each, self._pool.returned)
            ended = await self._ship_in_time(stage, plan, schedule, indices, halt, wake)
            tasks.cancel_scope.cancel()
        return ended

    async def _ship_in_time(
        self, stage: int, plan: StagePlan, schedule: Schedule, indices: Iterator[int], halt: Halt, wake: AutoResetEvent
    ) -> Ended:
        waited = False
        while halt.reason is None and (now_ns := self._clock.now_ns()) < schedule.end_ns:
            await self._ship_until(stage, schedule, indices, now_ns + self.lookahead_ns)
            waited = self._behind(schedule)
            if waited:
                if plan.overflow == "drop":
                    self._recorder.book(stage, DROPPED, schedule.take(self._clock.now_ns(), 1 << 30))
                await self._wait(now_ns + _TICK_NS)
                self.credits_exhausted_ns += self._clock.now_ns() - now_ns
            else:
                next_ns = schedule.end_ns if schedule.next_ns is None else schedule.next_ns - self.lookahead_ns
                await self._wait(min(max(now_ns + _TICK_NS, next_ns), schedule.end_ns), wake)
        return self._end(stage, schedule, halt, waited)

    def _end(self, stage: int, schedule: Schedule, halt: Halt, waited: bool) -> Ended:
        """The arrivals are over: what was due and never found a credit is unfinished.

        waited: there was no credit for it when it was last looked for one.
        """
        now_ns = self._clock.now_ns()
        halted = halt.reason is not None and now_ns < schedule.end_ns
        stop_ns = now_ns if halted else schedule.end_ns
        # With a credit free all along they waited for the producer and not for a slot: that is the generator's doing.
        waited_for_slots = waited or not any(port.credits > 0 for port in self._pool.ports)
        self._recorder.book(stage, UNFINISHED, schedule.take(stop_ns, 1 << 30), queued=waited_for_slots)
        ended_by = halt.reason if halted and halt.reason else schedule.ended_by
        return Ended(stop_ns, ended_by, schedule.intended_by(stop_ns))

    async def _offline(self, stage: int, schedule: Schedule, indices: Iterator[int], halt: Halt) -> Ended:
        """All at once: the stage lasts until the last request has ended."""
        while halt.reason is None:
            await self._ship_until(stage, schedule, indices, schedule.end_ns)
            if schedule.next_ns is None and self._pool.outstanding(stage) == 0:
                return Ended(self._clock.now_ns(), schedule.ended_by, schedule.count)
            await self._wait(self._clock.now_ns() + _HALT_TICK_NS)
        stop_ns = self._clock.now_ns()
        self._recorder.book(stage, UNFINISHED, schedule.take(stop_ns, 1 << 30))
        return Ended(stop_ns, halt.reason, schedule.intended_by(stop_ns))

    async def _closed_loop(
        self, stage: int, plan: StagePlan, origin_ns: int, indices: Iterator[int], halt: Halt
    ) -> Ended:
        limit = unshipped = plan.load.requests
        end_ns = None if plan.load.duration is None else origin_ns + plan.load.duration
        while halt.reason is None:
            now_ns = self._clock.now_ns()
            if end_ns is not None and now_ns >= end_ns:
                return Ended(end_ns, "duration", None)
            if limit is not None and self._pool.started[stage] >= limit:
                return Ended(self._pool.last_start_ns[stage], "requests", None)
            await self._ship_requeued(stage)
            unshipped = await self._prefetch(stage, plan.concurrency or 1, unshipped, indices)
            await self._wait(min(now_ns + _HALT_TICK_NS, end_ns or now_ns + _HALT_TICK_NS))
        return Ended(self._clock.now_ns(), halt.reason, None)

    async def _prefetch(self, stage: int, slots: int, unshipped: int | None, indices: Iterator[int]) -> int | None:
        """Give each worker jobs for its slots and as many beyond; returns how many of a given number are left.

        The last jobs of a given number are dealt so that no worker hoards what another one's slots could start.
        """
        shares = slot_shares(slots, self._pool.size)
        for ahead in (1, 2):
            for port in list(self._pool.ports):
                share = shares[port.worker]
                wanted = ahead * share - port.unstarted
                if unshipped is not None:
                    fair = unshipped if ahead == 1 else unshipped // self._pool.size
                    wanted = min(wanted, fair)
                # Topping up by a few at a time saves messages; a slot without a job is served at once.
                if wanted >= (1 if ahead == 1 else max(1, share // 4)):
                    await self._ship(port, stage, [next(indices) for _ in range(wanted)], [])
                    unshipped = None if unshipped is None else unshipped - wanted
        return unshipped

    # --- shipping -----------------------------------------------------------------------------------------------------

    def _behind(self, schedule: Schedule) -> bool:
        """Whether an arrival is due that no worker had a credit for."""
        next_ns = schedule.next_ns
        return next_ns is not None and next_ns <= self._clock.now_ns()

    async def _ship_until(self, stage: int, schedule: Schedule, indices: Iterator[int], until_ns: int) -> None:
        await self._ship_requeued(stage)
        credits = sum(max(0, port.credits) for port in self._pool.ports)
        instants = schedule.take(until_ns, credits)
        await self._deal(stage, [next(indices) for _ in instants], instants)

    async def _ship_requeued(self, stage: int) -> None:
        """Give to others what came back from a worker that died."""
        ours = [job for job in self._pool.requeued if job.stage == stage]
        if not ours or not self._pool.ports:
            return
        self._pool.requeued = [job for job in self._pool.requeued if job.stage != stage]
        if ours[0].intended_ns is None:
            ports = list(self._pool.ports)
            for position, port in enumerate(ports):
                await self._ship(port, stage, [job.index for job in ours[position :: len(ports)]], [])
            return
        await self._deal(stage, [job.index for job in ours], [job.intended_ns or 0 for job in ours])

    async def _deal(self, stage: int, indices: list[int], intended_ns: list[int]) -> None:
        """Deal jobs to the workers in turn, passing over those without credits; with none at all, in turn all the same
        (jobs of a dead worker: it had the credits)."""
        ports = list(self._pool.ports)
        dealt: list[tuple[list[int], list[int]]] = [([], []) for _ in ports]
        credits = [max(0, port.credits) for port in ports]
        for index, intended in zip(indices, intended_ns, strict=True):
            for _ in ports:
                self._turn = (self._turn + 1) % len(ports)
                if credits[self._turn] > 0:
                    break
            credits[self._turn] -= 1
            dealt[self._turn][0].append(index)
            dealt[self._turn][1].append(intended)
        for port, jobs in zip(ports, dealt, strict=True):
            await self._ship(port, stage, *jobs)

    async def _ship(self, port: Port, stage: int, indices: list[int], intended_ns: list[int]) -> None:
        if not indices:
            return
        if port in self._pool.ports:
            await self._pool.ship(port, stage, indices, intended_ns)
        else:  # it died while others were served
            self._pool.requeue(stage, indices, intended_ns)

    async def _wait(self, until_ns: int, wake: AutoResetEvent | None = None) -> None:
        """Wait until about an instant, less if `wake` is set, or, without one, if the pool has news."""
        seconds = max(0, until_ns - self._clock.now_ns()) / NS_PER_SECOND
        with anyio.move_on_after(seconds):
            await (self._pool.changed() if wake is None else wake.wait())
