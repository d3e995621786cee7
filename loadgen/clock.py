"""Instants and waiting for them.

An instant is an int: nanoseconds of the monotonic clock. `MonotonicClock` is that clock; `LoopClock` is the event
loop's own time, which trio's autojump clock makes virtual, so that timing logic is tested without sleeping.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from loadgen.units import NS_PER_SECOND

T = TypeVar("T")

_TFD_TIMER_ABSTIME: Final = 1


class ReleaseTimer(Protocol):
    """One re-armable wait for an absolute instant. One task waits; anyone on its loop may arm."""

    def arm(self, instant_ns: int) -> None:
        """Let `wait` return at this instant (at once where it is past), in place of any instant armed before."""

    async def wait(self) -> None:
        """Return at or after the armed instant, never before; then the timer is unarmed. Cancellable."""

    def close(self) -> None:
        """Give back what the timer holds. Nobody may be waiting."""


class Clock(Protocol):
    """Where instants come from, and how to wait for one."""

    def now_ns(self) -> int:
        """The present instant."""

    async def sleep_until(self, instant_ns: int) -> None:
        """Return at or after the instant; a checkpoint even where it is past. Accurate to the loop's timer (1 ms)."""

    def timer(self) -> ReleaseTimer:
        """A new timer of the best accuracy that the clock has."""

    async def beside(self, work: Callable[[], T]) -> T:
        """The result of work that takes long and has no wait in it: in real time done beside the loop, in a thread, and
        given up when the wait for it is cancelled; in virtual time, where it takes none, done at once."""


class LoopClock:
    """The event loop's own time; virtual under trio's autojump clock."""

    def now_ns(self) -> int:
        return round(anyio.current_time() * NS_PER_SECOND)

    async def sleep_until(self, instant_ns: int) -> None:
        await _sleep_until(self, instant_ns)

    def timer(self) -> ReleaseTimer:
        return _LoopTimer(self)

    async def beside(self, work: Callable[[], T]) -> T:
        return work()


class MonotonicClock:
    """CLOCK_MONOTONIC: one clock for all processes of a machine."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep_until(self, instant_ns: int) -> None:
        await _sleep_until(self, instant_ns)

    def timer(self) -> ReleaseTimer:
        return TimerFd() if sys.platform == "linux" else _LoopTimer(self)

    async def beside(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


async def _sleep_until(clock: Clock, instant_ns: int) -> None:
    await anyio.lowlevel.checkpoint()
    # uvloop rounds to whole milliseconds and may wake early, so look again until the instant is there.
    while (left := instant_ns - clock.now_ns()) > 0:  # noqa: ASYNC110  (an instant is waited for, not a flag)
        await anyio.sleep(left / NS_PER_SECOND)


class _LoopTimer:
    """A timer made of the loop's own sleep, for virtual time and for systems without timerfd."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._instant_ns: int | None = None
        self._rearmed = anyio.Event()

    def arm(self, instant_ns: int) -> None:
        self._instant_ns = instant_ns
        self._rearmed.set()

    async def wait(self) -> None:
        while True:
            self._rearmed = anyio.Event()
            if self._instant_ns is None:
                await self._rearmed.wait()
                continue
            left = self._instant_ns - self._clock.now_ns()
            with anyio.move_on_after(max(left, 0) / NS_PER_SECOND):
                await self._rearmed.wait()
            if self._instant_ns <= self._clock.now_ns():
                self._instant_ns = None
                return

    def close(self) -> None:
        self._instant_ns = None


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class TimerFd:
    """Linux timerfd on CLOCK_MONOTONIC, armed with absolute instants and waited for as a readable descriptor.

    Event loops round their own timers to milliseconds and may wake early; the kernel's timer does neither.
    Raises OSError where the kernel refuses a descriptor.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def arm(self, instant_ns: int) -> None:
        # An all-zero value disarms a timerfd, so the earliest instant is 1 ns.
        seconds, nanoseconds = divmod(max(instant_ns, 1), NS_PER_SECOND)
        spec = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(seconds, nanoseconds))
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    async def wait(self) -> None:
        while True:
            await anyio.wait_readable(self._fd)
            try:
                os.read(self._fd, 8)
            except BlockingIOError:  # re-armed to a later instant between the wake and the read
                continue
            return

    def close(self) -> None:
        os.close(self._fd)
