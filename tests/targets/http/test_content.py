"""Messages as an HTTP chat body holds them."""

import base64
import io

import numpy as np
import pytest
import soundfile
from PIL import Image as Pillow

from loadgen.targets.http.content import openai_messages
from loadgen.workload.prompt import PromptError
from loadgen.workload.request import Audio, Image, Message, Text, Video


def jpeg() -> bytes:
    file = io.BytesIO()
    Pillow.new("RGB", (8, 8), (1, 2, 3)).save(file, "JPEG")
    return file.getvalue()


def wav() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(80), 8000, format="WAV")
    return file.getvalue()


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def text(words: str) -> dict:
    return {"type": "text", "text": words}


PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{base64_of(jpeg())}"}}
SOUND = {"type": "input_audio", "input_audio": {"data": base64_of(wav()), "format": "wav"}}


@pytest.mark.parametrize(
    ("parts", "content"),
    [
        ("hello", "hello"),
        ((Image(jpeg()),), [PICTURE]),
        ((Audio(wav()), Text("what?")), [SOUND, text("what?")]),
        (
            (Image(jpeg()), Audio(wav()), Text("a"), Image(jpeg()), Text("b")),
            [PICTURE, SOUND, text("a"), PICTURE, text("b")],
        ),
    ],
)
def test_media_become_blocks_and_text_stays_text(parts, content):
    assert openai_messages((Message("system", "be brief"), Message("user", parts))) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": content},
    ]


def test_parts_of_text_alone_are_one_text():
    assert openai_messages([Message("user", (Text("hel"), Text("lo")))]) == [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("last", "words"),
    [(Image(b"x"), "^image 2 of 2: "), (Audio(b"x"), "^audio 1 of 1: ")],
)
def test_an_item_that_cannot_be_read_is_named_by_its_place_among_its_kind(last, words):
    messages = [Message("user", (Image(jpeg()), Text("a"))), Message("assistant", "b"), Message("user", (last,))]
    with pytest.raises(PromptError, match=words):
        openai_messages(messages)


def test_video_is_refused():
    with pytest.raises(PromptError, match="video is not supported"):
        openai_messages([Message("user", (Text("look"), Video("v")))])
