"""Several simulated engines behind one router, as replicas of a deployment are.

The router knows what a proxy in front of servers knows: which requests it sent to whom, and which of them have ended.
It sends each on at once and keeps no queue of its own.
"""

import random
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Literal, Protocol

from msgspec.structs import replace

from loadgen.clock import Clock
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine.driver import make_engine
from loadgen.sim.engine.engine import Engine, TokenStream

Routing = Literal["round-robin", "least-loaded", "random"]
"""How a router chooses: each replica in turn; the one with the fewest unfinished requests, of several such the next in
turn; or any, each as likely as the others."""


class Serving(Protocol):
    """What takes requests: an engine, or several behind a router."""

    @property
    def config(self) -> SimConfig:
        """The settings of the engine, or of each replica."""

    def generate(
        self,
        prompt_tokens: int,
        output_tokens: int,
        *,
        final_only: bool = False,
        instants_ns: "array[int] | None" = None,
    ) -> TokenStream:
        """As `Engine.generate`."""

    def prefill(self, prompt_tokens: int) -> TokenStream:
        """As `Engine.prefill`."""


class Router:
    """Sends each request to one of its engines; a request that has been sent stays there."""

    def __init__(self, engines: Sequence[Engine], routing: Routing, seed: int = 0) -> None:
        """`seed` is that of `random`."""
        self.engines = engines
        self.config = engines[0].config
        self._random = random.Random(seed)  # noqa: S311 - a simulation
        self._choose = _CHOICES[routing]
        self._turn = -1

    def generate(
        self,
        prompt_tokens: int,
        output_tokens: int,
        *,
        final_only: bool = False,
        instants_ns: "array[int] | None" = None,
    ) -> TokenStream:
        """Ask one of the engines, as `Engine.generate`."""
        return self._choose(self).generate(prompt_tokens, output_tokens, final_only=final_only, instants_ns=instants_ns)

    def prefill(self, prompt_tokens: int) -> TokenStream:
        """Ask one of the engines, as `Engine.prefill`."""
        return self._choose(self).prefill(prompt_tokens)

    def _next_in_turn(self) -> Engine:
        self._turn = (self._turn + 1) % len(self.engines)
        return self.engines[self._turn]

    def _least_loaded(self) -> Engine:
        count = len(self.engines)
        places = [(self._turn + ahead) % count for ahead in range(1, count + 1)]
        self._turn = min(places, key=lambda place: self.engines[place].unfinished)  # the first of several
        return self.engines[self._turn]

    def _any(self) -> Engine:
        return self._random.choice(self.engines)


_CHOICES: Final[dict[Routing, Callable[[Router], Engine]]] = {
    "round-robin": Router._next_in_turn,
    "least-loaded": Router._least_loaded,
    "random": Router._any,
}


@asynccontextmanager
async def open_replicas(
    config: SimConfig, faults: SimFaults, clock: Clock, *, replicas: int, routing: Routing, seed: int = 0
) -> AsyncIterator[Router]:
    """`replicas` engines of these settings behind a router, which end with the context.

    Each has the faults by itself, and jitter of its own.
    """
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(make_engine(replace(config, seed=config.seed + i), faults, clock))
            for i in range(replicas)
        ]
        yield Router(engines, routing, seed)
