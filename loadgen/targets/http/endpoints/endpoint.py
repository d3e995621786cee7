"""What a session must know of an endpoint to send requests of one kind to it."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from loadgen.measure.outcome import Exchange
from loadgen.targets.http.chunks import ChunkReader, read_whole
from loadgen.targets.http.endpoints.stream import StreamReader
from loadgen.workload.request import Message, Request

ReadWhole = Callable[[bytes, Exchange], None]
"""Reads the body of a whole answer into its exchange: counts, what came back, and a failure where it is no answer."""

LENGTH_FIELDS: Final = ("max_tokens", "min_tokens", "ignore_eos")
"""The body fields by which OpenAI's chats and completions, as vLLM has them, ask for an exact number of tokens."""


class Written(NamedTuple):
    """A body that is no JSON."""

    body: bytes
    content_type: str


def read_generated(request: Request) -> ReadWhole:
    """Of an answer that is text, whatever the request was."""
    return read_whole


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of request over HTTP, by how it differs from a chat. The session writes the body from this."""

    path: str
    """Under the API's base, or under the server's root."""
    at_root: bool = False
    fields: dict[str, Any] = {}
    """What is the same in every body, beside the model's name and the wish for a stream."""
    own_fields: Callable[[Request], dict[str, Any]] | None = None
    """What a request has of its own beside what it says and the length it asks for."""
    prompt_field: str = "prompt"
    inputs_field: str = "input"
    conversation: Callable[[tuple[Message, ...]], dict[str, Any]] | None = None
    """The fields of a conversation, of text alone, where it does not stand in `messages`."""
    length_fields: tuple[str, ...] = LENGTH_FIELDS
    """What asks for a number of output tokens: `ignore_eos` by being true, the others by the number."""
    write: Callable[[dict[str, Any], Request], Written] | None = None
    """Makes the body of the constant fields and the request, where it is no JSON."""
    streams: bool = False
    """Whether answers can be streamed."""
    stream_fields: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"stream": True, "stream_options": {"include_usage": True}}
    )
    """What asks for a stream that ends with the counts of tokens."""
    generates: bool = True
    """Whether the answer is made of tokens that the model generates."""
    reader: Callable[[Request], ReadWhole] = read_generated
    """How the whole answer to a request is read."""
    follow: Callable[[Exchange], StreamReader] = ChunkReader
    """What reads a streamed answer."""
