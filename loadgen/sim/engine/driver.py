"""The simulated engine as an actor: it steps the scheduler in time, virtual or real, and hands out the tokens."""

import anyio

from loadgen.clock import Clock
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine.engine import Engine, TokenStream
from loadgen.sim.engine.fixed_delay import FixedDelayEngine
from loadgen.sim.engine.scheduler import Scheduler, SimRequest, Step
from loadgen.units import NS_PER_SECOND


class SimEngine(Engine):
    """The engine that batches: a scheduler stepped in time.

    Step k + 1 begins at the instant at which the model says that step k ended, not when this task woke: a late wake
    delays its tokens but never the steps after it, so the engine's speed is the model's on any machine that keeps up.
    """

    def __init__(
        self, config: SimConfig | None = None, faults: SimFaults | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(config or SimConfig(), faults or SimFaults(), clock)
        self._scheduler = Scheduler(self.config)
        self._added: anyio.Event | None = None

    @property
    def running(self) -> int:
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        return self._scheduler.waiting

    @property
    def kv_usage(self) -> float:
        return self._scheduler.kv_blocks_used / self.config.num_kv_blocks

    @property
    def preemptions(self) -> int:
        return self._scheduler.preemptions

    async def _run(self) -> None:
        begin_ns = self.clock.now_ns()
        while True:
            if self._scheduler.idle:
                await self._until_added()
                begin_ns = self.clock.now_ns()
            resumed_ns = self._past_stall(begin_ns)
            if resumed_ns != begin_ns:
                await self._sleep_until(resumed_ns)
                begin_ns = resumed_ns
            step = self._scheduler.step(begin_ns)
            if step is not None:  # it is where all were aborted meanwhile
                await self._sleep_until(step.end_ns)
                self._deliver(step)
                begin_ns = step.end_ns

    async def _until_added(self) -> None:
        self._added = anyio.Event()
        await self._added.wait()
        self._added = None

    async def _sleep_until(self, instant_ns: int) -> None:
        self._timer.arm(instant_ns)
        await self._timer.wait()

    def _deliver(self, step: Step) -> None:
        for admission in step.admitted:
            self.statistics.queue.add(admission.waited_ns / NS_PER_SECOND)
        now_ns = self.clock.now_ns()
        for emission in step.emissions:
            stream = self._streams.get(emission.id)
            if stream is not None:  # else it was aborted during the step
                self._emit(stream, emission.tokens, emission.finished, now_ns)

    def _submit(self, stream: TokenStream, output_tokens: int) -> None:
        self._scheduler.add(SimRequest(stream.stream_id, stream.prompt_tokens, output_tokens), stream.added_ns)
        if self._added is not None:
            self._added.set()

    def _withdraw(self, stream: TokenStream) -> None:
        self._scheduler.abort(stream.stream_id)


def make_engine(config: SimConfig, faults: SimFaults, clock: Clock | None = None) -> Engine:
    """The engine that these settings ask for: batching, or of a fixed delay."""
    if faults.response_delay_seconds is None:
        return SimEngine(config, faults, clock)
    return FixedDelayEngine(config, faults, clock)
