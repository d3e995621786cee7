"""The messages of an HTTP chat body, with images and sound as typed blocks of the OpenAI API."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from loadgen.workload.media import encoded_audio, encoded_image
from loadgen.workload.prompt import refuse_videos
from loadgen.workload.request import Audio, Image, Message, Part, Text, text_of


def openai_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages with their media in base64; one of text alone has its text as its content.

    Raises:
        PromptError: a video, or an image or sound that cannot be read.
        LoadgenError: the library that a rare format needs is not installed.
    """
    parts = [part for message in messages if not isinstance(message.content, str) for part in message.content]
    refuse_videos(parts)
    images, sounds = (sum(isinstance(part, kind) for part in parts) for kind in (Image, Audio))
    image_names = (f"image {number} of {images}" for number in count(1))
    sound_names = (f"audio {number} of {sounds}" for number in count(1))

    def block(part: Part) -> dict[str, Any]:
        if isinstance(part, Image):
            media_type, data = encoded_image(part.source, next(image_names))
            return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}
        if isinstance(part, Audio):
            form, data = encoded_audio(part.source, next(sound_names))
            return {"type": "input_audio", "input_audio": {"data": data, "format": form}}
        assert isinstance(part, Text)
        return {"type": "text", "text": part.text}

    def content(message: Message) -> str | list[dict[str, Any]]:
        if isinstance(message.content, str) or all(isinstance(part, Text) for part in message.content):
            return text_of(message)
        return [block(part) for part in message.content]

    return [{"role": message.role, "content": content(message)} for message in messages]
