"""What every route to the model does with a request: its fate, its tokens from the engine, its answer as it comes."""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from typing import NamedTuple, Protocol

import msgspec
from aiohttp import web

from loadgen.clock import Clock, MonotonicClock
from loadgen.sim.api.faults import Fate, Fates, failure
from loadgen.sim.api.generation import Generation
from loadgen.sim.api.protocol import EVENT_STREAM, body_reply, disconnect, refuse_fields, until_disconnected
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine.engine import Engine
from loadgen.sim.engine.statistics import ConcurrencyMeter


class Rendering(Protocol):
    """An answer in the shape of one route."""

    @property
    def given(self) -> int:
        """Tokens told so far."""

    def event(self, tokens: int, finish_reason: str | None) -> bytes:
        """The bytes of a stream for the next tokens; the last have the finish reason."""

    def whole(self, tokens: int, finish_reason: str) -> bytes:
        """The body of an answer that is not streamed."""


class Admitted(NamedTuple):
    """A request that was read, and what the faults do to it."""

    request: web.Request
    body: bytes
    fate: Fate


class Service:
    """One engine at the service of all routes."""

    def __init__(self, engine: Engine, config: SimConfig, faults: SimFaults, clock: Clock | None = None) -> None:
        self.engine = engine
        self.config = config
        self.concurrency = ConcurrencyMeter(clock or MonotonicClock())
        """Requests to the model in the server, from their arrival to the end of their answers."""
        self.successes = {"stop": 0, "length": 0, "abort": 0}
        self._faults = faults
        self._fates = Fates(faults)
        self._numbers = count()

    async def admit(self, request: web.Request) -> Admitted:
        """Read a request; it is counted by whoever calls this.

        Raises:
            ApiError: it fails, by the faults asked for.
        """
        fate = self._fates.draw()
        body = await request.read()
        if fate.silent:
            await until_disconnected()
        if fate.fails:
            raise failure(self._faults)
        if self._faults.reject_fields:
            refuse_fields(body, self._faults.reject_fields)
        return Admitted(request, body, fate)

    def answer_id(self, prefix: str, request: web.Request) -> str:
        """What the answer is called: the prefix and the request's own id, or else a number."""
        return f"{prefix}{request.headers.get('X-Request-Id') or f'{next(self._numbers):032x}'}"

    def doomed(self, generation: Generation, fate: Fate) -> Generation:
        """The generation cut to half of its output where its fate is to be aborted."""
        if not fate.aborts:
            return generation
        half = (generation.output_tokens + 1) // 2
        return msgspec.structs.replace(generation, output_tokens=half, finish_reason="abort")

    async def answer(self, admitted: Admitted, generation: Generation, rendering: Rendering) -> web.StreamResponse:
        """Generate, and answer as it is rendered."""
        if generation.stream:
            return await self._stream(admitted, generation, rendering)
        with self.engine.generate(generation.prompt.tokens, generation.output_tokens, final_only=True) as tokens:
            async for _ in tokens:
                pass
        if admitted.fate.disconnects:
            await disconnect(admitted.request)
        self.successes[generation.finish_reason] += 1
        return body_reply(rendering.whole(generation.output_tokens, generation.finish_reason))

    async def _stream(self, admitted: Admitted, generation: Generation, rendering: Rendering) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENT_STREAM)
        cut_at = generation.output_tokens // 2 if admitted.fate.disconnects else None
        with self.engine.generate(generation.prompt.tokens, generation.output_tokens) as tokens:
            await response.prepare(admitted.request)  # vLLM too sends its headers before the first token
            async for delta in tokens:
                if cut_at is not None and rendering.given + delta.tokens > cut_at:
                    break
                event = rendering.event(delta.tokens, generation.finish_reason if delta.finished else None)
                try:
                    await response.write(event)
                except ConnectionResetError:  # the client went: what it asked for is aborted, as vLLM does
                    return response
        if cut_at is not None:
            await disconnect(admitted.request)
        self.successes[generation.finish_reason] += 1
        return response

    async def prefill(self, admitted: Admitted, lengths: Sequence[int]) -> None:
        """Compute prompts of these lengths, all at once as far as the engine can, and generate nothing."""
        with ExitStack() as stack:
            for stream in [stack.enter_context(self.engine.prefill(length)) for length in lengths]:
                async for _ in stream:
                    pass
        if admitted.fate.disconnects:
            await disconnect(admitted.request)
        self.successes["stop"] += 1
