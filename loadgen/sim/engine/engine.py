"""What the simulated engines have in common: requests in, tokens out as streams, one task that keeps the time."""

from abc import abstractmethod
from array import array
from collections.abc import AsyncIterator
from types import TracebackType
from typing import NamedTuple, Self

import anyio
from anyio.abc import TaskGroup

from loadgen.clock import Clock, MonotonicClock
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine.scheduler import check_lengths
from loadgen.sim.engine.statistics import EngineStatistics
from loadgen.units import NS_PER_SECOND


class Delta(NamedTuple):
    """Tokens that one request got since the last look: usually one step's, more where the reader was slow."""

    tokens: int
    finished: bool


class TokenStream:
    """One request's tokens as they come. Use it as a context: leaving it aborts what has not finished.

    Iterating ends after the delta that is `finished`; it raises anyio.ClosedResourceError once the engine has closed.
    """

    def __init__(
        self,
        engine: "Engine",
        stream_id: int,
        prompt_tokens: int,
        now_ns: int,
        *,
        final_only: bool,
        generates: bool,
        instants_ns: "array[int] | None",
    ) -> None:
        self.stream_id = stream_id
        self.prompt_tokens = prompt_tokens
        self.generates = generates
        """Its tokens are an answer's; else it is computed and says nothing."""
        self.added_ns = now_ns
        self.last_ns: int | None = None
        """When the last tokens came; None before the first."""
        self._instants_ns = instants_ns
        self._engine = engine
        self._final_only = final_only
        self._tokens = 0
        self._finished = False
        self._read = False
        self._closed = False
        self._wake: anyio.Event | None = None

    def push(self, tokens: int, finished: bool, now_ns: int) -> None:
        """Hand tokens to the reader (the engine's side)."""
        self.last_ns = now_ns
        if self._instants_ns is not None:
            self._instants_ns.append(now_ns)
        self._tokens += tokens
        self._finished = finished
        if self._wake is not None and (finished or not self._final_only):
            self._wake.set()

    def close(self) -> None:
        """No more tokens will come (the engine's side)."""
        self._closed = True
        if self._wake is not None:
            self._wake.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished:
            self._engine.abort(self)

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        if self._read:
            raise StopAsyncIteration
        while not (self._finished or (self._tokens and not self._final_only)):
            if self._closed:
                raise anyio.ClosedResourceError
            self._wake = anyio.Event()
            await self._wake.wait()
            self._wake = None
        delta = Delta(self._tokens, self._finished)
        self._tokens = 0
        self._read = self._finished
        return delta


class Engine:
    """What is common to the simulated engines. Open it as an async context; its one task ends with the context."""

    def __init__(self, config: SimConfig, faults: SimFaults, clock: Clock | None) -> None:
        self.config = config
        self.statistics = EngineStatistics()
        self.clock = clock or MonotonicClock()
        self._timer = self.clock.timer()
        self._streams: dict[int, TokenStream] = {}
        self._faults = faults
        self._stall_ns: tuple[int, int] | None = None
        self._group: TaskGroup | None = None

    @property
    def unfinished(self) -> int:
        """Requests that came and have not ended, as far as their readers know."""
        return len(self._streams)

    @property
    def running(self) -> int:
        """Requests that are being worked on."""
        return len(self._streams)

    @property
    def waiting(self) -> int:
        """Requests that wait for a place in the batch."""
        return 0

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use."""
        return 0.0

    @property
    def preemptions(self) -> int:
        """How often a request lost its place in the batch."""
        return 0

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._run, name="simulated engine")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._group is not None
        self._group.cancel_scope.cancel()
        try:
            return await self._group.__aexit__(kind, error, traceback)
        finally:
            for stream in self._streams.values():
                stream.close()
            self._timer.close()

    def generate(
        self,
        prompt_tokens: int,
        output_tokens: int,
        *,
        final_only: bool = False,
        instants_ns: "array[int] | None" = None,
    ) -> TokenStream:
        """Ask for exactly `output_tokens` tokens; `final_only` wakes the reader once, at the end.

        `instants_ns` takes the instant of each token as it comes, for a reader that is woken once.

        Use the result as a context: leaving it early, by cancellation too, aborts the request at once.

        Raises:
            ValueError: a length is below 1, or both together are above `max_model_len`.
        """
        return self._begin(prompt_tokens, output_tokens, final_only, generates=True, instants_ns=instants_ns)

    def prefill(self, prompt_tokens: int) -> TokenStream:
        """Ask for a prompt to be computed and nothing to be generated: its one delta tells that it is.

        Use the result as a context, as that of `generate`.

        Raises:
            ValueError: the length is below 1, or leaves no room in `max_model_len`.
        """
        return self._begin(prompt_tokens, 1, True, generates=False)

    def _begin(
        self,
        prompt_tokens: int,
        output_tokens: int,
        final_only: bool,
        *,
        generates: bool,
        instants_ns: "array[int] | None" = None,
    ) -> TokenStream:
        check_lengths(self.config, prompt_tokens, output_tokens)
        now_ns = self.clock.now_ns()
        if self._stall_ns is None:
            self._stall_ns = _stall(self._faults, now_ns)
        self.statistics.requests += 1
        stream = TokenStream(
            self,
            self.statistics.requests,
            prompt_tokens,
            now_ns,
            final_only=final_only,
            generates=generates,
            instants_ns=instants_ns,
        )
        self._streams[stream.stream_id] = stream
        self._submit(stream, output_tokens)
        return stream

    def abort(self, stream: TokenStream) -> None:
        """Give a request up; nothing happens where it has ended already."""
        if self._streams.pop(stream.stream_id, None) is not None:
            self.statistics.aborted += 1
            self._withdraw(stream)

    def _emit(self, stream: TokenStream, tokens: int, finished: bool, now_ns: int) -> None:
        statistics = self.statistics
        if stream.generates:
            statistics.generation_tokens += tokens
        if stream.last_ns is None:
            statistics.prompt_tokens += stream.prompt_tokens
            if stream.generates:
                statistics.ttft.add((now_ns - stream.added_ns) / NS_PER_SECOND)
        else:
            statistics.itl.add((now_ns - stream.last_ns) / NS_PER_SECOND)
        if finished:
            statistics.finished += 1
            statistics.e2e.add((now_ns - stream.added_ns) / NS_PER_SECOND)
            del self._streams[stream.stream_id]
        stream.push(tokens, finished, now_ns)

    def _past_stall(self, instant_ns: int) -> int:
        """The instant, or the end of the stall where it lies in it."""
        if self._stall_ns is not None and self._stall_ns[0] <= instant_ns < self._stall_ns[1]:
            return self._stall_ns[1]
        return instant_ns

    @abstractmethod
    async def _run(self) -> None:
        """The engine's task."""

    @abstractmethod
    def _submit(self, stream: TokenStream, output_tokens: int) -> None:
        """Begin to work on a request."""

    @abstractmethod
    def _withdraw(self, stream: TokenStream) -> None:
        """Stop working on a request."""


def _stall(faults: SimFaults, first_request_ns: int) -> tuple[int, int]:
    if faults.stall_at_seconds is None:
        return (0, 0)
    begin_ns = first_request_ns + round(faults.stall_at_seconds * NS_PER_SECOND)
    return (begin_ns, begin_ns + round(faults.stall_seconds * NS_PER_SECOND))
