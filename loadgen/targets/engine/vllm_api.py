"""What loadgen needs of vLLM's Python API, and how its releases (0.30 to 0.33) differ. Only here is it imported."""

import dataclasses
import importlib.util
import inspect
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from loadgen.errors import LoadgenError
from loadgen.targets.engine.transcribe import Hearing

_NOT_TO_SET: Final = frozenset({"output_kind", "skip_clone", "output_text_buffer_length", "detokenize"})
"""Fields of SamplingParams that are the caller's business, not a request's."""

_FIRST_WITH_EFFORT: Final = 15
"""The version of Mistral's tokenizers that takes `reasoning_effort`."""


def require_vllm() -> None:
    """Raise LoadgenError where vLLM is not installed. Imports nothing."""
    if importlib.util.find_spec("vllm") is None:
        raise LoadgenError("target.kind = engine: needs vLLM in this environment: pip install 'loadgen[vllm]'")


def version() -> str:
    """The release of vLLM that is installed."""
    import vllm

    return str(vllm.__version__)


def engine_argument_names() -> frozenset[str]:
    """What AsyncEngineArgs takes."""
    from vllm import AsyncEngineArgs

    return frozenset(field.name for field in dataclasses.fields(AsyncEngineArgs) if field.init)


def sampling_names() -> frozenset[str]:
    """What a request may set of SamplingParams."""
    from vllm import SamplingParams

    names: tuple[str, ...] = SamplingParams.__struct_fields__
    return frozenset(name for name in names if not name.startswith("_")) - _NOT_TO_SET


def make_engine(arguments: Mapping[str, Any]) -> Any:
    """Build an AsyncLLMEngine, which loads its model: seconds to many minutes. May be called in a thread."""
    from vllm import AsyncEngineArgs, AsyncLLMEngine

    return AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**arguments))


async def tokenizer_of(engine: Any) -> Any | None:
    """The engine's tokenizer; None where it was told to have none (`skip_tokenizer_init`)."""
    if engine.model_config.skip_tokenizer_init:
        return None
    tokenizer = engine.get_tokenizer()
    return await tokenizer if inspect.isawaitable(tokenizer) else tokenizer


def default_sampling(engine: Any) -> dict[str, Any]:
    """The sampling parameters that vLLM's own server would start from: the model's `generation_config.json`."""
    return dict(engine.model_config.get_diff_sampling_param())


