"""What goes into the client's calls and what comes out of them, as frozen data. What is not known is None."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import msgspec

from loadgen.errors import TargetError
from loadgen.workload.request import Message, Part


class ChatMessage(msgspec.Struct, frozen=True):
    """One turn of a conversation: `role` is `system`, `user` or `assistant`.

    `content` is text, or a tuple of parts in order: `Text`, `Image` and `Audio`.
    """

    role: str
    content: str | tuple[Part, ...]


Messages = str | Sequence[ChatMessage | Message | Mapping[str, str]]
"""A conversation: messages, or the text of one user message. A message may be a mapping of role and content."""


def messages_of(given: Any, name: str = "messages") -> tuple[Message, ...]:
    """The messages of a request, which an argument of this name gave.

    Raises:
        ValueError: there are none, or what is there is none.
    """
    if isinstance(given, str):
        return (Message("user", given),)
    if isinstance(given, Mapping) or not isinstance(given, Sequence):
        raise ValueError(f"{name}: must be a text or a list of messages")
    if not given:
        raise ValueError(f"{name}: no messages")
    return tuple(_message(message, f"{name}[{place}]") for place, message in enumerate(given))


def _message(given: Any, where: str) -> Message:
    if isinstance(given, Mapping):
        if set(given) == {"role", "content"} and isinstance(given["role"], str) and isinstance(given["content"], str):
            return Message(given["role"], given["content"])
    elif isinstance(given, ChatMessage | Message) and isinstance(given.role, str):
        if isinstance(given.content, str):
            return Message(given.role, given.content)
        parts: Any = given.content
        if isinstance(parts, Sequence) and all(isinstance(part, Part) for part in parts):
            return Message(given.role, tuple(parts))
    raise ValueError(
        f"{where}: a message has a role and a content of text; for images and sound use ChatMessage with parts"
    )


class Token(msgspec.Struct, frozen=True):
    """One token. Its text is what it stands for; where that is part of a character it is `�`, or empty."""

    text: str
    id: int | None = None
    """None where the server tells texts alone."""


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token, and the natural logarithm of its probability where it stands."""

    token: Token
    logprob: float
    top_logprobs: tuple["TokenLogprob", ...] = ()
    """The likeliest tokens in its place, as many as were asked for, the likeliest first."""


class Usage(msgspec.Struct, frozen=True):
    """The tokens of a call, as the server counted them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None


class ChatResponse(msgspec.Struct, frozen=True):
    """An answer of the model."""

    content: str | None
    """Its text; None where it has none, being a tool call, or reasoning that was cut off."""
    label: str | None
    """The stripped content, constrained or not."""
    label_logprobs: dict[str, float] | None
    """Of each label the log-probability that it is the model's whole answer (docs/client.md); None: not asked for, or
    not told, for the reason of `label_logprobs_failure`."""
    logprobs: tuple[TokenLogprob, ...] | None
    """Of each token as the server tells it: for a constrained answer after the constraint, where the server masks what
    is not allowed before it takes them, as vLLM does. None: not asked for."""
    usage: Usage | None
    finish_reason: str | None
    raw: dict[str, Any]
    """The server's whole answer."""
    label_logprobs_failure: "RequestError | None" = None
    """Why `label_logprobs` were asked for and could not be told."""


class ScoringResponse(msgspec.Struct, frozen=True):
    """How probable a completion is after a prompt."""

    completion: str
    logprobs: tuple[TokenLogprob, ...]
    """Of each token of the completion; of nothing else."""
    merged: bool | None
    """Whether the text of prompt and completion in one has other tokens at the border than those that were scored: the
    score is then of a completion that no tokenizer would have written. None: it cannot be told, since the prompt's
    tokens do not come back from their text."""
    raw: dict[str, Any]
    """The server's whole answer."""

    @property
    def sum(self) -> float:
        """The log-probability of the whole completion."""
        return math.fsum(each.logprob for each in self.logprobs)

    @property
    def mean(self) -> float:
        """The mean log-probability of a token."""
        return self.sum / len(self.logprobs)

    @property
    def perplexity(self) -> float:
        """exp of minus the mean; infinite where that is beyond a float."""
        try:
            return math.exp(-self.mean)
        except OverflowError:
            return math.inf


class Tokenized(msgspec.Struct, frozen=True):
    """The tokens of a text, alone or after a context. As a sequence it is that of `tokens`."""

    tokens: tuple[Token, ...]
    """Of the text; after a context, what stands in the place of `replaced` once the text is added."""
    merged: bool = False
    """Whether a token crosses the border from the context into the text, or the text changed the context's tokens."""
    replaced: tuple[Token, ...] = ()
    """The last tokens of the context alone that are others with the text after it; empty where nothing merges."""

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[Token]:
        return iter(self.tokens)

    @overload
    def __getitem__(self, place: int) -> Token: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Token, ...]: ...

    def __getitem__(self, place: int | slice) -> Token | tuple[Token, ...]:
        return self.tokens[place]

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of `tokens`."""
        return tuple(token.id for token in self.tokens if token.id is not None)

    @property
    def count(self) -> int:
        """How many tokens longer the text makes its context (or nothing); with a merge it can be 0 or less."""
        return len(self.tokens) - len(self.replaced)


class EmbeddingResponse(msgspec.Struct, frozen=True):
    """The vectors of texts, in their order."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage | None
    raw: dict[str, Any]
    """The server's whole answer."""


class ModelInfo(msgspec.Struct, frozen=True):
    """A model that the server serves."""

    id: str
    max_model_len: int | None = None
    """Its context, in tokens."""


class RequestError(TargetError):
    """A call that got no good answer.

    `kind` is one of the kinds of failure of docs/metrics.md (`http_404`, `connect`, `dns`, `tls`, `timeout`,
    `cancelled`, `disconnect`, `protocol`, `server_error`, `abort`, ...), or, of a `LabelError`, `not_a_label` or
    `no_constraint`. `status` is the answer's status; None where there was no answer. `words` are the server's or the
    library's own, on one line, and `asked` is what was asked: method and address.
    """

    def __init__(self, asked: str, kind: str, words: str, status: int | None = None) -> None:
        super().__init__(f"{asked}: {kind}: {words}")
        self.asked = asked
        self.kind = kind
        self.words = words
        self.status = status

    def __reduce__(self) -> tuple[type["RequestError"], tuple[str, str, str, int | None]]:
        return type(self), (self.asked, self.kind, self.words, self.status)


class LabelError(RequestError):
    """The labels of a choice did not hold: the server cannot constrain an answer, or one came that is no label."""
