"""The wish to end a run early: once to stop the arrivals and drain, twice to cut short what is in flight."""

import anyio


class Halt:
    """Told by whoever wants the run to end (a user, `abort_when`, a failure); heeded by the stages.

    Belongs to the event loop of the run. `reason` is that of the first call, `interrupted`, `abort_when` or `failure`;
    `message` says more where there is more to say.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.message: str | None = None
        self.begun = False
        """Whether the load has begun; before that there is nothing to drain, and asking ends the run at once."""
        self._asked = anyio.Event()
        self._insisted = anyio.Event()

    def ask(self, reason: str, message: str | None = None) -> None:
        """Stop the arrivals. Asking again, as `interrupted`, cancels what is in flight."""
        if self.reason is None:
            self.reason, self.message = reason, message
            self._asked.set()
        elif reason == "interrupted":
            if self.reason == "interrupted":
                self._insisted.set()
            self.reason = reason

    async def asked(self) -> None:
        """Return once somebody has asked."""
        await self._asked.wait()

    async def insisted(self) -> None:
        """Return once a user has asked twice."""
        await self._insisted.wait()
