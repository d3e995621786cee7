"""Continuous batching as vLLM's V1 scheduler does it, as a state machine without a clock: `step(now)` says what one
engine step computes, how long it lasts and which tokens it emits at its end.

The model: requests wait first come, first served. Each step gives one token to every decoding sequence, then fills
its token budget with prompt chunks; the step that computes a prompt's last token emits the first output token.
Where KV blocks run out, the sequence admitted last gives its blocks up, goes back to the head of the queue and later
computes its prompt and the tokens it has emitted again. Not modelled: prefix caching, speculative decoding.
"""

import math
import random
from collections import OrderedDict

import msgspec

from loadgen.sim.config import SimConfig
from loadgen.units import NS_PER_SECOND


class SimRequest(msgspec.Struct, frozen=True):
    """A request as the scheduler sees it."""

    id: int
    prompt_tokens: int
    output_tokens: int
    """Exactly as many are emitted."""


class Emission(msgspec.Struct, frozen=True, gc=False):
    """What one sequence emits at the end of a step."""

    id: int
    tokens: int
    finished: bool


class Admission(msgspec.Struct, frozen=True, gc=False):
    """A request that entered the batch for the first time at the beginning of a step."""

    id: int
    waited_ns: int
    """From `add` to the beginning of the step."""


class Step(msgspec.Struct, frozen=True):
    """One engine step: it begins at `begin_ns`, and its emissions become known at `end_ns`."""

    begin_ns: int
    duration_ns: int
    emissions: list[Emission]
    admitted: list[Admission]
    preempted: list[int]
    prefill_tokens: int
    """Prompt tokens computed, those computed again after a preemption included."""
    decoding: int
    """Sequences that decoded one token."""
    kv_tokens: int
    """Tokens held in the KV cache during the step."""

    @property
    def end_ns(self) -> int:
        return self.begin_ns + self.duration_ns


def check_lengths(config: SimConfig, prompt_tokens: int, output_tokens: int) -> None:
    """Refuse a request that the engine cannot hold.

    Raises:
        ValueError: a length is below 1, or both together are above `max_model_len`.
    """
    if prompt_tokens < 1 or output_tokens < 1:
        raise ValueError("a request has at least one prompt token and one output token")
    if prompt_tokens + output_tokens > config.max_model_len:
        raise ValueError(
            f"{prompt_tokens} prompt tokens and {output_tokens} output tokens are more than "
            f"the context of {config.max_model_len}"
        )


class _Sequence:
    """A request under way. Its `computed` tokens fill the first of the `room` that its KV blocks have."""

    __slots__ = ("computed", "end", "id", "prefilling", "queued_ns", "room", "tokens")

    def __init__(self, request: SimRequest, queued_ns: int) -> None:
        self.id = request.id
        self.queued_ns: int | None = queued_ns  # None once it was admitted
        self.tokens = request.prompt_tokens  # of the prompt and those emitted
        self.end = request.prompt_tokens + request.output_tokens
        self.computed = 0
        self.room = 0
        self.prefilling = True


class _Batch:
    """A step in the making."""

    __slots__ = ("admitted", "budget", "decoding", "emissions", "finished", "preempted", "prefilled")

    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens left for prefill
        self.emissions: list[Emission] = []
        self.admitted: list[Admission] = []
        self.preempted: list[int] = []
        self.prefilled = 0
        self.decoding = 0
        self.finished: list[_Sequence] = []


