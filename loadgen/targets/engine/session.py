"""A worker's session with its engine: requests become prompts and sampling parameters, outputs instants and tokens."""

import asyncio
import secrets
from array import array
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from typing import Any, Final

import msgspec

from loadgen.errors import LoadgenError, TargetError
from loadgen.measure.outcome import Exchange
from loadgen.profile import EngineTarget, Workload
from loadgen.targets.base import Opening
from loadgen.targets.engine import vllm_api
from loadgen.targets.engine.kinds import EngineKind, ReadOutput, engine_kind, kind_sampling
from loadgen.targets.engine.lifecycle import ENGINE_DEAD, REFUSED, Engine
from loadgen.targets.engine.sampling import Sampling
from loadgen.targets.engine.transcribe import Hearing, transcription_prompt
from loadgen.targets.http.chunks import ABORT, SERVER_ERROR
from loadgen.workload.media import decode_audio, decode_image
from loadgen.workload.prompt import (
    DEFAULT_TEMPLATE,
    PLAIN,
    Format,
    Prompt,
    PromptError,
    Turn,
    prompt_format,
    render,
)
from loadgen.workload.request import Request

_DECODING_THREADS: Final = 2


class Prepared(msgspec.Struct, frozen=True):
    """A request ready for the engine."""

    request_id: str
    prompt: dict[str, Any]
    """As vLLM takes it: `prompt_token_ids`."""
    media: Future[dict[str, Any]] | None
    """What the prompt has beside them, being decoded in a thread."""
    sampling: Any
    asked: int | None
    """Output tokens asked for, where the model is not to end by itself."""
    read: ReadOutput | None = None
    """Reads the answer where it is more than text."""


