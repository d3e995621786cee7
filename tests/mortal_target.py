"""A target that dies when it is told to, as an engine in a worker does, and opens again in a time that is known."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import anyio

from loadgen.clock import Clock
from loadgen.measure.outcome import Exchange
from loadgen.profile import Profile, Workload
from loadgen.targets.base import Opening, TargetInfo
from loadgen.targets.sim import tokenizer_of_simulator
from loadgen.units import NS_PER_SECOND
from loadgen.workload.request import Request

ENGINE_DEAD = "engine_dead"
REASON = "the engine died: its core, signal SIGKILL"


class MortalTarget:
    """Answers each request after `answer_seconds`, with one chunk of four tokens.

    Once it dies, the requests in flight end as failed, each `notice_seconds` after the one of the index before (the
    first at once), and `watch` returns after `words_seconds`. What is sent to it then fails at once.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        answer_seconds: float = 1.0,
        notice_seconds: float = 0.0,
        words_seconds: float = 0.5,
        start_ns: int = 0,
    ) -> None:
        self.opening: Opening | None = Opening(
            info=TargetInfo(kind="sim", model="mortal"),
            tokenization=tokenizer_of_simulator(),
            start_ns=start_ns,
            memory_bytes=1 << 30,
        )
        self.sent: list[int] = []
        """Indices, in the order in which they were sent."""
        self._clock = clock
        self._answer_seconds = answer_seconds
        self._notice_seconds = notice_seconds
        self._words_seconds = words_seconds
        self._death = anyio.Event()

    def die(self) -> None:
        self._death.set()

    def with_workload(self, workload: Workload) -> "MortalTarget":
        return self

    def prepare(self, request: Request) -> int:
        return request.index

    async def send(self, prepared: int, exchange: Exchange) -> None:
        self.sent.append(prepared)
        with anyio.move_on_after(self._answer_seconds):
            await self._death.wait()
        if self._death.is_set():
            await anyio.sleep(prepared * self._notice_seconds)
            exchange.failure, exchange.message, exchange.target_gone = ENGINE_DEAD, REASON, True
        else:
            exchange.chunks_ns.append(self._clock.now_ns())
            exchange.events = exchange.reads = 1
            exchange.output_tokens = 4
            exchange.finish_reason = "length"
        exchange.end_ns = self._clock.now_ns()

    async def watch(self) -> str:
        await self._death.wait()
        await anyio.sleep(self._words_seconds)
        return REASON


class Lives:
    """Opens one mortal target after the other: put it in place of an entry of `kinds.KINDS`.

    `deaths` are the instants at which the targets die, in the order in which they are opened; those opened after the
    last of them live on. Opening takes `start_seconds` but for the first `workers`, which are there at once.
    """

    def __init__(
        self, deaths: Iterable[float] = (), *, start_seconds: float = 5.0, workers: int = 1, answer_seconds: float = 1.0
    ) -> None:
        self._deaths = list(deaths)
        self._start_seconds = start_seconds
        self._workers = workers
        self._answer_seconds = answer_seconds
        self.targets: list[MortalTarget] = []

    @asynccontextmanager
    async def __call__(self, profile: Profile, info: TargetInfo, clock: Clock) -> AsyncIterator[MortalTarget]:
        seconds = 0.0 if len(self.targets) < self._workers else self._start_seconds
        target = MortalTarget(
            clock, answer_seconds=self._answer_seconds, start_ns=round(seconds * NS_PER_SECOND), words_seconds=0.5
        )
        self.targets.append(target)
        death = self._deaths.pop(0) if self._deaths else None
        await anyio.sleep(seconds)
        async with anyio.create_task_group() as tasks:
            if death is not None:
                tasks.start_soon(self._kill_at, target, death)
            yield target
            tasks.cancel_scope.cancel()

    @staticmethod
    async def _kill_at(target: MortalTarget, seconds: float) -> None:
        await anyio.sleep_until(seconds)
        target.die()
