"""The synchronous twin of an asynchronous method: it runs in an event loop of the client's own, in a thread of its own.

The thread is started by the first call and kept for the next: a thread, a loop and a connection for each call would
cost three times what the call does.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial, wraps
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from loadgen.client.types import RequestError

P = ParamSpec("P")
T = TypeVar("T")
Opened = TypeVar("Opened")
Opening = Callable[[], AbstractAsyncContextManager[Opened]]


class _Running(NamedTuple, Generic[Opened]):
    loop: asyncio.AbstractEventLoop
    portal: BlockingPortal
    opened: Opened
    stop: asyncio.Event


class LoopThread(Generic[Opened]):
    """An event loop of asyncio, which aiohttp needs, in a thread, and what was opened there.

    Both last until `close`. The thread knows nothing of whoever started it, so that the owner can be collected, and
    close it then. It keeps no interpreter from its end.
    """

    def __init__(self, opening: "Opening[Opened]") -> None:
        """Start it, and wait until all is open; raises what the opening raises."""
        self._process = os.getpid()
        ready: Future[_Running[Opened]] = Future()
        # Not a daemon, it would be waited for before anything could tell it that the interpreter ends.
        self._thread = threading.Thread(target=_run, args=(opening, ready), name="loadgen-client", daemon=True)
        self._thread.start()
        self.loop, self._portal, self.opened, self._stop = ready.result()

    @property
    def alive(self) -> bool:
        """Whether it can be called: not after its end, nor in a process forked from its own."""
        return self._process == os.getpid() and self._thread.is_alive()

    def call(self, method: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine there and wait for it. What ends the wait early, such as Ctrl-C, cancels it.

        Raises:
            RequestError: `close` was called meanwhile.
        """
        future = self._portal.start_task_soon(method)
        try:
            answer: T = future.result()
        except CancelledError:
            raise RequestError("a call of the client", "cancelled", "the client was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise
        return answer

    def close(self) -> None:
        """Cancel what runs, close what was opened, end the thread, and wait for all that. In the thread itself, where
        the garbage collector may come to call this, there is no wait."""
        if not self.alive:
            return
        with suppress(RuntimeError):  # the loop is closed where somebody else was first
            self.loop.call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _run(opening: "Opening[Opened]", ready: "Future[_Running[Opened]]") -> None:
    """The thread's whole life."""

    async def serve() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        async with opening() as opened, BlockingPortal() as portal:
            ready.set_result(_Running(loop, portal, opened, stop))
            await stop.wait()
            await portal.stop(cancel_remaining=True)

    try:
        anyio.run(serve, backend="asyncio")
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)


class HasLoop(Protocol):
    """Where the twin of a method runs."""

    def _loop(self) -> LoopThread[Any]:
        """The owner's event loop, started by the first who asks."""


Owner = TypeVar("Owner", bound=HasLoop)


def blocking(
    method: Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Owner, P], T]:
    """The same call, waited for by the thread that calls. It may be any thread, one with a running loop too, which
    stands still meanwhile."""

    @wraps(method)
    def call(self: Owner, /, *args: P.args, **named: P.kwargs) -> T:
        return self._loop().call(partial(method, self, *args, **named))

    call.__name__ = method.__name__.removeprefix("a")
    call.__qualname__ = method.__qualname__.replace(method.__name__, call.__name__)
    call.__doc__ = f"`{method.__name__}`, and wait for it."
    return call
