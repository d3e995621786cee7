"""Log-probabilities as vLLM writes them: of a chat, of a completion, and of a prompt."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from loadgen.sim.model import tokenizer
from loadgen.sim.model.choice import MASKED, allowed, masked
from loadgen.sim.model.language import VOCABULARY, Context, after, likeliest, log_probability, rank


class Ranked(NamedTuple):
    """A token among the likeliest."""

    token: int
    logprob: float
    rank: int
    """1 for the likeliest of all."""


class Scored(NamedTuple):
    """One token of a text and what the model thought of it there."""

    token: int
    logprob: float
    candidates: list[Ranked]
    """The token itself first, then the likeliest that are not it, by likelihood."""


class Scorer:
    """Scores a text token by token, from its first one on."""

    def __init__(self, context: Context, top: int, labels: Sequence[tuple[int, ...]] = ()) -> None:
        """`top` likeliest tokens are told besides each token; `labels` constrain the text, none for no constraint."""
        self._context = context
        self._top = top
        self._labels = labels
        self._said: list[int] = []

    def take(self, tokens: Sequence[int]) -> list[Scored]:
        """What the model thought of the next tokens."""
        return [self._next(token) for token in tokens]

    def _next(self, token: int) -> Scored:
        candidates = allowed(self._labels, self._said) if self._labels else []
        if candidates:
            scored = _score_masked(self._context, token, self._top, candidates)
        else:
            scored = _score(self._context, token, self._top)
        if self._labels:
            self._said.append(token)
        self._context = after(self._context, token)
        return scored


def score_prompt(before: Context, tokens: Sequence[int], top: int) -> list[Scored | None]:
    """What the model thought of each token of a prompt; nothing (None) of the first."""
    return [None, *Scorer(after(before, tokens[0]), top).take(tokens[1:])]


def _score(context: Context, token: int, top: int) -> Scored:
    own = Ranked(token, log_probability(context, token), rank(context, token))
    others = [Ranked(*pair, place) for place, pair in enumerate(likeliest(context, top), 1) if pair[0] != token]
    return Scored(token, own.logprob, [own, *others])


def _score_masked(context: Context, token: int, top: int, candidates: Sequence[int]) -> Scored:
    pairs = masked(context, candidates)
    if len(pairs) < top:
        rest = (other for other, _ in likeliest(context, VOCABULARY) if other not in candidates)
        pairs += [(other, MASKED) for other, _ in zip(rest, range(top - len(pairs)), strict=False)]
    ranked = [Ranked(*pair, place) for place, pair in enumerate(pairs, 1)]
    own = next(entry for entry in ranked if entry.token == token)
    return Scored(token, own.logprob, [own, *(entry for entry in ranked[:top] if entry.token != token)])


def chat_logprobs(scored: Sequence[Scored], top: int) -> dict[str, Any]:
    """The `logprobs` of a chat's choice: at most `top` candidates each, the token itself the first of them."""
    return {
        "content": [
            _chat_entry(entry.token, entry.logprob)
            | {"top_logprobs": [_chat_entry(other.token, other.logprob) for other in entry.candidates[:top]]}
            for entry in scored
        ]
    }


def _chat_entry(token: int, logprob: float) -> dict[str, Any]:
    text = tokenizer.decode([token])
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def completion_logprobs(
    scored: Sequence[Scored | None], tokens: Sequence[int], offset: int, *, as_ids: bool = False
) -> dict[str, Any]:
    """The `logprobs` of a completion's choice: parallel lists, with null for a token that nothing came before.

    Args:
        scored: What is known of each token.
        tokens: The tokens.
        offset: Characters before the first of them.
        as_ids: Write `token_id:N` in place of a token's text.
    """
    texts = [_name(token, as_ids) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "text_offset": offsets,
        "token_logprobs": [None if entry is None else entry.logprob for entry in scored],
        "tokens": texts,
        "top_logprobs": [
            None if entry is None else {_name(other.token, as_ids): other.logprob for other in entry.candidates}
            for entry in scored
        ],
    }


def _name(token: int, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids else tokenizer.decode([token])


def prompt_logprobs(scored: Sequence[Scored | None]) -> list[dict[str, Any] | None]:
    """The `prompt_logprobs`: for each token of the prompt its candidates by id, null for the first."""
    return [
        None
        if entry is None
        else {
            str(other.token): {
                "logprob": other.logprob,
                "rank": other.rank,
                "decoded_token": tokenizer.decode([other.token]),
            }
            for other in entry.candidates
        }
        for entry in scored
    ]
