"""Structured outputs of the kind `choice`: the answer is one of the labels, token by token.

As in vLLM, tokens that no label goes on with are masked before the log-probabilities are taken: those that are told
are of what was allowed, and sum to 1 over it. Unlike there, a label has one tokenization, the tokenizer's own.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from loadgen.sim.model import tokenizer
from loadgen.sim.model.language import Context, after, fraction, log_probability

MASKED: Final = -9999.0
"""What vLLM tells of a token that was not allowed."""


def tokenized(labels: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """Each label once, as what the model has to say: its tokens and the end."""
    return tuple(dict.fromkeys((*tokenizer.encode(label), tokenizer.END) for label in labels))


def allowed(labels: Sequence[tuple[int, ...]], said: Sequence[int]) -> list[int]:
    """The tokens that may follow what was said; none once a label has ended."""
    place = len(said)
    ahead = (label[place] for label in labels if len(label) > place and label[:place] == tuple(said))
    return list(dict.fromkeys(ahead))


def masked(context: Context, tokens: Sequence[int]) -> list[tuple[int, float]]:
    """The log-probability of each of these tokens where no other is allowed, the likeliest first."""
    logprobs = [log_probability(context, token) for token in tokens]
    highest = max(logprobs)
    total = highest + math.log(sum(math.exp(logprob - highest) for logprob in logprobs))
    return sorted(
        ((token, logprob - total) for token, logprob in zip(tokens, logprobs, strict=True)), key=lambda pair: -pair[1]
    )


def choose(context: Context, labels: Sequence[tuple[int, ...]], *, greedy: bool, salt: int) -> tuple[int, ...]:
    """The label that is said: the likeliest token each time, or one drawn by its probability from context and salt."""
    said: list[int] = []
    while candidates := allowed(labels, said):
        ranked = masked(context, candidates)
        token = ranked[0][0] if greedy else _draw(ranked, fraction(context.state ^ salt))
        said.append(token)
        context = after(context, token)
    return tuple(said)


def _draw(ranked: Sequence[tuple[int, float]], share: float) -> int:
    for token, logprob in ranked:
        share -= math.exp(logprob)
        if share < 0:
            return token
    return ranked[-1][0]  # rounding left a little
