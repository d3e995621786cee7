"""The kinds of workload, a row each: what a request of the kind may hold, and what its answer has."""

from typing import Final, Literal

import msgspec

KindName = Literal[
    "chat",
    "completion",
    "choice",
    "score",
    "tokenize",
    "embed",
    "rerank",
    "pooling",
    "responses",
    "messages",
    "transcribe",
]


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind of workload has; what it has not is left out of its row."""

    conversation: bool = False
    """Its requests are messages, and so may have a system message."""
    streamed: bool = False
    """Its answers may be streamed, and then have a TTFT."""
    lengths_asked: bool = False
    """It asks for so many output tokens."""
    token_ids: bool = False
    """Its prompts may be token ids."""
    images: bool = False
    audio: bool = False
    several_inputs: bool = False
    """A request may have several texts, `workload.inputs`."""
    from_dataset: bool = False
    """The rows of a file can say its requests."""
    in_simulator: bool = False
    """The simulator inside a worker answers it."""
    in_engine: bool = False
    """An engine inside a worker answers it."""
    items: str | None = None
    """What a request has several of, such as `vectors`."""
    output_tokens: float | None = None
    """Output tokens of a request where none are asked for: none, or the one without which a server does not answer.
    None where only the answer tells."""


KINDS: Final[dict[str, Kind]] = {
    "chat": Kind(
        conversation=True,
        streamed=True,
        lengths_asked=True,
        images=True,
        audio=True,
        from_dataset=True,
        in_simulator=True,
        in_engine=True,
    ),
    "completion": Kind(
        streamed=True, lengths_asked=True, token_ids=True, from_dataset=True, in_simulator=True, in_engine=True
    ),
    "choice": Kind(conversation=True, images=True, audio=True, from_dataset=True, in_engine=True),
    "responses": Kind(conversation=True, streamed=True, lengths_asked=True, from_dataset=True),
    "messages": Kind(conversation=True, streamed=True, from_dataset=True),
    "score": Kind(token_ids=True, in_engine=True, items="scored tokens", output_tokens=1.0),
    "tokenize": Kind(from_dataset=True, output_tokens=0.0),
    "embed": Kind(
        token_ids=True, several_inputs=True, from_dataset=True, in_engine=True, items="vectors", output_tokens=0.0
    ),
    "rerank": Kind(several_inputs=True, items="documents", output_tokens=0.0),
    "pooling": Kind(several_inputs=True, items="pooled texts", output_tokens=0.0),
    "transcribe": Kind(streamed=True, audio=True, in_engine=True, items="seconds of sound"),
}
"""By name. A new kind is a row here, its name above, one file in `targets/http/endpoints` and one line in the table
there."""


def kinds_with(what: str) -> tuple[str, ...]:
    """The names of the kinds that have it, such as `token_ids`."""
    return tuple(name for name, kind in KINDS.items() if getattr(kind, what))
