"""How probable each label is as the model's whole answer: its own tokens one after the other, and then the end.

Counting the end is what tells "no" from "no way": the log-probabilities of different labels are those of different
answers, and their probabilities sum to at most 1. A label's tokens are those that the server's tokenizer gives it after
the prompt; other ways to spell it with tokens are not counted.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.client.connection import Connection, Constraint
from loadgen.client.scoring import Prompt, continuations, score_ids, together
from loadgen.client.types import LabelError, Token, TokenLogprob
from loadgen.targets.http.endpoints.constraint import NO_CONSTRAINT


async def label_logprobs(
    connection: Connection,
    prompt: Prompt,
    labels: Sequence[str],
    constraint: Constraint,
    answer: tuple[TokenLogprob, ...] | None,
    fields: Mapping[str, Any],
) -> dict[str, float]:
    """The log-probability of each label after a prompt, in the labels' order.

    What `answer`, if it is given, tells of labels is not asked for again. But where the server masks what a constraint
    does not allow before it takes log-probabilities, the answer's own are not the model's, and tell nothing. `fields`
    are those of the chat's body.

    Raises:
        LabelError: `no_constraint`: the server does not tell by which token an answer ends.
        RequestError: there is no good answer.
    """
    end = constraint.end
    end_id = None if end is None else end.id
    if end is None or end_id is None:
        asked = f"POST {connection.server.api('chat/completions')}"
        raise LabelError(asked, NO_CONSTRAINT, "the server does not tell the token that ends an answer", 200)

    async def scored(label: str) -> float:
        logprobs, _ = await score_ids(connection, prompt.ids, (*ids[label], end_id), 0, fields)
        return math.fsum(each.logprob for each in logprobs)

    ids = {label: found.ids for label, found in (await continuations(connection, prompt, labels)).items()}
    found: dict[str, float] = {}
    if answer is not None and not constraint.masks_logprobs:
        found = from_answer(answer, ids, end)
    found |= await together(scored, [label for label in labels if label not in found])
    return {label: found[label] for label in labels}


def from_answer(answer: Sequence[TokenLogprob], labels: Mapping[str, tuple[int, ...]], end: Token) -> dict[str, float]:
    """The log-probabilities of those labels for which an answer's own suffice, by the model's own log-probabilities.

    They suffice for the label that was answered, and for one that leaves the answer at its end where that is among the
    likeliest there: "no" beside the answer "no way". Of any other the tokens after the parting are not known.
    """
    said = [each.token.id for each in answer]
    found = {}
    for label, ids in labels.items():
        if len(answer) <= len(ids) or said[: len(ids)] != list(ids):
            continue
        ended = _of_end(answer[len(ids)], end)
        if ended is not None:
            found[label] = math.fsum([*(each.logprob for each in answer[: len(ids)]), ended])
    return found


def _of_end(place: TokenLogprob, end: Token) -> float | None:
    """The log-probability of the end in a place of an answer, whose likeliest tokens may be told by text alone."""
    for each in (place, *place.top_logprobs):
        if each.token.id == end.id or (each.token.id is None and each.token.text == end.text):
            return each.logprob
    return None
