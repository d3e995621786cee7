"""One stage of a run: announced, produced, looked at on its way, stopped, drained, and its books closed."""

from functools import partial
from typing import Any, Final

import anyio
import msgspec

from loadgen.clock import Clock, MonotonicClock
from loadgen.judge.stages import StagesSoFar
from loadgen.load.arrivals import Schedule
from loadgen.load.halt import Halt
from loadgen.load.producer import Ended, Producer
from loadgen.load.stages import StagePlan
from loadgen.measure.journal import StageEnd, StageMeta
from loadgen.measure.recorder import Recorder
from loadgen.profile import Ramp, StopWhen
from loadgen.profile.slo import Slo
from loadgen.search.probe import decided
from loadgen.search.stop_when import stop_reason
from loadgen.summary.interim import InterimLook
from loadgen.summary.summary import Stage
from loadgen.units import NS_PER_MS, NS_PER_SECOND
from loadgen.workers.messages import StageStart, Stop
from loadgen.workers.pool import Pool
from loadgen.workers.sizing import slot_shares
from loadgen.workers.vitals import BusiestSecond

LEAD_NS: Final = 100 * NS_PER_MS
"""From the start of a stage to its first possible arrival: time for the workers to learn of it."""
_ABORT_CHECK_NS: Final = 100 * NS_PER_MS
_STRETCHES: Final = 20
"""A ramp is looked at over so small a part of it, at least over `_SHORTEST_STRETCH_NS`."""
_SHORTEST_STRETCH_NS: Final = 3 * NS_PER_SECOND
_LOOK_EVERY_NS: Final = NS_PER_SECOND


class StageContext(msgspec.Struct, frozen=True):
    """What the stages of one set of workers share.

    stages: how many the run has; 0 where that is decided as it goes.
    deadline_ns: when the search must be over.
    """

    producer: Producer
    pool: Pool
    recorder: Recorder
    clock: Clock
    so_far: StagesSoFar
    stages: int
    deadline_ns: int | None = None