def make_sampling(fields: Mapping[str, Any], *, stream: bool) -> Any:
    """SamplingParams of these fields; `structured_outputs` as a table. Streamed outputs bear only what is new.

    Raises:
        ValueError: a field holds what vLLM refuses.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    structured = fields.get("structured_outputs")
    try:
        if isinstance(structured, Mapping):
            fields = {**fields, "structured_outputs": StructuredOutputsParams(**structured)}
        return SamplingParams(**fields, output_kind=kind)
    except Exception as error:  # vLLM's own kinds of error have changed from release to release
        raise ValueError(words_of(error)) from error


def check_sampling(fields: Mapping[str, Any]) -> None:
    """Refuse values that vLLM's front end would let pass and its core could not read: the core would hang.

    Raises:
        ValueError: with the words of whoever refused.
    """
    from vllm import SamplingParams

    _check_readable(make_sampling(fields, stream=True), SamplingParams)


def _check_readable(parameters: Any, kind: Any) -> None:
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    try:
        MsgpackDecoder(kind).decode(MsgpackEncoder().encode(parameters))
    except Exception as error:  # whatever encoding and decoding can find wrong
        raise ValueError(words_of(error)) from error


def prompt_of_ids(ids: list[int]) -> dict[str, Any]:
    """A prompt of token ids that is ready as it is: without the `type` vLLM would look through it once more, in
    a thread."""
    return {"type": "token", "prompt_token_ids": ids}


def generate(
    engine: Any, prompt: Mapping[str, Any], sampling: Any, request_id: str, priority: int
) -> AsyncGenerator[Any, None]:
    """Start a request; yields RequestOutputs."""
    outputs: AsyncGenerator[Any, None] = engine.generate(prompt, sampling, request_id, priority=priority)
    return outputs


def pooling_names() -> frozenset[str]:
    """What a request for a vector may set of PoolingParams."""
    from vllm import PoolingParams

    names: list[str] = PoolingParams(task="embed").valid_parameters["embed"]
    return frozenset(names)


def make_pooling(fields: Mapping[str, Any]) -> Any:
    """PoolingParams, of these fields, that ask for one vector a prompt.

    Raises:
        ValueError: vLLM refuses the fields.
    """
    from vllm import PoolingParams

    try:
        return PoolingParams(task="embed", **fields)
    except Exception as error:  # as of SamplingParams
        raise ValueError(words_of(error)) from error


def check_pooling(fields: Mapping[str, Any]) -> None:
    """Refuse values that vLLM's core could not read, as `check_sampling` does.

    Raises:
        ValueError: with the words of whoever refused.
    """
    from vllm import PoolingParams

    _check_readable(make_pooling(fields), PoolingParams)


def encode(
    engine: Any, prompt: Mapping[str, Any], parameters: Any, request_id: str, priority: int
) -> AsyncGenerator[Any, None]:
    """Start a request for a vector; yields one PoolingRequestOutput."""
    outputs: AsyncGenerator[Any, None] = engine.encode(prompt, parameters, request_id, priority=priority)
    return outputs


def vector_length(output: Any) -> int:
    """How many numbers the vector of a PoolingRequestOutput has; 0 where the engine aborted it, or none came."""
    return 0 if output is None else int(output.outputs.data.numel())


def hearing_of(engine: Any, language: str | None) -> Hearing:
    """How a model that transcribes is given a sound, in this language (ISO 639-1) where it is told one.

    Raises:
        LoadgenError: the model, or this release of vLLM, does not take it so.
    """
    try:
        from vllm.config.speech_to_text import SpeechToTextParams
    except ImportError:
        raise LoadgenError(
            'workload.kind = "transcribe": this release of vLLM gives sounds to its models otherwise'
        ) from None
    from vllm.model_executor.model_loader import get_model_cls

    config = engine.model_config
    kind: Any = get_model_cls(config)
    try:
        language = kind.validate_language(language)
    except ValueError as error:
        raise LoadgenError(f"workload.body.language: {words_of(error)}") from None
    speech = kind.get_speech_to_text_config(config, "transcribe")

    def prompt_of(samples: Any) -> dict[str, Any]:
        parameters = SpeechToTextParams(audio=samples, stt_config=speech, model_config=config, language=language)
        return dict(kind.get_generation_prompt(parameters))

    return Hearing(int(speech.sample_rate), speech.max_audio_clip_s, prompt_of)


async def tasks_of(engine: Any) -> tuple[str, ...]:
    """What the engine does with its model: `generate`, `embed`, ..."""
    return tuple(map(str, await engine.get_supported_tasks()))


def is_death(error: BaseException) -> bool:
    """Whether an error of `generate` or `check_health` says that the engine is dead."""
    from vllm.v1.engine.exceptions import EngineDeadError

    return isinstance(error, EngineDeadError)


def words_of(error: BaseException) -> str:
    """What an error says, in a line: an error of vLLM may be empty and have its reason in what caused it."""
    seen: BaseException | None = error
    while seen is not None:
        words = " ".join(str(seen).split())
        if words:
            return f"{type(seen).__name__}: {words}"
        seen = seen.__cause__ or seen.__context__
    return type(error).__name__


def writes_in_code(tokenizer: Any) -> bool:
    """Whether a tokenizer writes chats in code of its own, as Mistral's do: it passes over a template, or refuses it.

    It is tried, since vLLM wraps tokenizers so that their signatures tell nothing.
    """
    turns = [{"role": "user", "content": "hello"}]
    try:
        wrote = tokenizer.apply_chat_template(turns, chat_template="{{ 'by template' }}", tokenize=False)
    except Exception:  # whatever code can have against a template
        return True
    return bool(wrote != "by template")


def unread_values(tokenizer: Any, names: Collection[str]) -> list[str]:
    """Which of the values for templates a tokenizer is known to pass over: Mistral's takes none, but how hard to reason
    in its later versions. vLLM's server refuses them, too."""
    if not getattr(tokenizer, "IS_MISTRAL_TOKENIZER", False):
        return []
    read = ("reasoning_effort",) if tokenizer.version >= _FIRST_WITH_EFFORT else ()
    return [name for name in names if name not in read]


def chat_template_of(engine: Any, tokenizer: Any) -> str | None:
    """The model's chat template: the tokenizer's, else, for a model that takes media, its processor's; None where there
    is none, also since the tokenizer writes chats in code."""
    if writes_in_code(tokenizer):
        return None
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    config = engine.model_config
    if template is None and config.is_multimodal_model:
        from transformers import AutoProcessor

        with suppress(OSError, ValueError):  # a model without a processor of its own
            processor = AutoProcessor.from_pretrained(
                config.model, revision=config.revision, trust_remote_code=config.trust_remote_code
            )
            template = getattr(processor, "chat_template", None)
    return template if isinstance(template, str) else None


def modalities(engine: Any) -> frozenset[str]:
    """What the model takes beside text: `image`, `audio`, ..."""
    if not engine.model_config.is_multimodal_model:
        return frozenset()
    from vllm.multimodal import MULTIMODAL_REGISTRY

    return frozenset(MULTIMODAL_REGISTRY.create_processor(engine.model_config).info.supported_mm_limits)
