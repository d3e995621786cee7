"""A generation as the simulated engine answers it, and how a request's wishes decide its length and its words."""

from typing import Any, Final, Literal

import msgspec

from loadgen.sim.api.protocol import ApiError
from loadgen.sim.config import SimConfig
from loadgen.sim.model.choice import choose, tokenized
from loadgen.sim.model.conversation import Prompt
from loadgen.sim.model.language import VOCABULARY

Kind = Literal["chat", "completion", "response", "message", "transcription"]
FinishReason = Literal["stop", "length", "abort"]

_LONGEST_NATURAL_ANSWER: Final = 1024
_MOST_LOGPROBS: Final = 20


class StructuredOutputs(msgspec.Struct):
    """How the answer is constrained; the simulated model knows `choice` alone."""

    choice: list[str] | None = None
    json: Any = None
    regex: Any = None
    grammar: Any = None
    json_object: Any = None
    structural_tag: Any = None


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of the answer's length and words."""

    max_tokens: int | None = None
    """None: as many as fit."""
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    temperature: float | None = None
    """0 takes the likeliest label of a choice; None is 1."""
    seed: int | None = None


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A generation request as the simulated engine answers it."""

    kind: Kind
    prompt: Prompt
    output_tokens: int
    finish_reason: FinishReason
    labels: tuple[tuple[int, ...], ...] = ()
    """The choice that constrains the answer, tokenized; empty for none."""
    script: tuple[int, ...] = ()
    """What the answer begins with: the label chosen."""
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    logprobs: int | None = None
    """How many of the likeliest tokens to tell besides each token; None for no log-probabilities."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens."""
    echo: bool = False
    """The answer begins with the prompt."""
    prompt_only: bool = False
    """The answer is the prompt: the one token generated is not told."""
    as_ids: bool = False
    """Tokens are written `token_id:N` among the log-probabilities."""


def settle(
    prompt: Prompt, config: SimConfig, wish: Wish
) -> tuple[int, FinishReason, tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """How many tokens the answer has, why it ends, the labels allowed, and the one chosen.

    An output that does not fit into the context is shortened silently, as vLLM does. Without `ignore_eos` the answer
    ends by `stop`: after its label, whose end is a token too, or else at a length drawn from the prompt and the seed,
    between `min_tokens` and `max_tokens`.

    Raises:
        ApiError: 400, where that cannot be answered.
    """
    asked = wish.max_tokens
    if asked is not None and asked < 1:
        words = f"max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})"
        raise ApiError(400, words, param="max_tokens")
    if asked is not None and asked > config.max_model_len:
        words = f"max_tokens={asked} cannot be greater than max_model_len={config.max_model_len}."
        advice = f"Please request fewer output tokens. (parameter=max_tokens, value={asked})"
        raise ApiError(400, f"{words} {advice}", param="max_tokens")
    check_prompt(prompt, config)
    left = config.max_model_len - prompt.tokens
    limit = left if asked is None else min(asked, left)
    least = wish.min_tokens or 0
    if least < 0 or (asked is not None and least > asked):
        raise ApiError(400, f"min_tokens must be between 0 and max_tokens, got {least}.", param="min_tokens")
    if wish.structured_outputs is not None:
        labels = _labels(wish.structured_outputs)
        salt = (wish.seed or 0) & 0xFFFFFFFF
        label = choose(prompt.context, labels, greedy=wish.temperature == 0, salt=salt)
        if wish.ignore_eos:
            return limit, "length", labels, label
        return min(len(label), limit), "stop" if len(label) <= limit else "length", labels, label
    if wish.ignore_eos or least >= limit:
        return limit, "length", (), ()
    return _natural_length(max(least, 1), limit, prompt.context.state), "stop", (), ()


def check_prompt(prompt: Prompt, config: SimConfig) -> None:
    """Raise ApiError (400) for a prompt that is empty or leaves no room for a token."""
    if prompt.tokens < 1:
        raise ApiError(400, "The prompt is empty.", param="prompt")
    if prompt.tokens >= config.max_model_len:
        raise ApiError(
            400,
            f"The context is {config.max_model_len} tokens long; the prompt of {prompt.tokens} tokens leaves no room.",
            param="input_tokens",
        )


def check_logprobs(count: int | None, *, prompt: bool = False) -> int | None:
    """How many log-probabilities a token are asked for.

    Raises:
        ApiError: 400, where that is below -1 or above what vLLM tells.
    """
    if count is None or 0 <= count <= _MOST_LOGPROBS:
        return count
    field, kind = ("prompt_logprobs", "prompt") if prompt else ("logprobs", "sample")
    if count < -1:
        words = f"`{field}` must be a positive value or -1. (parameter={field}, value={count})"
    else:
        count = VOCABULARY if count == -1 else count
        words = (
            f"Requested {kind} logprobs of {count}, which is greater than max allowed: {_MOST_LOGPROBS} "
            f"(parameter={field}, value={count})"
        )
    raise ApiError(400, words, param=field)


def _labels(asked: StructuredOutputs) -> tuple[tuple[int, ...], ...]:
    others = (asked.json, asked.regex, asked.grammar, asked.json_object, asked.structural_tag)
    if any(other is not None for other in others):
        if asked.choice is None:
            raise ApiError(400, "The simulated model knows structured outputs of the kind 'choice' alone.")
        kinds = "('json', 'regex' or 'choice')"
        raise ApiError(400, f"You can only use one kind of constraints for structured outputs {kinds}.")
    if asked.choice is None:
        raise ApiError(400, "You must use one kind of structured outputs constraint but none are specified.")
    if not asked.choice:
        raise ApiError(400, "Choice '[]' cannot be an empty list")
    return tokenized(asked.choice)


def _natural_length(least: int, limit: int, draw: int) -> int:
    """Uniform between the least length and the limit, but never far beyond what a model says of its own accord."""
    most = max(least, min(limit, _LONGEST_NATURAL_ANSWER))
    return least + draw % (most - least + 1)