class StageRunner:
    """Runs one stage. `profile` is its own, encoded, where it has settings; `slo` what it is looked at for."""

    def __init__(
        self,
        number: int,
        plan: StagePlan,
        context: StageContext,
        halt: Halt,
        *,
        profile: dict[str, Any] | None = None,
        slo: Slo | None = None,
    ) -> None:
        self._number = number
        self._plan = plan
        self._context = context
        self._run_halt = halt
        self._halt = halt.child()
        self._profile = profile
        self._slo = slo
        self._pool = context.pool
        self._clock = context.clock
        self._recorder = context.recorder
        self._cancelled = False
        self._cpu = BusiestSecond()

    async def run(self, origin_ns: int, schedule: Schedule | None) -> None:
        """Run from a little before `origin_ns` until nothing of the stage is left anywhere."""
        producer = self._context.producer
        try:
            if await self._halted_before(origin_ns - producer.lookahead_ns - LEAD_NS):
                return
            await self._announce(origin_ns, schedule)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_when_insisted)
                async with anyio.create_task_group() as watching:
                    self._watch(watching, origin_ns, schedule)
                    ended = await producer.produce(self._number, self._plan, origin_ns, schedule, self._halt)
                    watching.cancel_scope.cancel()
                await self._pool.stop(Stop(self._number, ended.stop_ns, self._drain_until(ended)))
                tasks.cancel_scope.cancel()
            self._close(ended)
        finally:
            self._run_halt.release(self._halt)

    def _close(self, ended: Ended) -> None:
        # What a worker sent before it learnt of the stop was intended after all.
        intended = (
            self._pool.started[self._number]
            if ended.intended is None
            else ended.intended + self._pool.overtaken[self._number]
        )
        self._recorder.stage_ended(
            StageEnd(
                self._number,
                ended.stop_ns,
                intended,
                "interrupted" if self._cancelled else ended.ended_by,
                parent_cpu=self._cpu.share,
                reason=self._halt.message,
            )
        )

    async def _halted_before(self, instant_ns: int) -> bool:
        with anyio.move_on_after(max(0, instant_ns - self._clock.now_ns()) / NS_PER_SECOND):
            await self._halt.asked()
        return self._halt.reason is not None

    async def _announce(self, origin_ns: int, schedule: Schedule | None) -> None:
        plan, grid = self._plan, self._plan.grid(origin_ns)
        closed_end_ns = None
        if plan.concurrency is not None and plan.load.duration is not None:
            closed_end_ns = origin_ns + plan.load.duration
        shares = None if plan.concurrency is None else slot_shares(plan.concurrency, self._pool.size)
        self._recorder.stage_started(
            StageMeta(
                stage=self._number,
                name=plan.name,
                kind=plan.kind,
                grid=grid,
                offered_rate=plan.offered_rate,
                concurrency=plan.concurrency,
                duration_ns=None if plan.load.duration is None else int(plan.load.duration),
                requests=plan.load.requests if schedule is None else schedule.count,
                warmup_auto=plan.load.warmup == "auto",
                drain_ns=int(plan.load.drain),
                judged=plan.kind != "offline",
                stages=self._context.stages,
                purpose=plan.purpose,
                settings=plan.settings,
                repeat=plan.repeat,
                profile=self._profile,
                from_quarter=plan.first_look_ns is not None,
            )
        )

        def start(worker: int, now_ns: int) -> StageStart:
            return StageStart(
                stage=self._number,
                grid=grid,
                drop=plan.overflow == "drop",
                slots=None if shares is None else shares[worker],
                slots_from_ns=max(origin_ns, now_ns),
                stop_ns=closed_end_ns,
                profile=self._profile,
            )

        await self._pool.begin(self._number, start)

    def _drain_until(self, ended: Ended) -> int | None:
        if self._plan.kind == "offline" and ended.ended_by != "interrupted":
            return None
        now_ns = self._clock.now_ns() if ended.ended_by == "interrupted" else ended.stop_ns
        return max(ended.stop_ns, now_ns) + self._plan.load.drain

    async def _cancel_when_insisted(self) -> None:
        await self._halt.insisted()
        self._cancelled = True
        await self._pool.cancel(self._number)

    # --- looking ------------------------------------------------------------------------------------------------------

    def _watch(self, tasks: anyio.abc.TaskGroup, origin_ns: int, schedule: Schedule | None) -> None:
        """Start whatever may end the arrivals of this stage early, and what watches the parent meanwhile."""
        if isinstance(self._clock, MonotonicClock):  # of virtual seconds CPU time says nothing
            tasks.start_soon(self._cpu.watch, self._clock)
        if self._plan.abort_when is not None:
            tasks.start_soon(self._abort_when_failing)
        if self._context.deadline_ns is not None:
            tasks.start_soon(self._end_at, self._context.deadline_ns)
        if self._plan.first_look_ns is not None:
            tasks.start_soon(self._end_when_decided, origin_ns, schedule)
        load = self._plan.load
        if isinstance(load, Ramp) and load.stop_when is not None:
            tasks.start_soon(self._end_ramp_when, load.stop_when, load, origin_ns, schedule)

    async def _abort_when_failing(self) -> None:
        rule = self._plan.abort_when
        assert rule is not None
        while True:
            await self._clock.sleep_until(self._clock.now_ns() + _ABORT_CHECK_NS)
            ended, failed = self._recorder.error_rate(self._number)
            if ended >= rule.after and failed >= rule.error_rate * ended:
                self._run_halt.ask("abort_when", f"{failed} of {ended} requests failed")
                return

    async def _end_at(self, deadline_ns: int) -> None:
        await self._clock.sleep_until(deadline_ns)
        self._halt.ask("max_time")

    async def _end_when_decided(self, origin_ns: int, schedule: Schedule | None) -> None:
        assert self._plan.first_look_ns is not None
        after_ns = self._plan.first_look_ns
        while True:
            await self._clock.sleep_until(origin_ns + after_ns)
            seen = await self._look(schedule)
            if seen is not None and decided(self._slo, seen):
                self._halt.ask("decided")
                return
            after_ns *= 2

    async def _end_ramp_when(self, rule: StopWhen, load: Ramp, origin_ns: int, schedule: Schedule | None) -> None:
        assert load.duration is not None
        stretch_ns = max(_SHORTEST_STRETCH_NS, load.duration // _STRETCHES)
        now_ns = origin_ns + stretch_ns
        while True:
            # Each look reads the whole stage: as it grows, looks become rarer.
            await self._clock.sleep_until(now_ns)
            seen = await self._look(schedule, stretch_ns)
            reason = None if seen is None else stop_reason(rule, self._slo, load, seen)
            if reason is not None:
                self._halt.ask("stop_when", reason)
                return
            now_ns = self._clock.now_ns() + max(_LOOK_EVERY_NS, (self._clock.now_ns() - origin_ns) // _STRETCHES)

    async def _look(self, schedule: Schedule | None, stretch_ns: int | None = None) -> Stage | None:
        now_ns = self._clock.now_ns()
        unended = [self._pool.oldest_ns(self._number), None if schedule is None else schedule.next_ns]
        at = InterimLook(
            now_ns=now_ns,
            ended_before_ns=min((instant for instant in unended if instant is not None), default=now_ns),
            # What is dropped never came in: of what is let in, no more can be inside than there are slots.
            arrivals_by=None if schedule is None or self._plan.overflow == "drop" else schedule.intended_by,
            stretch_ns=stretch_ns,
        )
        # It reads all that was measured of the stage, which may take a second, and the producer cannot wait for it.
        return await self._clock.beside(partial(self._context.so_far.look, at, self._number))