class EngineSession:
    """One engine as a target (`targets.base.Target`). Its requests share the engine's batches."""

    def __init__(
        self,
        engine: Engine,
        target: EngineTarget,
        workload: Workload,
        now_ns: Callable[[], int],
        *,
        tokenizer: Any,
        chat_template: str | None,
    ) -> None:
        """Raises LoadgenError where `workload.body` or `target.request_format` holds what an engine cannot use."""
        self.opening: Opening | None = None
        self._engine = engine
        self._target = target
        self._now_ns = now_ns
        self._tokenizer = tokenizer
        self._set_format(chat_template)
        self._threads = ThreadPoolExecutor(_DECODING_THREADS, "decode")
        self._session_id = f"loadgen-{secrets.token_hex(4)}"
        self._set_workload(workload)

    def _set_format(self, chat_template: str | None) -> None:
        """Choose who writes chats, and by which template: the user's own, or the model's."""
        self._format: Format = prompt_format(self._target.request_format)
        own = self._format.template
        self._template = chat_template if own is None else own
        self._in_code = vllm_api.writes_in_code(self._tokenizer)
        if self._in_code and own is not None:
            raise LoadgenError(
                "target.request_format: the model's tokenizer writes chats in code of its own and takes no template; "
                f"must be {DEFAULT_TEMPLATE} or {PLAIN}"
            )

    def _set_workload(self, workload: Workload) -> None:
        self._kind: EngineKind = engine_kind(workload)
        defaults, names = vllm_api.default_sampling(self._engine.vllm), vllm_api.sampling_names()
        self._sampling: Sampling = kind_sampling(workload, self._target, defaults, names)
        for name in vllm_api.unread_values(self._tokenizer, self._sampling.template_fields):
            raise LoadgenError(f"workload.body.chat_template_kwargs.{name}: the model's tokenizer takes no such value")
        self._hearing: Hearing | None = None
        if self._kind.hears:
            self._hearing = vllm_api.hearing_of(self._engine.vllm, workload.body.get("language"))

    def with_workload(self, workload: Workload) -> "EngineSession":
        other = copy(self)
        other._set_workload(workload)
        return other

    def prepare(self, request: Request) -> Prepared:
        """Render the prompt, to token ids, and the sampling parameters of a request.

        Raises:
            ValueError: it says nothing, holds media that cannot be decoded or asks for what vLLM refuses.
        """
        fields = self._sampling.of(request.output_tokens)
        if self._kind.own_fields is not None:
            fields |= self._kind.own_fields(request)
        sampling = vllm_api.make_sampling(fields, stream=self._sampling.stream)
        asked = request.output_tokens if sampling.ignore_eos and sampling.max_tokens == request.output_tokens else None
        prompt, media = self.prompt_of(request)
        read = None if self._kind.reader is None else self._kind.reader(request)
        return Prepared(f"{self._session_id}-{request.index}", prompt, media, sampling, asked, read)

    def prompt_of(self, request: Request) -> tuple[dict[str, Any], Future[dict[str, Any]] | None]:
        """The prompt of a request as vLLM takes it, and what its media will add to it, where there are any."""
        if self._hearing is not None:
            return {}, self._threads.submit(transcription_prompt, request, self._hearing)
        if request.messages is None:
            if isinstance(request.prompt, str):
                return vllm_api.prompt_of_ids(self._tokenizer.encode(request.prompt)), None
            return vllm_api.prompt_of_ids(list(request.prompt or ())), None
        rendered = render(
            request.messages,
            self._format,
            chat_template=self._write_chat if self._in_code or self._template is not None else None,
            image_placeholder=self._target.image_placeholder,
            audio_placeholder=self._target.audio_placeholder,
        )
        ids = rendered.text
        if isinstance(ids, str):
            # What a template wrote has its special tokens already: a second begin-of-text would be another prompt.
            ids = self._tokenizer.encode(ids, add_special_tokens=not rendered.special)
        media = self._decoding(rendered)
        return ({"prompt_token_ids": ids}, media) if media is not None else (vllm_api.prompt_of_ids(ids), None)

    def close(self) -> None:
        """End the threads that decode media."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _decoding(self, prompt: Prompt) -> Future[dict[str, Any]] | None:
        """Begin to decode the media of a prompt, in a thread: at once here it would hold the loop for milliseconds."""
        if not prompt.images and not prompt.audio:
            return None
        for kind, sources, name in (("image", prompt.images, "images"), ("audio", prompt.audio, "audio")):
            if sources and kind not in self._engine.modalities:
                raise PromptError(f'the model "{self._engine.served_name}" takes no {name}')
        return self._threads.submit(_media, prompt)

    async def send(self, prepared: Prepared, exchange: Exchange) -> None:
        """Generate, stamping each output as it is yielded (the contract is `targets.base.Target.send`).

        Cancelled, it aborts the request in the engine; `exchange` keeps the text, tokens and instants so far.
        """
        exchange.streamed = self._sampling.stream
        exchange.request_id = prepared.request_id
        exchange.chunk_tokens = array("q") if exchange.streamed else None
        last = None
        now_ns = None
        try:
            async for output in self.outputs(prepared):
                now_ns = self._now_ns()
                self._note(output, now_ns, exchange)
                last = output
        except PromptError as error:  # media that cannot be decoded
            exchange.failure, exchange.message = REFUSED, str(error)
            now_ns = self._now_ns()
        except Exception as error:  # vLLM's kinds of error differ from release to release; `failure_of` sorts them
            ids = prepared.prompt.get("prompt_token_ids")  # of a sound to be written down, vLLM makes them
            known = None if ids is None else len(ids)
            exchange.failure, exchange.message = self._engine.failure_of(error, known)
            exchange.target_gone = exchange.failure == ENGINE_DEAD
            now_ns = self._now_ns()
        else:
            self._judge(prepared, exchange, last)
        exchange.end_ns = self._now_ns() if now_ns is None else now_ns

    async def outputs(self, prepared: Prepared) -> AsyncGenerator[Any, None]:
        """vLLM's RequestOutputs of a prepared request. Left early or cancelled, the request is aborted.

        Raises:
            PromptError: its media cannot be decoded.
        """
        prompt = prepared.prompt
        if prepared.media is not None:
            prompt = prompt | await asyncio.wrap_future(prepared.media)
        generation = self._engine.generate(prompt, prepared.sampling, prepared.request_id, self._sampling.priority)
        ended = False
        try:
            async for output in generation:
                ended = output.finished
                yield output
            ended = True
        except Exception:
            ended = True
            raise
        finally:
            if not ended:
                # vLLM aborts too, but its own wait for that could be cancelled as well.
                await self._engine.abort(prepared.request_id)

    async def watch(self) -> str:
        """Wait until the engine is dead (`targets.base.Target.watch`)."""
        return await self._engine.gone()

    def _note(self, output: Any, now_ns: int, exchange: Exchange) -> None:
        """Write down what one output brings."""
        tokens = 0
        for answer in output.outputs:
            tokens += len(answer.token_ids)
            if answer.finish_reason is not None:
                exchange.finish_reason = answer.finish_reason
            if answer.text:
                if exchange.first_content_ns is None and exchange.streamed:
                    exchange.first_content_ns = now_ns
                if exchange.texts is not None:
                    exchange.texts.append(answer.text)
        exchange.events += 1
        exchange.reads += 1
        if exchange.prompt_tokens is None and output.prompt_token_ids is not None:
            exchange.prompt_tokens = len(output.prompt_token_ids)
        if tokens:
            exchange.output_tokens = (exchange.output_tokens or 0) + tokens
            if exchange.chunk_tokens is not None:
                exchange.chunks_ns.append(now_ns)
                exchange.chunk_tokens.append(tokens)

    def _judge(self, prepared: Prepared, exchange: Exchange, last: Any) -> None:
        """Tell an answer that ended by itself from one that the engine's own end cut short; `last` is its last output.

        An engine that is told to terminate ends its streams in order, though not their answers: with `abort`, or with
        fewer tokens than it was bound to give.
        """
        engine = self._engine
        if exchange.finish_reason == ABORT or last is None or not last.finished:
            engine.doom()
            self._fail_with_engine(exchange)
            return
        if exchange.finish_reason == "error":
            exchange.failure = SERVER_ERROR
            exchange.message = 'the engine gave the request up (finish_reason "error")'
            return
        if prepared.read is not None:
            prepared.read(last, exchange)
            if exchange.failure is not None and engine.dead:
                self._fail_with_engine(exchange)
            return
        if prepared.asked is None or (exchange.output_tokens or 0) >= prepared.asked:
            return
        full = (exchange.prompt_tokens or 0) + (exchange.output_tokens or 0) >= engine.max_model_len
        if not full and exchange.finish_reason != "stop" and engine.dead:
            self._fail_with_engine(exchange)

    def _fail_with_engine(self, exchange: Exchange) -> None:
        exchange.failure, exchange.message = ENGINE_DEAD, self._engine.epitaph()
        exchange.target_gone = True

    def _write_chat(self, turns: list[Turn]) -> str | list[int]:
        # Code may write what no text holds, such as a marker that text cannot spell: there the ids are asked for.
        how = {"tokenize": True} if self._in_code else {"tokenize": False, "chat_template": self._template}
        asked = {"add_generation_prompt": True, **self._sampling.template_fields, "return_dict": False, **how}
        written: str | list[int] = self._tokenizer.apply_chat_template(turns, **asked)
        return written


async def tokenizer_of(engine: Engine) -> Any:
    """The engine's tokenizer. Raises TargetError where it has none."""
    tokenizer = await vllm_api.tokenizer_of(engine.vllm)
    if tokenizer is None:
        raise TargetError(
            f'the model "{engine.served_name}" has no tokenizer here (target.engine_args.skip_tokenizer_init): '
            "prompts cannot be made into tokens"
        )
    return tokenizer


def _media(prompt: Prompt) -> dict[str, Any]:
    """`multi_modal_data` as vLLM takes it: one decoded item as it is, several as a list."""
    data: dict[str, Any] = {}
    for kind, sources, decode in (("image", prompt.images, decode_image), ("audio", prompt.audio, decode_audio)):
        items = [decode(source, f"{kind} {number} of {len(sources)}") for number, source in enumerate(sources, 1)]
        if items:
            data[kind] = items[0] if len(items) == 1 else items
    return {"multi_modal_data": data}
