"""An answer that is one of some labels: which field of the body asks for it, whether the server obeys, and the check.

vLLM takes `structured_outputs` since 0.11. Servers before took `guided_choice`, which later ones ignore silently, with
a good status. So the field is chosen by the server's version, and tried once with a label that no model would say.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadgen.client.answers import read_chat
from loadgen.client.connection import Connection, Constraint
from loadgen.client.errors import NO_CONSTRAINT, LabelError, RequestError
from loadgen.client.types import ChatResponse
from loadgen.targets.endpoints.choice import NOT_A_LABEL, choice_fields
from loadgen.workload.request import Message

CURRENT: Final = "structured_outputs"
FORMER: Final = "guided_choice"
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")
_UNRELEASED: Final = (0, 1)
"""What a build from a source tree without its tags calls itself, whatever it is."""

_PROBE: Final = (Message("user", "Say hello."),)
_PROBE_LABEL: Final = "qzxj"
_MODEL_S_OWN: Final = -6.0
"""The probe's answer is improbable (a log-probability far below -10) unless the constraint has taken away the rest.

Then a greedy answer takes the likeliest of what is left: at most 4, 3, 2 and 1 tokens, as its four letters can be cut,
and a few ways to end. That is at least 1/72, whose logarithm is -4.3.
"""
_UNWANTED: Final = ("ignore_eos", "min_tokens", "structured_outputs", "guided_choice")
"""What would let an answer go on after its label, or constrain it otherwise."""


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The labels of a request.

    Raises:
        ValueError: there are none, or one is empty, has space around it, or stands there twice.
    """
    if isinstance(labels, str):
        raise ValueError("constrain_labels is a list of labels, not a text")
    if not labels:
        raise ValueError("constrain_labels is empty")
    for label in labels:
        if not label or label != label.strip():
            raise ValueError(f"a label is a text without space around it, not {label!r}")
    if len(set(labels)) < len(labels):
        raise ValueError("a label stands twice in constrain_labels")
    return tuple(labels)


def fields_for(field: str, labels: Sequence[str]) -> dict[str, Any]:
    """The body fields that allow these labels and nothing else."""
    return {field: {"choice": list(labels)} if field == CURRENT else list(labels)}


def without_unwanted(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A body's fields without those that would spoil a constrained answer."""
    return {name: value for name, value in fields.items() if name not in _UNWANTED}


def fields_of_version(version: str | None) -> tuple[str, ...]:
    """The field that a server of this version takes; where the version says nothing, both, to be tried in turn."""
    found = _VERSION.match(version or "")
    if found is None or (int(found[1]), int(found[2])) == _UNRELEASED:
        return (CURRENT, FORMER)
    return tuple(choice_fields((), version))  # as a load asks


async def constraint_of(connection: Connection) -> Constraint:
    """What the server makes of constraints, asked once.

    Raises:
        RequestError: there is no good answer, for another reason than the constraint.
        LabelError: `no_constraint`: it cannot be told, the answer having been cut off.
    """
    async with connection.probing:
        known = connection.known
        if known.constraint is None:
            known.constraint = await _probed(connection)
        return known.constraint


async def usable_constraint(connection: Connection) -> tuple[str, Constraint]:
    """The field that constrains, and what else is known. Raises LabelError (`no_constraint`) where none does."""
    constraint = await constraint_of(connection)
    if constraint.field is None:
        raise LabelError(_asked(connection), NO_CONSTRAINT, constraint.reason, 200)
    return constraint.field, constraint


def check_answer(connection: Connection, response: ChatResponse, labels: Sequence[str]) -> None:
    """Raise LabelError (`not_a_label`) where an answer is none of the labels."""
    if response.content in labels:
        return
    words = f"the answer {response.content!r} is none of the labels (finish_reason {response.finish_reason!r})"
    if response.finish_reason == "length":
        words += "; it was cut off by max_tokens or the context"
    raise LabelError(_asked(connection), NOT_A_LABEL, words, 200)


async def _probed(connection: Connection) -> Constraint:
    reasons = []
    for field in fields_of_version(await connection.version()):
        constraint = await _try(connection, field)
        if constraint.field is not None:
            return constraint
        reasons.append(constraint.reason)
    return Constraint(None, reason="; ".join(reasons))


async def _try(connection: Connection, field: str) -> Constraint:
    settings = connection.settings
    # Servers differ in which of the two tells the tokens' ids.
    ids = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    ours = {"temperature": 0.0, "logprobs": True} | ids
    fields = {"max_tokens": settings.max_tokens} | without_unwanted(settings.extra_body) | ours
    try:
        raw = await connection.chat(_PROBE, fields | fields_for(field, [_PROBE_LABEL]))
    except RequestError as error:
        if error.status not in (400, 422):
            raise
        return Constraint(None, reason=f"the server refuses {field}: {error.words}")
    response = read_chat(raw, _asked(connection))
    if response.content is None:
        words = f"the trial has no answer (finish_reason {response.finish_reason!r}): max_tokens may be too few"
        raise LabelError(_asked(connection), NO_CONSTRAINT, words, 200)
    if response.content != _PROBE_LABEL:
        allowed = f"the server answers {response.content!r} where {field} allows {_PROBE_LABEL!r} only"
        return Constraint(None, reason=allowed)
    told = response.logprobs or ()
    total = sum(each.logprob for each in told)
    end = told[-1].token if told and response.finish_reason == "stop" else None
    # Some tokens spell the label, and the last one is its end: else the server does not tell it.
    is_end = end is not None and "".join(each.token.text for each in told[:-1]) == _PROBE_LABEL
    return Constraint(field, masks_logprobs=total > _MODEL_S_OWN, end=end if is_end else None)


def _asked(connection: Connection) -> str:
    return f"POST {connection.server.api('chat/completions')}"
