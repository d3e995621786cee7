"""The bodies of `/v1/chat/completions` and `/v1/completions`, and the generations that they ask for."""

from typing import Annotated, Final

import msgspec

from loadgen.sim.api.generation import Generation, StructuredOutputs, Wish, check_logprobs, settle
from loadgen.sim.api.protocol import ApiError, TokenId, check_model, decode_body
from loadgen.sim.config import SimConfig
from loadgen.sim.model.conversation import Message, Prompt, prompt_of_chat, prompt_of_ids, prompt_of_text

_COMPLETION_MAX_TOKENS: Final = 16  # the OpenAI API's default


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct, kw_only=True):
    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    temperature: float | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: int | None = None


class _ChatBody(_Body, kw_only=True):
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class _CompletionBody(_Body, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: int | None = None
    echo: bool | None = None


_CHAT: Final = msgspec.json.Decoder(_ChatBody)
_COMPLETION: Final = msgspec.json.Decoder(_CompletionBody)


def read_chat(body: bytes, config: SimConfig) -> Generation:
    """The generation that the body of a chat asks for.

    Raises:
        ApiError: 404 for another model, 400 for anything else that cannot be answered.
    """
    chat = decode_body(body, _CHAT)
    check_model(config, chat.model)
    if chat.top_logprobs and not chat.logprobs:
        words = "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)"
        raise ApiError(400, words, param="top_logprobs")
    asked = chat.max_completion_tokens if chat.max_completion_tokens is not None else chat.max_tokens
    generation = _generation(chat, config, prompt_of_chat(chat.messages, config.seed), asked)
    logprobs = check_logprobs(chat.top_logprobs or 0) if chat.logprobs else None
    return msgspec.structs.replace(generation, kind="chat", logprobs=logprobs)


def read_completion(body: bytes, config: SimConfig) -> Generation:
    """The generation that the body of a completion asks for.

    Raises:
        ApiError: 404 for another model, 400 for anything else that cannot be answered.
    """
    completion = decode_body(body, _COMPLETION)
    check_model(config, completion.model)
    asked = completion.max_tokens if completion.max_tokens is not None else _COMPLETION_MAX_TOKENS
    prompt_only = asked == 0 and bool(completion.echo)
    prompt = _one_prompt(completion.prompt, config.seed)
    generation = _generation(completion, config, prompt, 1 if prompt_only else asked)
    if not (completion.echo or completion.logprobs is not None):
        return generation
    logprobs = check_logprobs(completion.logprobs)
    told = generation.prompt_logprobs
    if completion.echo and told is None and not completion.stream:
        told = logprobs
    return msgspec.structs.replace(
        generation,
        finish_reason="length" if prompt_only else generation.finish_reason,
        logprobs=logprobs,
        prompt_logprobs=told,
        echo=bool(completion.echo),
        prompt_only=prompt_only,
    )


def _one_prompt(prompt: str | list[str | TokenId | list[TokenId]], seed: int) -> Prompt:
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]  # type: ignore[assignment]  # a batch of one
    if isinstance(prompt, str):
        return prompt_of_text(prompt, seed)
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) != len(prompt):
        raise ApiError(400, "A request has one prompt: a text or a list of token ids.", param="prompt")
    return prompt_of_ids(ids, seed)


def _generation(body: _Body, config: SimConfig, prompt: Prompt, asked: int | None) -> Generation:
    """A completion's, without what only one of the two kinds can ask for."""
    if body.n is not None and body.n != 1:
        raise ApiError(400, f"n must be 1, got {body.n}.", param="n")
    if body.prompt_logprobs is not None and body.stream:
        words = "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)"
        raise ApiError(400, words, param="prompt_logprobs")
    wish = Wish(
        max_tokens=asked,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        structured_outputs=body.structured_outputs,
        temperature=body.temperature,
        seed=body.seed,
    )
    output_tokens, finish_reason, labels, script = settle(prompt, config, wish)
    options = body.stream_options or _StreamOptions()
    return Generation(
        kind="completion",
        prompt=prompt,
        output_tokens=output_tokens,
        finish_reason=finish_reason,
        labels=labels,
        script=script,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
        prompt_logprobs=check_logprobs(body.prompt_logprobs, prompt=True),
        as_ids=bool(body.return_tokens_as_token_ids),
    )
