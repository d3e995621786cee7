"""The wish to end early: once to stop the arrivals and drain, twice to cut short what is in flight."""

import anyio


class Halt:
    """Told by whoever wants the run, or one stage, to end (a user, `abort_when`, a failure); heeded by the stages.

    Belongs to the event loop of the run. `reason` is that of the first call: `interrupted`, `abort_when` or `failure`
    of a run, `decided`, `stop_when` or `max_time` of a stage; `message` says more where there is more to say.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.message: str | None = None
        self.begun = False
        """Whether the load has begun; before that there is nothing to drain, and asking ends the run at once."""
        self._asked = anyio.Event()
        self._insisted = anyio.Event()
        self._children: list[Halt] = []

    def child(self) -> "Halt":
        """A halt of a part, such as a stage: whoever halts the whole halts it, but not the other way round."""
        part = Halt()
        part.begun = self.begun
        self._children.append(part)
        if self.reason is not None:
            part.ask(self.reason, self.message)
        return part

    def release(self, part: "Halt") -> None:
        """The part is over."""
        self._children.remove(part)

    def ask(self, reason: str, message: str | None = None) -> None:
        """Stop the arrivals. Asking again, as `interrupted`, cancels what is in flight."""
        if self.reason is None:
            self.reason, self.message = reason, message
            self._asked.set()
        elif reason == "interrupted":
            if self.reason == "interrupted":
                self._insisted.set()
            self.reason = reason
        for part in self._children:
            part.ask(reason, message)

    async def asked(self) -> None:
        """Return once somebody has asked."""
        await self._asked.wait()

    async def insisted(self) -> None:
        """Return once a user has asked twice."""
        await self._insisted.wait()
