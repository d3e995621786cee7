"""The simulated vLLM as a target: its model inside the worker, or its server as a process beside the run."""

import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Self

import anyio
import msgspec

from loadgen.clock import Clock
from loadgen.errors import TargetError
from loadgen.measure.outcome import Exchange
from loadgen.processes import end_process, in_own_group
from loadgen.profile import HttpTarget, SimTarget, Workload
from loadgen.sim.api.server import ServerSettings
from loadgen.sim.engine.driver import make_engine
from loadgen.sim.engine.router import Serving
from loadgen.sim.model import tokenizer
from loadgen.targets.base import Opening, TargetInfo
from loadgen.workload.prompt import refuse_videos
from loadgen.workload.request import Audio, Image, Request, Tokenization, text_of
from loadgen.workload.tokens import PROBE_LINES, PROBE_TEXT, from_token_strings

UNASKED_OUTPUT_TOKENS: Final = 64
"""What the model in a worker answers where no length is asked for."""
_START_SECONDS: Final = 30


class Lengths(NamedTuple):
    """All that the simulated model sees of a request."""

    prompt_tokens: int
    output_tokens: int


class SimSession:
    """The model in the worker. Runs on asyncio and trio, in real or virtual time."""

    opening: Opening | None = None

    def __init__(self, engine: Serving, clock: Clock, *, stream: bool) -> None:
        """`engine` is the worker's own, or what it shares with others."""
        self._engine = engine
        self._clock = clock
        self._stream = stream

    def prepare(self, request: Request) -> Lengths:
        output = UNASKED_OUTPUT_TOKENS if request.output_tokens is None else request.output_tokens
        return Lengths(_count(request), output)

    async def send(self, prepared: Lengths, exchange: Exchange) -> None:
        exchange.streamed = self._stream
        exchange.texts = None  # it counts tokens, and says nothing
        exchange.prompt_tokens = prepared.prompt_tokens
        limit = self._engine.config.max_model_len - prepared.prompt_tokens
        if limit < 1:
            exchange.failure, exchange.message = "too_long", f"the prompt has {prepared.prompt_tokens} tokens"
            exchange.end_ns = self._clock.now_ns()
            return
        output = min(prepared.output_tokens, limit)
        # The engine notes when each token comes: waking this task for each would cost more than all the rest.
        instants_ns = exchange.chunks_ns if self._stream else None
        try:
            with self._engine.generate(
                prepared.prompt_tokens, output, final_only=True, instants_ns=instants_ns
            ) as stream:
                async for delta in stream:
                    exchange.output_tokens = delta.tokens
        finally:
            exchange.events = exchange.reads = len(exchange.chunks_ns)
        exchange.end_ns = self._clock.now_ns()
        exchange.finish_reason = "length"

    def with_workload(self, workload: Workload) -> Self:
        return self  # all that the model sees of a request is its lengths

    async def watch(self) -> str:
        await anyio.sleep_forever()
        return ""


@asynccontextmanager
async def open_sim(target: SimTarget, clock: Clock) -> AsyncIterator[SimSession]:
    """A simulated engine in this process, which ends with the context."""
    async with make_engine(target.engine, target.faults, clock) as engine:
        yield SimSession(engine, clock, stream=target.stream)


def describe_sim(target: SimTarget) -> TargetInfo:
    """What the check of a real server would find out."""
    config = target.engine
    return TargetInfo(kind="sim", model=config.model, max_model_len=config.max_model_len)


@asynccontextmanager
async def embedded_server(target: SimTarget) -> AsyncIterator[HttpTarget]:
    """A simulated server in a process of its own on a free loopback port; yields the target that loads it.

    The process ends with the context, and also when this process dies, since its standard input ends then.

    Raises:
        TargetError: it did not start.
    """
    settings = ServerSettings(config=target.engine, faults=target.faults)
    with tempfile.TemporaryFile() as errors:
        process = await anyio.open_process(
            in_own_group([sys.executable, "-m", "loadgen.sim.api.server"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            await process.stdin.send(msgspec.json.encode(settings) + b"\n")
            try:
                with anyio.fail_after(_START_SECONDS):
                    line = await process.stdout.receive()
                port = msgspec.json.decode(line, type=dict[str, int])["port"]
            except (TimeoutError, anyio.EndOfStream, msgspec.DecodeError):
                errors.seek(0)
                words = errors.read().decode(errors="replace").strip().splitlines()
                raise TargetError(f"the simulated server did not start: {words[-1] if words else 'no word'}") from None
            yield HttpTarget(url=f"http://127.0.0.1:{port}", stream=target.stream, timeout=target.timeout)
        finally:
            with anyio.CancelScope(shield=True):
                if process.stdin is not None:
                    await process.stdin.aclose()
            await end_process(process)


def _count(request: Request) -> int:
    if request.messages is not None:
        parts = [part for m in request.messages if not isinstance(m.content, str) for part in m.content]
        refuse_videos(parts)
        images, audio = (sum(isinstance(part, kind) for part in parts) for kind in (Image, Audio))
        return tokenizer.count_chat([(m.role, text_of(m)) for m in request.messages], images=images, audio=audio)
    if isinstance(request.prompt, str):
        return tokenizer.count(request.prompt)
    return len(request.prompt or ())


def tokenizer_of_simulator() -> Tokenization:
    """The simulator's own rule, for its model inside a worker."""
    plain = tokenizer.token_strings(tokenizer.encode(PROBE_TEXT))
    lines = tokenizer.token_strings(tokenizer.encode(PROBE_LINES))
    chat = tokenizer.count_chat([("user", PROBE_TEXT)])
    return from_token_strings(plain, chat - len(plain), "simulator", line_strs=lines)
