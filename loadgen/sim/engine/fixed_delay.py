"""An engine whose every answer takes the same time, however many there are: for tests that must know the truth."""

import heapq

from loadgen.clock import Clock
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine.engine import Engine, TokenStream
from loadgen.units import NS_PER_SECOND


class _Answer:
    """An answer under way: token k of n comes k/n of the delay after the request."""

    __slots__ = ("delay_ns", "done", "stream", "tokens")

    def __init__(self, stream: TokenStream, tokens: int, delay_ns: int) -> None:
        self.stream = stream
        self.tokens = tokens
        self.delay_ns = delay_ns
        self.done = 0

    @property
    def due_ns(self) -> int:
        return self.stream.added_ns + self.delay_ns * (self.done + 1) // self.tokens


class FixedDelayEngine(Engine):
    """Answers after exactly `faults.response_delay_seconds`, its n tokens evenly spread over that time.

    So the first token comes after delay / n, the gaps are delay / n, and the last token comes after the delay.
    """

    def __init__(self, config: SimConfig, faults: SimFaults, clock: Clock | None = None) -> None:
        super().__init__(config, faults, clock)
        self._delay_ns = round((faults.response_delay_seconds or 0) * NS_PER_SECOND)
        self._due: list[tuple[int, int, _Answer]] = []  # a heap by instant, then by request

    async def _run(self) -> None:
        while True:
            await self._timer.wait()
            now_ns = self.clock.now_ns()
            if self._past_stall(now_ns) == now_ns:
                self._release(now_ns)
            self._arm()

    def _release(self, now_ns: int) -> None:
        while self._due and self._due[0][0] <= now_ns:
            _, stream_id, answer = self._due[0]
            if stream_id not in self._streams:  # aborted
                heapq.heappop(self._due)
                continue
            answer.done += 1
            finished = answer.done == answer.tokens
            self._emit(answer.stream, 1, finished, now_ns)
            if finished:
                heapq.heappop(self._due)
            else:
                heapq.heapreplace(self._due, (answer.due_ns, stream_id, answer))

    def _arm(self) -> None:
        if self._due:
            self._timer.arm(self._past_stall(self._due[0][0]))

    def _submit(self, stream: TokenStream, output_tokens: int) -> None:
        answer = _Answer(stream, output_tokens, self._delay_ns)
        heapq.heappush(self._due, (answer.due_ns, stream.stream_id, answer))
        self._arm()

    def _withdraw(self, stream: TokenStream) -> None:
        """Nothing to do: what is due to a stream that has gone is skipped."""