class Scheduler:
    """The queue, the batch and the KV blocks of one simulated engine."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.preemptions = 0
        """How many times a sequence lost its blocks, so far."""
        self._waiting: OrderedDict[int, _Sequence] = OrderedDict()
        self._running: list[_Sequence] = []  # in the order of admission
        self._live: set[int] = set()
        self._free_blocks = config.num_kv_blocks
        self._kv_tokens = 0
        self._random = random.Random(config.seed)  # noqa: S311 - a simulation
        self._sigma = math.sqrt(math.log1p(config.jitter_cv**2))

    @property
    def waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._live

    @property
    def kv_blocks_used(self) -> int:
        return self.config.num_kv_blocks - self._free_blocks

    def add(self, request: SimRequest, now_ns: int) -> None:
        """Queue a request.

        Raises:
            ValueError: its id is under way, or its lengths are below 1 or together above `max_model_len`.
        """
        if request.id in self._live:
            raise ValueError(f"request {request.id!r} is already under way")
        check_lengths(self.config, request.prompt_tokens, request.output_tokens)
        self._live.add(request.id)
        self._waiting[request.id] = _Sequence(request, now_ns)

    def abort(self, request_id: int) -> None:
        """Forget a request and free its blocks at once; nothing happens where it has ended already."""
        if request_id not in self._live:
            return
        self._live.discard(request_id)
        if self._waiting.pop(request_id, None) is None:
            sequence = next(sequence for sequence in self._running if sequence.id == request_id)
            self._running.remove(sequence)
            self._release(sequence)

    def step(self, now_ns: int) -> Step | None:
        """Compute the step that begins now; None where there is nothing to do.

        The state moves to the step's end: a request added or aborted before that takes part from the next step on.
        """
        if not self._live:
            return None
        batch = _Batch(self.config.max_num_batched_tokens)
        self._advance_running(batch)
        if not batch.preempted:  # blocks that were just taken from a sequence are not given to a new one
            self._admit_waiting(batch, now_ns)
        kv_tokens = self._kv_tokens
        self._retire(batch.finished)
        return Step(
            now_ns,
            self._duration_ns(batch, kv_tokens),
            batch.emissions,
            batch.admitted,
            batch.preempted,
            batch.prefilled,
            batch.decoding,
            kv_tokens,
        )

    def _advance_running(self, batch: _Batch) -> None:
        emissions = batch.emissions
        partial = None
        for sequence in self._running:  # preemption takes sequences from the list's tail, never one that was passed
            if sequence.prefilling:
                partial = sequence
                break  # only the last admitted can be: nothing but an exhausted budget leaves a prompt unfinished
            if sequence.computed == sequence.room and not self._reserve(sequence, 1, batch):
                break
            sequence.computed += 1
            sequence.tokens += 1
            finished = sequence.tokens == sequence.end
            emissions.append(Emission(sequence.id, 1, finished))
            if finished:
                batch.finished.append(sequence)
        batch.decoding = len(emissions)
        batch.budget -= batch.decoding
        self._kv_tokens += batch.decoding
        if partial is not None:
            self._prefill(partial, batch)

    def _admit_waiting(self, batch: _Batch, now_ns: int) -> None:
        waiting = self._waiting
        block_size = self.config.block_size
        while waiting and batch.budget > 0 and len(self._running) < self.config.max_num_seqs:
            request_id, sequence = next(iter(waiting.items()))
            # The whole prompt must fit although only a chunk may be computed now, else two prompts could starve
            # each other half-way.
            if -(-sequence.tokens // block_size) > self._free_blocks:
                return
            del waiting[request_id]
            self._running.append(sequence)
            if sequence.queued_ns is not None:
                batch.admitted.append(Admission(request_id, max(now_ns - sequence.queued_ns, 0)))
                sequence.queued_ns = None
            self._prefill(sequence, batch)

    def _prefill(self, sequence: _Sequence, batch: _Batch) -> None:
        tokens = min(sequence.tokens - sequence.computed, batch.budget)
        if not self._reserve(sequence, tokens, batch):
            return
        batch.budget -= tokens
        batch.prefilled += tokens
        sequence.computed += tokens
        self._kv_tokens += tokens
        if sequence.computed == sequence.tokens:
            sequence.prefilling = False
            sequence.tokens += 1
            finished = sequence.tokens == sequence.end
            batch.emissions.append(Emission(sequence.id, 1, finished))
            if finished:
                batch.finished.append(sequence)

    def _reserve(self, sequence: _Sequence, tokens: int, batch: _Batch) -> bool:
        """Give a sequence room for more tokens, preempting the last admitted; False where that is itself."""
        size = self.config.block_size
        blocks = -(-(sequence.computed + tokens - sequence.room) // size)
        while blocks > self._free_blocks:
            victim = self._running.pop()
            self._preempt(victim, batch)
            if victim is sequence:
                return False
        if blocks > 0:
            self._free_blocks -= blocks
            sequence.room += blocks * size
        return True

    def _preempt(self, sequence: _Sequence, batch: _Batch) -> None:
        self._release(sequence)
        sequence.prefilling = True
        self._waiting[sequence.id] = sequence
        self._waiting.move_to_end(sequence.id, last=False)
        self.preemptions += 1
        batch.preempted.append(sequence.id)

    def _release(self, sequence: _Sequence) -> None:
        self._free_blocks += sequence.room // self.config.block_size
        self._kv_tokens -= sequence.computed
        sequence.room = 0
        sequence.computed = 0

    def _retire(self, finished: list[_Sequence]) -> None:
        if not finished:
            return
        self._running = [sequence for sequence in self._running if sequence.tokens < sequence.end]
        for sequence in finished:
            self._live.discard(sequence.id)
            self._release(sequence)

    def _duration_ns(self, batch: _Batch, kv_tokens: int) -> int:
        config = self.config
        seconds = (
            config.step_base_seconds
            + config.seconds_per_prefill_token * batch.prefilled
            + config.seconds_per_decode_seq * batch.decoding
            + config.seconds_per_kv_token * kv_tokens
        )
        if self._sigma:
            seconds *= self._random.lognormvariate(-(self._sigma**2) / 2, self._sigma)
        return round(seconds * NS_PER_SECOND)
