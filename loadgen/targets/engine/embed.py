"""A worker's session with an engine that pools: texts become prompts, and vectors are counted. Nothing is generated."""

import secrets
from collections.abc import Callable, Collection
from copy import copy
from typing import Any

import anyio
import msgspec
from msgspec.structs import replace

from loadgen.errors import LoadgenError
from loadgen.measure.outcome import Exchange
from loadgen.profile import EngineTarget, Workload
from loadgen.targets.base import Opening
from loadgen.targets.engine import vllm_api
from loadgen.targets.engine.lifecycle import ENGINE_DEAD, Engine
from loadgen.targets.engine.sampling import unknown_name, value_of
from loadgen.targets.http.endpoints.embed import note_vectors
from loadgen.workload.request import Request


class Pooling(msgspec.Struct, frozen=True):
    """What every request of a run has in common."""

    fields: dict[str, Any]
    """Of PoolingParams."""
    priority: int = 0


class Texts(msgspec.Struct, frozen=True):
    """The texts of a request, ready for the engine."""

    request_id: str
    prompts: tuple[dict[str, Any], ...]
    """As vLLM takes them: `prompt_token_ids`."""
    parameters: Any


class EmbedSession:
    """One engine as a target (`targets.base.Target`). Its requests share the engine's batches."""

    def __init__(self, engine: Engine, workload: Workload, now_ns: Callable[[], int], *, tokenizer: Any) -> None:
        """Raises LoadgenError where `workload.body` holds what an engine cannot use."""
        self.opening: Opening | None = None
        self._engine = engine
        self._now_ns = now_ns
        self._tokenizer = tokenizer
        self._session_id = f"loadgen-{secrets.token_hex(4)}"
        self._set_workload(workload)

    def _set_workload(self, workload: Workload) -> None:
        self._dimensions = workload.dimensions
        self._pooling = pooling_of(workload, vllm_api.pooling_names())

    def with_workload(self, workload: Workload) -> "EmbedSession":
        other = copy(self)
        other._set_workload(workload)
        return other

    def prepare(self, request: Request) -> Texts:
        """Make token ids of the texts of a request.

        Raises:
            ValueError: the body asks for what vLLM refuses.
        """
        prompts = tuple(
            vllm_api.prompt_of_ids(self._tokenizer.encode(text) if isinstance(text, str) else list(text))
            for text in request.inputs or ()
        )
        parameters = vllm_api.make_pooling(self._pooling.fields)
        return Texts(f"{self._session_id}-{request.index}", prompts, parameters)

    async def send(self, prepared: Texts, exchange: Exchange) -> None:
        """Embed all texts at once; the request ends with the last (the contract is `targets.base.Target.send`).

        Where one fails, or it is cancelled, the rest is aborted in the engine.
        """
        exchange.streamed = False
        exchange.request_id = prepared.request_id
        now_ns: int | None = None
        outputs: list[Any] = []

        async def embed(number: int, prompt: dict[str, Any]) -> None:
            nonlocal now_ns
            failure = None
            try:
                outputs.append(await self._output(f"{prepared.request_id}-{number}", prompt, prepared.parameters))
                if not vllm_api.vector_length(outputs[-1]):
                    failure = self._aborted()
            except Exception as error:  # vLLM's kinds of error differ from release to release; `failure_of` sorts them
                failure = self._engine.failure_of(error, len(prompt["prompt_token_ids"]))
            if exchange.failure is not None:  # another text has ended the request
                return
            now_ns = self._now_ns()
            if failure is not None:
                exchange.failure, exchange.message = failure
                exchange.target_gone = exchange.failure == ENGINE_DEAD
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for number, prompt in enumerate(prepared.prompts):
                group.start_soon(embed, number, prompt)
        exchange.events = exchange.reads = len(outputs)
        if exchange.failure is None:
            exchange.prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
            lengths = [vllm_api.vector_length(output) for output in outputs]
            note_vectors(lengths, exchange, len(prepared.prompts), self._dimensions)
        exchange.end_ns = self._now_ns() if now_ns is None else now_ns

    async def watch(self) -> str:
        """Wait until the engine is dead (`targets.base.Target.watch`)."""
        return await self._engine.gone()

    async def _output(self, request_id: str, prompt: dict[str, Any], parameters: Any) -> Any:
        """vLLM's PoolingRequestOutput of one text, which is aborted where this is cancelled."""
        last = None
        try:
            async for output in self._engine.encode(prompt, parameters, request_id, self._pooling.priority):
                last = output
        except anyio.get_cancelled_exc_class():
            # vLLM aborts too, but its own wait for that could be cancelled as well.
            await self._engine.abort(request_id)
            raise
        return last

    def _aborted(self) -> tuple[str, str]:
        """The failure of a text that came back without a vector: an engine that is told to terminate ends it so."""
        self._engine.doom()
        return ENGINE_DEAD, self._engine.epitaph()


def pooling_of(workload: Workload, names: Collection[str]) -> Pooling:
    """Translate a body, whose names are those of the HTTP API; `names` are the pooling parameters of the engine.

    Raises:
        LoadgenError: with a line for each name that an engine has no use for; or a value is of no use.
    """
    body = workload.body
    known = (*names, "priority")
    faults = [unknown_name(name, known, "pooling parameter") for name in body if name not in known]
    if faults:
        raise LoadgenError("\n".join(faults))
    fields = {} if workload.dimensions is None else {"dimensions": workload.dimensions}
    theirs = {name: value for name, value in body.items() if name in names}
    return Pooling({**fields, **theirs}, value_of(body, "priority", int, 0))


def pooling_target(target: EngineTarget) -> EngineTarget:
    """The target with an engine that pools, unless it says itself what its engine does."""
    return replace(target, engine_args={"runner": "pooling", **target.engine_args})
