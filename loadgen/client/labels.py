"""An answer that is one of some labels: whether the server obeys, which is tried once, and the check of each answer."""

from collections.abc import Sequence
from typing import Any, Final

from loadgen.client.answers import read_chat
from loadgen.client.connection import Connection, Constraint
from loadgen.client.types import ChatResponse, LabelError, RequestError
from loadgen.targets.http.endpoints.choice import NOT_A_LABEL
from loadgen.targets.http.endpoints.constraint import (
    NO_CONSTRAINT,
    TRIAL_LABEL,
    TRIAL_MESSAGES,
    Refused,
    find_constraint,
    without_unwanted,
)

_MODEL_S_OWN: Final = -6.0
"""The trial's answer is improbable (a log-probability far below -10) unless the constraint has taken away the rest.

Then a greedy answer takes the likeliest of what is left: at most 4, 3, 2 and 1 tokens, as its four letters can be cut,
and a few ways to end. That is at least 1/72, whose logarithm is -4.3.
"""


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


async def constraint_of(connection: Connection) -> Constraint:
    """What the server makes of constraints, asked once.

    Raises:
        RequestError: there is no good answer, for another reason than the constraint.
        LabelError: `no_constraint`: it cannot be told, the answer having been cut off.
    """
    known = connection.known
    if known.constraint is not None:
        return known.constraint
    async with known.asking("constraint"):
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
    settings, responses = connection.settings, []
    # Servers differ in which of the two tells the tokens' ids.
    ids = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    ours = {"temperature": 0.0, "logprobs": True} | ids
    fields = {"max_tokens": settings.max_tokens} | without_unwanted(settings.extra_body) | ours

    async def say(constraint: dict[str, Any]) -> str | Refused:
        try:
            raw = await connection.chat(TRIAL_MESSAGES, fields | constraint)
        except RequestError as error:
            if error.status not in (400, 422):
                raise
            return Refused(error.words)
        responses.append(read_chat(raw, _asked(connection)))
        content = responses[-1].content
        if content is None:
            reason = responses[-1].finish_reason
            words = f"the trial has no answer (finish_reason {reason!r}): max_tokens may be too few"
            raise LabelError(_asked(connection), NO_CONSTRAINT, words, 200)
        return content

    found = await find_constraint(await connection.version(), say)
    if found.field is None:
        return Constraint(None, reason=found.reason)
    return _constraint(found.field, responses[-1])


def _constraint(field: str, response: ChatResponse) -> Constraint:
    """What a trial that was constrained tells of log-probabilities."""
    told = response.logprobs or ()
    total = sum(each.logprob for each in told)
    end = told[-1].token if told and response.finish_reason == "stop" else None
    # Some tokens spell the label, and the last one is its end: else the server does not tell it.
    is_end = end is not None and "".join(each.token.text for each in told[:-1]) == TRIAL_LABEL
    return Constraint(field, masks_logprobs=total > _MODEL_S_OWN, end=end if is_end else None)


def _asked(connection: Connection) -> str:
    return f"POST {connection.server.api('chat/completions')}"
