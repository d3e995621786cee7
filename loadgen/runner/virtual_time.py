"""Virtual time: an event loop that never waits. When nothing is left to do at an instant, it is the next instant.

For what is made of tasks alone, with no threads nor sockets to wait for: an hour of it takes as long as its work does,
every instant is exact, and tasks run in the same order every time. Signals arrive soon. It is good for half a year:
beyond, seconds as floats are too coarse for asyncio's timers.
"""

import asyncio
import selectors
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import anyio

from loadgen.clock import ReleaseTimer, T
from loadgen.units import NS_PER_SECOND

Result = TypeVar("Result")
_LEAPS_AT_A_STRETCH: Final = 1000
"""So often a task may go on without the loop, which would hear no signal meanwhile."""
_LOOK_EVERY: Final = 50


def run_virtually(main: Callable[["VirtualClock"], Awaitable[Result]]) -> Result:
    """Run a coroutine function in virtual time from 0 on. It is given the clock of that time.

    A task that waits for what no task will do hangs, as on any loop.
    """

    async def begin() -> Result:
        return await main(VirtualClock())

    return anyio.run(begin, backend="asyncio", backend_options={"loop_factory": VirtualLoop})


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time is what its timers say."""

    # The loop's own queues, of every CPython: what is to run now, and a heap of timers by when they are due.
    _ready: "deque[asyncio.Handle]"
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        self.now_ns = 0
        self._seconds = 0.0
        self._leaps_left = _LEAPS_AT_A_STRETCH
        super().__init__(_Leaping(self._leap))

    def time(self) -> float:
        return self._seconds

    def _leap(self, seconds: float) -> None:
        self._leaps_left = _LEAPS_AT_A_STRETCH
        self._seconds += seconds
        self.reach(round(self._seconds * NS_PER_SECOND))

    def leaps_to(self, instant_ns: int) -> bool:
        """Let it be a later instant at once, where the task that runs is the only one with anything to do until then.

        A wait for the instant would come to the same, through the loop and at twenty times the price.
        """
        seconds = instant_ns / NS_PER_SECOND
        if self._ready or (self._scheduled and self._scheduled[0].when() <= seconds) or not self._leaps_left:
            return False
        self._leaps_left -= 1
        self._seconds = max(self._seconds, seconds)
        self.reach(instant_ns)
        return True

    def reach(self, instant_ns: int) -> None:
        """It is this instant now, if not later: after three weeks a float of seconds knows less than nanoseconds."""
        self.now_ns = max(self.now_ns, instant_ns)


class _Leaping(selectors.DefaultSelector):
    """Looks now and then for what is ready, a signal for one, and instead of waiting for it lets the time pass."""

    def __init__(self, leap: Callable[[float], None]) -> None:
        super().__init__()
        self._leap = leap
        self._unlooked = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._unlooked += 1
        ready = []
        if timeout is None or self._unlooked >= _LOOK_EVERY:  # a look costs more than most tasks do between two waits
            self._unlooked = 0
            ready = super().select(None if timeout is None else 0)
        if timeout and not ready:
            self._leap(timeout)
        return ready


class VirtualClock:
    """The clock of the virtual loop that runs."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop

    def now_ns(self) -> int:
        return self._loop.now_ns

    async def sleep_until(self, instant_ns: int) -> None:
        timer = _VirtualTimer(self._loop)
        timer.arm(instant_ns)
        await timer.wait()

    def timer(self) -> ReleaseTimer:
        return _VirtualTimer(self._loop)

    async def beside(self, work: Callable[[], T]) -> T:
        return work()


class _VirtualTimer:
    """A timer of the loop itself: waiting for it costs a tenth of what a cancel scope with a deadline does."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._instant_ns: int | None = None
        self._waking: asyncio.Future[None] | None = None

    def arm(self, instant_ns: int) -> None:
        if instant_ns != self._instant_ns:
            self._instant_ns = instant_ns
            if self._waking is not None:
                _wake(self._waking)

    async def wait(self) -> None:
        if self._instant_ns is not None:
            if self._instant_ns <= self._loop.now_ns:
                await asyncio.sleep(0)
            elif self._loop.leaps_to(self._instant_ns):
                self._instant_ns = None
                return
        while self._instant_ns is None or self._instant_ns > self._loop.now_ns:
            await self._until(self._instant_ns)
        self._instant_ns = None

    async def _until(self, instant_ns: int | None) -> None:
        """Wait until an instant, or until the timer is armed anew."""
        self._waking = self._loop.create_future()
        handle = None if instant_ns is None else self._loop.call_at(instant_ns / NS_PER_SECOND, self._due, instant_ns)
        try:
            await self._waking
        finally:
            self._waking = None
            if handle is not None:
                handle.cancel()

    def _due(self, instant_ns: int) -> None:
        self._loop.reach(instant_ns)
        if self._waking is not None:
            _wake(self._waking)

    def close(self) -> None:
        self._instant_ns = None


def _wake(waking: "asyncio.Future[Any]") -> None:
    if not waking.done():
        waking.set_result(None)
