"""From `[workload.body]`, whose names are those of the HTTP API, to an engine's sampling parameters."""

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

import msgspec

from loadgen.errors import LoadgenError

_T = TypeVar("_T")
_KINDS: Final[dict[type, str]] = {bool: "true or false", int: "a whole number", dict: "a table"}
_RENAMED = {"max_completion_tokens": "max_tokens"}
_BESIDE = ("chat_template_kwargs", "priority", "stream", "top_logprobs", "response_format", "max_completion_tokens")
_HINTS = {
    "guided_choice": "structured_outputs = { choice = [...] }",
    "guided_json": "structured_outputs = { json = ... }",
    "guided_regex": "structured_outputs = { regex = ... }",
    "guided_grammar": "structured_outputs = { grammar = ... }",
    "model": "target.model",
    "chat_template": "target.request_format",
}
_OURS = ("chat_template", "tokenize", "return_dict")
"""What a chat template's call is told by us, and cannot be told by `chat_template_kwargs`."""


class Sampling(msgspec.Struct, frozen=True):
    """What every request of a run has in common."""

    fields: dict[str, Any]
    """Of SamplingParams; lengths are added to each request's."""
    lengths: tuple[str, ...]
    """Which of `max_tokens`, `min_tokens` and `ignore_eos` a request's asked length sets."""
    stream: bool
    priority: int = 0
    template_fields: dict[str, Any] = {}
    """Passed to the chat template (`chat_template_kwargs`)."""

    def of(self, output_tokens: int | None) -> dict[str, Any]:
        """The fields of one request that asks for so many output tokens, or for nothing particular."""
        if output_tokens is None:
            # None: vLLM fills the context. Its own default of 16 tokens is not what its server does.
            return {"max_tokens": None, **self.fields}
        asked = {"max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True}
        return {**self.fields, **{name: asked[name] for name in self.lengths}}


def sampling_of(
    body: Mapping[str, Any], defaults: Mapping[str, Any], names: Collection[str], *, chat: bool, stream: bool
) -> Sampling:
    """Translate a body over the model's own `defaults`; `names` are what the engine knows.

    As over HTTP, a body that sets `max_tokens` itself takes the asked length's place, and its minimum with it; and an
    answer with a structure of its own ends by itself, the asked length being its limit.

    Raises:
        LoadgenError: with a line for each name that an engine has no use for; or a value is of no use.
    """
    known = (*names, *_BESIDE)
    faults = [unknown_name(name, known) for name in body if name not in known]
    if faults:
        raise LoadgenError("\n".join(faults))
    fields = {name: value for name, value in body.items() if name in names}
    for name, theirs in _RENAMED.items():
        if name in body:
            fields[theirs] = body[name]
    _set_logprobs(fields, body, chat)
    _set_format(fields, body)
    _set_logit_bias(fields)
    if fields.get("n", 1) != 1:
        raise LoadgenError("workload.body.n: an engine run takes one answer a request: token times are of one answer")
    unwanted = set(fields)
    if "max_tokens" in fields:  # a minimum may lie above the user's own maximum
        unwanted.add("min_tokens")
    if "structured_outputs" in fields:  # forced on, the answer would break its constraint
        unwanted |= {"min_tokens", "ignore_eos"}
    return Sampling(
        fields={**defaults, **fields},
        lengths=tuple(name for name in ("max_tokens", "min_tokens", "ignore_eos") if name not in unwanted),
        stream=value_of(body, "stream", bool, stream),
        priority=value_of(body, "priority", int, 0),
        template_fields=_template_fields(body),
    )


def _template_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    fields = value_of(body, "chat_template_kwargs", dict, {})
    for name in _OURS:
        if name in fields:
            hint = f"; use {_HINTS[name]}" if name in _HINTS else ""
            raise LoadgenError(f"workload.body.chat_template_kwargs.{name}: not for a template{hint}")
    return dict(fields)


def _set_logprobs(fields: dict[str, Any], body: Mapping[str, Any], chat: bool) -> None:
    """A chat asks for them with `logprobs = true` and `top_logprobs = n`, a completion with `logprobs = n`."""
    if not chat:
        return
    wanted = body.get("logprobs", False)
    if not isinstance(wanted, bool):
        raise LoadgenError("workload.body.logprobs: a chat takes true or false, and top_logprobs = n")
    fields.pop("logprobs", None)
    if wanted:
        fields["logprobs"] = value_of(body, "top_logprobs", int, 0)


def value_of(body: Mapping[str, Any], name: str, kind: type[_T], absent: _T) -> _T:
    """What a body says by a name, else `absent`. Raises LoadgenError where it is of another type."""
    value = body.get(name, absent)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise LoadgenError(f"workload.body.{name}: must be {_KINDS[kind]}")
    return value


def _set_format(fields: dict[str, Any], body: Mapping[str, Any]) -> None:
    form = body.get("response_format")
    if form is None:
        return
    reading: dict[str, Callable[[], dict[str, Any] | None]] = {
        "text": lambda: None,
        "json_object": lambda: {"json_object": True},
        "json_schema": lambda: {"json": form["json_schema"]["schema"]},
    }
    try:
        structured = reading[form["type"]]()
    except (KeyError, TypeError):
        kinds = ", ".join(f'"{kind}"' for kind in reading)
        raise LoadgenError(f"workload.body.response_format: its type must be one of {kinds}") from None
    if structured is not None:
        fields["structured_outputs"] = structured


def _set_logit_bias(fields: dict[str, Any]) -> None:
    """Keys are text in TOML and in JSON, and token ids to the engine."""
    bias = fields.get("logit_bias")
    if isinstance(bias, Mapping):
        try:
            fields["logit_bias"] = {int(token): value for token, value in bias.items()}
        except ValueError:
            raise LoadgenError("workload.body.logit_bias: its keys must be token ids") from None


def unknown_name(name: str, known: Collection[str], what: str = "sampling parameter") -> str:
    """The line that refuses a name in a body, with what was meant by it where that can be told."""
    if name in _HINTS:
        return f"workload.body.{name}: an engine does not take it; use {_HINTS[name]}"
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean `{near[0]}`?" if near else ""
    return f"workload.body.{name}: no {what} of this vLLM{meant}"
