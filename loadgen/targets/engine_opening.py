"""Opening an engine for a run: start it, look at its health, learn how it counts tokens, warm it up."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec

from loadgen.clock import Clock
from loadgen.decoding import show
from loadgen.errors import LoadgenError, TargetError
from loadgen.metrics.outcome import Exchange
from loadgen.profile import EngineTarget, Workload
from loadgen.targets import vllm_api
from loadgen.targets.base import Opening, TargetInfo
from loadgen.targets.engine import Engine
from loadgen.targets.engine_session import EngineSession, tokenizer_of
from loadgen.targets.sampling import sampling_of
from loadgen.units import NS_PER_SECOND, format_duration
from loadgen.workload.request import Message, Request, Tokenization
from loadgen.workload.tokens import PROBE_LINES, PROBE_TEXT, from_token_strings

_MANY_TOKENS: Final = 1_000_000
"""An asked length that no minimum of a body is above."""
LOG_ENV: Final = "LOADGEN_WORKER_LOG"
"""The environment variable that names the file into which the worker, and so its engine, writes."""


@asynccontextmanager
async def open_engine(
    target: EngineTarget, workload: Workload, trial: tuple[Workload, Request], log: Path | None, clock: Clock
) -> AsyncIterator[EngineSession]:
    """An engine of this process, ready for load; it ends with the context.

    `trial` is a short workload and a request of it, which warms the engine up: the first request of a kind may
    compile for many seconds.

    Raises:
        LoadgenError: the profile holds what this vLLM or an engine cannot use.
        TargetError: the engine did not come up, is not well, or refused the trial.
    """
    began_ns = clock.now_ns()
    engine = Engine(target, log)
    await _check_names(target, workload)
    await engine.start()
    try:
        tokenizer = await tokenizer_of(engine)
        template = await anyio.to_thread.run_sync(vllm_api.chat_template_of, engine.vllm, tokenizer)

        def session_of(workload: Workload) -> EngineSession:
            return EngineSession(engine, target, workload, clock.now_ns, tokenizer=tokenizer, chat_template=template)

        await engine.check()
        trial_workload, request = trial
        with closing(session_of(trial_workload)) as session:
            await _warm_up(session, request, target)
        with closing(session_of(workload)) as session:
            session.opening = Opening(
                info=_describe(engine),
                tokenization=_tokenization(tokenizer, session, chat=workload.kind == "chat"),
                start_ns=clock.now_ns() - began_ns,
                memory_bytes=engine.memory_bytes(),
            )
            yield session
    finally:
        with anyio.CancelScope(shield=True):
            await engine.stop()


async def _check_names(target: EngineTarget, workload: Workload) -> None:
    """Refuse what stands in `workload.body` and is no sampling parameter, or no value of one, before a model is
    loaded."""
    vllm_api.require_vllm()
    names = await anyio.to_thread.run_sync(vllm_api.sampling_names, abandon_on_cancel=True)
    sampling = sampling_of(workload.body, {}, names, chat=workload.kind == "chat", stream=target.stream)
    for name, value in sampling.fields.items():
        try:
            vllm_api.check_sampling({"max_tokens": None, name: value})
        except ValueError as error:
            raise LoadgenError(f"workload.body.{name} = {show(value)}: vLLM refuses it: {error}") from None
    try:
        vllm_api.check_sampling(sampling.of(_MANY_TOKENS))
    except ValueError as error:
        raise LoadgenError(f"workload.body: vLLM refuses it as a whole: {error}") from None


async def _warm_up(session: EngineSession, request: Request, target: EngineTarget) -> None:
    try:
        prepared = session.prepare(request)
    except ValueError as error:
        raise TargetError(f"the trial request cannot be made: {error}") from None
    exchange = Exchange()
    # Not within target.timeout: a first request may compile for longer than any later one may take.
    with anyio.move_on_after(target.start_timeout / NS_PER_SECOND) as scope:
        await session.send(prepared, exchange)
    if scope.cancelled_caught:
        limit = format_duration(target.start_timeout)
        raise TargetError(f"the engine did not answer the trial request within target.start_timeout = {limit}")
    if exchange.failure is not None:
        raise TargetError(f"the engine did not answer the trial request: {exchange.message}")


def _describe(engine: Engine) -> TargetInfo:
    return TargetInfo(
        kind="engine",
        model=engine.served_name,
        available_models=(engine.served_name,),
        version=vllm_api.version(),
        max_model_len=engine.max_model_len,
    )


def _tokenization(tokenizer: Any, session: EngineSession, *, chat: bool) -> Tokenization:
    """How the engine's own tokenizer counts the words of synthetic text."""

    def pieces(text: str) -> list[str]:
        return list(map(str, tokenizer.convert_ids_to_tokens(tokenizer.encode(text, add_special_tokens=False))))

    text = pieces(PROBE_TEXT)
    template_tokens = 0
    if chat:
        conversation = Request(0, messages=(Message("user", PROBE_TEXT),))
        with suppress(ValueError):  # a template may insist on a system message, or on an image
            template_tokens = len(session.prompt_of(conversation)[0]["prompt_token_ids"]) - len(text)
    learnt = from_token_strings(
        text, template_tokens, "engine", line_strs=pieces(PROBE_LINES), vocabulary_size=tokenizer.vocab_size
    )
    return msgspec.structs.replace(learnt, special_tokens=len(tokenizer.encode(PROBE_TEXT)) - len(text))
