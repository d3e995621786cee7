"""Opening an engine for a run: start it, look at its health, learn how it counts tokens, warm it up."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec

from loadgen.clock import Clock
from loadgen.errors import LoadgenError, TargetError
from loadgen.measure.outcome import Exchange
from loadgen.profile import KINDS, EngineTarget, Workload
from loadgen.profile.decoding import show
from loadgen.targets.base import Opening, Target, TargetInfo
from loadgen.targets.engine import vllm_api
from loadgen.targets.engine.embed import EmbedSession, pooling_of, pooling_target
from loadgen.targets.engine.kinds import kind_sampling
from loadgen.targets.engine.lifecycle import Engine
from loadgen.targets.engine.session import EngineSession, tokenizer_of
from loadgen.units import NS_PER_SECOND, format_duration
from loadgen.workload.request import Message, Request, Tokenization
from loadgen.workload.tokens import PROBE_LINES, PROBE_TEXT, from_token_strings

EMBED: Final = "embed"
"""The kind of workload for which an engine pools, and vLLM's name of what it asks of a model."""
_TASKS: Final = {EMBED: EMBED, "transcribe": "transcription"}
"""vLLM's names of what kinds of workload ask of a model; the others ask it to generate."""
_GENERATE: Final = "generate"
_MANY_TOKENS: Final = 1_000_000
"""An asked length that no minimum of a body is above."""
LOG_ENV: Final = "LOADGEN_WORKER_LOG"
"""The environment variable that names the file into which the worker, and so its engine, writes."""


@asynccontextmanager
async def open_engine(
    target: EngineTarget, workload: Workload, trial: tuple[Workload, Request], log: Path | None, clock: Clock
) -> AsyncIterator[Target]:
    """An engine of this process, ready for load; it ends with the context.

    `trial` is a short workload and a request of it, which warms the engine up: the first request of a kind may
    compile for many seconds.

    Raises:
        LoadgenError: the profile holds what this vLLM or an engine cannot use.
        TargetError: the engine did not come up, is not well, cannot do what is asked, or refused the trial.
    """
    began_ns = clock.now_ns()
    engine = Engine(pooling_target(target) if workload.kind == EMBED else target, log)
    await _check_names(target, workload)
    await engine.start()
    try:
        tokenizer = await tokenizer_of(engine)
        template = await anyio.to_thread.run_sync(vllm_api.chat_template_of, engine.vllm, tokenizer)

        @contextmanager
        def session_of(workload: Workload) -> Iterator[Target]:
            now_ns = clock.now_ns
            if workload.kind == EMBED:
                yield EmbedSession(engine, workload, now_ns, tokenizer=tokenizer)
                return
            generating = EngineSession(engine, target, workload, now_ns, tokenizer=tokenizer, chat_template=template)
            with closing(generating):
                yield generating

        await engine.check()
        await check_task(engine, workload)
        trial_workload, request = trial
        with session_of(trial_workload) as session:
            await _warm_up(session, request, target)
        with session_of(workload) as session:
            session.opening = Opening(
                info=_describe(engine),
                tokenization=_tokenization(tokenizer, session, chat=KINDS[workload.kind].conversation),
                start_ns=clock.now_ns() - began_ns,
                memory_bytes=engine.memory_bytes(),
            )
            yield session
    finally:
        with anyio.CancelScope(shield=True):
            await engine.stop()


async def _check_names(target: EngineTarget, workload: Workload) -> None:
    """Refuse what stands in `workload.body` and is no parameter of a request, or no value of one, before a model is
    loaded."""
    vllm_api.require_vllm()
    if workload.kind == EMBED:
        names = await anyio.to_thread.run_sync(vllm_api.pooling_names, abandon_on_cancel=True)
        _check_values(pooling_of(workload, names).fields, vllm_api.check_pooling)
        return
    names = await anyio.to_thread.run_sync(vllm_api.sampling_names, abandon_on_cancel=True)
    sampling = kind_sampling(workload, target, {}, names)
    _check_values(sampling.fields, lambda field: vllm_api.check_sampling({"max_tokens": None, **field}))
    try:
        vllm_api.check_sampling(sampling.of(_MANY_TOKENS))
    except ValueError as error:
        raise LoadgenError(f"workload.body: vLLM refuses it as a whole: {error}") from None


def _check_values(fields: Mapping[str, Any], check: Callable[[dict[str, Any]], None]) -> None:
    for name, value in fields.items():
        try:
            check({name: value})
        except ValueError as error:
            raise LoadgenError(f"workload.body.{name} = {show(value)}: vLLM refuses it: {error}") from None


async def check_task(engine: Engine, workload: Workload) -> None:
    """Raise TargetError where the engine, as it runs its model, cannot do what the workload asks for."""
    needed = _TASKS.get(workload.kind, _GENERATE)
    able = workload.kind if workload.kind in _TASKS else needed
    tasks = await vllm_api.tasks_of(engine.vllm)
    if needed not in tasks:
        raise TargetError(
            f'workload.kind = "{workload.kind}" needs an engine that can {able}; the model "{engine.served_name}" '
            f"can {', '.join(sorted(tasks))} here (see target.engine_args.runner and convert)"
        )


async def _warm_up(session: Target, request: Request, target: EngineTarget) -> None:
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


def _tokenization(tokenizer: Any, session: Target, *, chat: bool) -> Tokenization:
    """How the engine's own tokenizer counts the words of synthetic text."""

    def pieces(text: str) -> list[str]:
        return list(map(str, tokenizer.convert_ids_to_tokens(tokenizer.encode(text, add_special_tokens=False))))

    text = pieces(PROBE_TEXT)
    template_tokens = 0
    if chat and isinstance(session, EngineSession):
        conversation = Request(0, messages=(Message("user", PROBE_TEXT),))
        with suppress(ValueError):  # a template may insist on a system message, or on an image
            template_tokens = len(session.prompt_of(conversation)[0]["prompt_token_ids"]) - len(text)
    learnt = from_token_strings(
        text, template_tokens, "engine", line_strs=pieces(PROBE_LINES), vocabulary_size=tokenizer.vocab_size
    )
    return msgspec.structs.replace(learnt, special_tokens=len(tokenizer.encode(PROBE_TEXT)) - len(text))
