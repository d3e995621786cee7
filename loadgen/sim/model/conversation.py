"""What the simulated model gets to read: a text, token ids or a chat, each as one prompt."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from loadgen.sim.model import tokenizer
from loadgen.sim.model.language import Context, begin


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Words among the blocks of a message."""

    text: str


class _Url(msgspec.Struct):
    url: str


class ImageBlock(msgspec.Struct, tag_field="type", tag="image_url"):
    """An image among the blocks of a message."""

    image_url: _Url

    @property
    def source(self) -> str:
        """Its address, or itself as a data URI."""
        return self.image_url.url


class _Sound(msgspec.Struct):
    data: str
    format: str


class AudioBlock(msgspec.Struct, tag_field="type", tag="input_audio"):
    """A sound among the blocks of a message."""

    input_audio: _Sound

    @property
    def source(self) -> str:
        """Its file in base64."""
        return self.input_audio.data


class Message(msgspec.Struct):
    """One message of a chat's body."""

    role: str
    content: str | list[TextBlock | ImageBlock | AudioBlock] | None = None

    @property
    def text(self) -> str:
        """The message's words: its text blocks, joined as they are."""
        if isinstance(self.content, list):
            return "".join(block.text for block in self.content if isinstance(block, TextBlock))
        return self.content or ""

    @property
    def media(self) -> list[ImageBlock | AudioBlock]:
        """Its images and sounds, in order; they are counted, and not decoded."""
        if isinstance(self.content, list):
            return [block for block in self.content if not isinstance(block, TextBlock)]
        return []


class Prompt(NamedTuple):
    """A prompt as the model reads it."""

    tokens: int
    """How long it is."""
    before: Context
    """What the model knows before it reads."""
    context: Context
    """What it knows once it has read."""
    encode: Callable[[], list[int]]
    """Its token ids, made when they are asked for."""


def prompt_of_text(text: str, seed: int) -> Prompt:
    """A text as it is."""
    data = text.encode()
    return Prompt(tokenizer.count(text), begin(seed, b""), begin(seed, data), partial(tokenizer.encode, text))


def prompt_of_ids(ids: Sequence[int], seed: int) -> Prompt:
    """Token ids; they mean the same as their text."""
    data = b"".join(map(tokenizer.token_bytes, ids))
    return Prompt(len(ids), begin(seed, b""), begin(seed, data), partial(list, ids))


def prompt_of_chat(messages: Iterable[Message], seed: int, *, generation_prompt: bool = True) -> Prompt:
    """A chat in the simulated template; it means the same as the ids of that, where it has no images nor sounds."""
    messages = list(messages)
    media = [block for message in messages for block in message.media]
    images = sum(isinstance(block, ImageBlock) for block in media)
    sounds = len(media) - images
    pairs = [(message.role, message.text) for message in messages]
    sources = [block.source for block in media]
    data = tokenizer.render_chat(pairs, images=images, audio=sounds, generation_prompt=generation_prompt).encode()
    return Prompt(
        tokenizer.count_chat(pairs, images=images, audio=sounds, generation_prompt=generation_prompt),
        begin(seed, b"", *sources),
        begin(seed, data, *sources),
        lambda: tokenizer.encode_chat(pairs, images=images, audio=sounds, generation_prompt=generation_prompt),
    )
