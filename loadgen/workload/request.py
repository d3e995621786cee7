"""What one request says, before any target gives it a body."""

from typing import Any

import msgspec


class Text(msgspec.Struct, frozen=True):
    """A piece of text among other parts of a message."""

    text: str


class Image(msgspec.Struct, frozen=True):
    """An image: the bytes of a file, base64 or a data URI of them, the path of a file, or an image of Pillow's."""

    source: Any


class Audio(msgspec.Struct, frozen=True):
    """Sound: the bytes of a file, base64 or a data URI of them, or the path of a file."""

    source: Any


class Video(msgspec.Struct, frozen=True):
    """A video, which no target takes; it is refused in words and not passed over."""

    source: Any


Part = Text | Image | Audio | Video


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation: `role` is `system`, `user` or `assistant`; its content is text, or parts in order."""

    role: str
    content: str | tuple[Part, ...]


def text_of(message: Message) -> str:
    """The text of a message, its parts joined as they are."""
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content if isinstance(part, Text))


class Request(msgspec.Struct, frozen=True):
    """What request `index` of a run asks. One of `messages`, `prompt` and `inputs` is given;
    to rerank there are `inputs`, the documents, and `prompt`, the query.

    `prompt_tokens` is what the workload aimed at (the template's tokens included, of all inputs together),
    `output_tokens` what it asks for; None where it asks for nothing particular.
    """

    index: int
    messages: tuple[Message, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    """Text, or token ids."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    most_output_tokens: int | None = None
    """The most that is allowed, where the target cannot be asked for an exact number."""
    inputs: tuple[str | tuple[int, ...], ...] | None = None
    """Several texts, or lists of token ids, that are answered each for itself."""
    scored_tokens: int | None = None
    """How many tokens at the end of `prompt`, which is token ids, are a completion to be scored."""
    labels: tuple[str, ...] | None = None
    """The answers allowed to this request; None: the workload's."""
    expected: str | None = None
    """The label that is the right answer, as it stands among the labels; None where nobody knows."""
    again: bool = False
    """An earlier request of the run says the same, since the dataset has fewer rows."""


class Tokenization(msgspec.Struct, frozen=True):
    """How the target's tokenizer counts the words of synthetic text, learnt once before a run.

    `word_tokens[i]` is the number of tokens of vocabulary word i with a space before it. Where the words could not be
    told apart it holds one mean for all and `exact` is false. `template_tokens` is what the chat template adds to a
    conversation of one user message.
    """

    source: str
    """Who counted: `server`, `tokenizer`, or `estimate`."""
    exact: bool
    word_tokens: tuple[float, ...]
    template_tokens: int = 0
    vocabulary_size: int | None = None
    """Number of token ids that prompts of token ids may use; None where unknown."""
    special_tokens: int = 0
    """What the tokenizer adds to plain text by itself, such as one for the begin of the text."""
    first_words: tuple[int, ...] = ()
    """Vocabulary words that count the same without a space before them, as at the start of a text; empty: not known."""
