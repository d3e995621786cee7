"""The synchronous twin of an asynchronous method: it runs in an event loop of its own, in a thread of its own."""

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

P = ParamSpec("P")
T = TypeVar("T")


class HasPortal(Protocol):
    """Where the twin of a method runs."""

    def _portal(self) -> AbstractContextManager[BlockingPortal]:
        """A portal into the event loop to run in; what was opened for the block is closed after it."""


Owner = TypeVar("Owner", bound=HasPortal)


def portal() -> AbstractContextManager[BlockingPortal]:
    """An event loop in a thread; both end with the block."""
    return start_blocking_portal("asyncio")  # which aiohttp needs


def blocking(
    method: Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Owner, P], T]:
    """The same call, waited for by the thread that calls. It may be any thread, one with a running loop too, which
    stands still meanwhile."""

    @wraps(method)
    def call(self: Owner, /, *args: P.args, **named: P.kwargs) -> T:
        with self._portal() as into:
            answer: T = into.call(partial(method, self, *args, **named))
        return answer

    call.__name__ = method.__name__.removeprefix("a")
    call.__qualname__ = method.__qualname__.replace(method.__name__, call.__name__)
    call.__doc__ = f"`{method.__name__}`, and wait for it."
    return call
