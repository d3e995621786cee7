"""One vLLM engine in this process, from its start to its end. What is asked of it is `session`'s business."""

import difflib
import multiprocessing
from collections.abc import AsyncGenerator, Mapping
from functools import cached_property
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import anyio
import psutil

from loadgen.errors import LoadgenError, TargetError
from loadgen.processes import status_in_words
from loadgen.profile import EngineTarget
from loadgen.targets.engine import vllm_api
from loadgen.targets.engine.postmortem import epitaph
from loadgen.units import NS_PER_SECOND, format_duration

ENGINE_DEAD: Final = "engine_dead"
"""Kind of failure of what was in flight, or was asked of it, as the engine died."""
TOO_LONG: Final = "too_long"
REFUSED: Final = "request"
"""Kind of failure of a request that the engine refused for what it says."""

_STOP_SECONDS: Final = 60
_CHECK_SECONDS: Final = 30
_LOOK_SECONDS: Final = 0.25
_LAST_WORDS_SECONDS: Final = 0.5
"""A dying engine writes why for a moment after its requests have ended."""
_TOO_LONG_WORDS: Final = ("maximum context length", "maximum model length", "max_model_len", "longer than the maximum")


class Engine:
    """A vLLM engine. It loads its model in `start`, and its processes end with `stop`.

    The event loop stays free meanwhile. It needs asyncio, and belongs to the loop that started it.
    """

    def __init__(self, target: EngineTarget, log: Path | None) -> None:
        """`log` is where this process and the engine's own write what they have to say; it is quoted in failures."""
        self._target = target
        self._log = log
        # A log is appended to when a worker is started again: what an earlier engine said is not this one's.
        self._log_began = log.stat().st_size if log is not None and log.exists() else 0
        self._engine: Any = None
        self._stopped = False
        self._cores: list[BaseProcess] = []
        self._doomed: anyio.Event | None = None
        self._epitaph: str | None = None

    @property
    def vllm(self) -> Any:
        """The AsyncLLMEngine itself. Raises TargetError where it has not been started."""
        if self._engine is None:
            raise TargetError("the engine has not been started" if not self._stopped else "the engine has been stopped")
        return self._engine

    async def start(self) -> None:
        """Build the engine, within `target.start_timeout`.

        Raises:
            LoadgenError: vLLM is not there, or does not know one of `target.engine_args`; nothing was loaded.
            TargetError: it was started before, or did not come up.
        """
        if self._engine is not None:
            raise TargetError("the engine has been started already")
        if self._stopped:
            raise TargetError("the engine has been stopped; an engine is started once")
        vllm_api.require_vllm()
        target = self._target
        _check_folder(target.model)
        arguments = {**target.engine_args, "model": target.model}
        try:
            with anyio.fail_after(target.start_timeout / NS_PER_SECOND):
                # In a thread, so that this loop sees it if the run ends meanwhile.
                self._engine = await anyio.to_thread.run_sync(_build, arguments, abandon_on_cancel=True)
        except TimeoutError:
            limit = format_duration(target.start_timeout)
            raise TargetError(self._obituary(f"the engine was not up within target.start_timeout = {limit}")) from None
        except LoadgenError:
            raise
        except Exception as error:  # whatever a model, a driver or a compiler can do wrong
            words = f"the engine did not start: {vllm_api.words_of(error)}"
            raise TargetError(self._obituary(words)) from error
        self._doomed = anyio.Event()
        self._cores = multiprocessing.active_children()  # of a worker process, these are its engine's alone

    async def stop(self) -> None:
        """End the engine and its processes. Raises TargetError where it is not running."""
        engine, self._engine = self.vllm, None
        self._stopped = True
        with anyio.move_on_after(_STOP_SECONDS, shield=True):
            await anyio.to_thread.run_sync(engine.shutdown, abandon_on_cancel=True)

    async def check(self) -> None:
        """Raise TargetError where the engine is not well."""
        try:
            with anyio.fail_after(_CHECK_SECONDS):
                await self.vllm.check_health()
        except TimeoutError:
            raise TargetError(f"the engine did not say within {_CHECK_SECONDS} s that it is well") from None
        except TargetError:
            raise
        except Exception as error:
            raise TargetError(self._obituary(f"the engine is not well: {vllm_api.words_of(error)}")) from error
        if self.dead is not None:
            raise TargetError(self.epitaph())

    def generate(
        self, prompt: Mapping[str, Any], sampling: Any, request_id: str, priority: int
    ) -> AsyncGenerator[Any, None]:
        """Start a request; yields vLLM's RequestOutputs."""
        return vllm_api.generate(self.vllm, prompt, sampling, request_id, priority)

    def encode(
        self, prompt: Mapping[str, Any], parameters: Any, request_id: str, priority: int
    ) -> AsyncGenerator[Any, None]:
        """Start a request for a vector; yields one of vLLM's PoolingRequestOutputs."""
        return vllm_api.encode(self.vllm, prompt, parameters, request_id, priority)

    async def abort(self, request_id: str) -> None:
        """Give a request up, so that the engine spends no more on it. Not cancelled halfway."""
        if self.dead is not None:
            return
        try:
            with anyio.move_on_after(_CHECK_SECONDS, shield=True):
                await self.vllm.abort(request_id)
        except Exception as error:
            if not vllm_api.is_death(error):
                raise

    def failure_of(self, error: Exception, prompt_tokens: int | None) -> tuple[str, str]:
        """The kind of failure and the words for an error that ended a request."""
        if vllm_api.is_death(error) or self.dead is not None:
            self.doom()
            return ENGINE_DEAD, self.epitaph()
        words = vllm_api.words_of(error)
        limit = self.max_model_len
        if (prompt_tokens is not None and prompt_tokens >= limit) or any(word in words for word in _TOO_LONG_WORDS):
            return TOO_LONG, words
        return REFUSED, words

    def doom(self) -> None:
        """Take the engine for dead: it ended a request as it does only when it ends itself."""
        if self._doomed is not None:
            self._doomed.set()

    async def gone(self) -> str:
        """Wait until the engine is dead, and return what there is to say of it, in a line."""
        assert self._doomed is not None
        while self.dead is None and not self._doomed.is_set():
            with anyio.move_on_after(_LOOK_SECONDS):
                await self._doomed.wait()
        await anyio.sleep(_LAST_WORDS_SECONDS)
        self._epitaph = None
        return self.epitaph()

    def epitaph(self) -> str:
        """What there is to say of an engine that died: how, the likely cause, and the last lines of its log."""
        if self._epitaph is None:
            self._epitaph = self._obituary(
                f"the engine died: {self.dead or 'it aborted its requests, as one does that is told to terminate'}"
            )
        return self._epitaph

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together, at most."""
        return int(self.vllm.model_config.max_model_len)

    @cached_property
    def modalities(self) -> frozenset[str]:
        """What the model takes beside text: `image`, `audio`, ..."""
        return vllm_api.modalities(self.vllm)

    @property
    def served_name(self) -> str:
        """What the engine calls its model."""
        served = self._target.engine_args.get("served_model_name", self._target.model)
        return str(served[0] if isinstance(served, list) and served else served)

    def memory_bytes(self) -> int:
        """Resident memory of this process and all below it."""
        me = psutil.Process()
        total = 0
        for process in (me, *me.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    @property
    def dead(self) -> str | None:
        """How it is dead, in a few words; None while it lives."""
        for core in self._cores:
            if core.exitcode is not None:
                return f"{core.name}, {status_in_words(core.exitcode)}"
        if self._engine is not None and self._engine.errored:
            return "vLLM says that it is dead"
        return None

    def _obituary(self, what: str) -> str:
        return epitaph(what, self._log, self._log_began)


def _check_folder(model: str) -> None:
    """Refuse what can only be a folder, since no name on the hub begins so, and is none."""
    if model.startswith(("/", "./", "../", "~")) and not Path(model).is_dir():
        raise TargetError(f"target.model: there is no folder {model}")


def _build(arguments: dict[str, Any]) -> Any:
    """Refuse arguments that vLLM does not have, by name, and build the engine. Imports vLLM: seconds."""
    names = vllm_api.engine_argument_names()
    unknown = [name for name in arguments if name not in names]
    if unknown:
        raise LoadgenError("\n".join(_unknown(name, names) for name in unknown))
    return vllm_api.make_engine(arguments)


def _unknown(name: str, names: frozenset[str]) -> str:
    near = difflib.get_close_matches(name.replace("-", "_"), names, n=1)
    meant = f"; did you mean `{near[0]}`?" if near else ""
    return f"target.engine_args.{name}: this vLLM has no such argument{meant}"
