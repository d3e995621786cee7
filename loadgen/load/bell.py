"""A bell: one thing to wait for where any of several may happen."""

from collections.abc import Awaitable, Callable

import anyio


class Bell:
    """Rings for one who waits. A ring while nobody does is kept for the next wait, several of them as one."""

    def __init__(self) -> None:
        self._rings = anyio.Event()

    async def rung(self) -> None:
        """Return at the next ring, at once where one is kept."""
        await self._rings.wait()
        self._rings = anyio.Event()

    async def ring_after(self, happens: Callable[[], Awaitable[None]]) -> None:
        """Ring once `happens()` has returned."""
        await happens()
        self._rings.set()

    async def ring_after_each(self, happens: Callable[[], Awaitable[None]]) -> None:
        """Ring each time that `happens()` returns, until cancelled."""
        while True:
            await self.ring_after(happens)
