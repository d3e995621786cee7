"""Transcriptions: how long sounds are, and the server's answers."""

import io
import json
import wave

import aiohttp
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim.config import SimFaults
from loadgen.sim.model import tokenizer
from loadgen.sim.model.sound import sound_seconds
from tests.sim.api.serving import serving

PATH = "/v1/audio/transcriptions"


@pytest.fixture
def anyio_backend():
    return "asyncio"


def _wav(seconds: float, rate: int = 8000, fill: bytes = b"\0\0") -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(fill * round(seconds * rate))
    return file.getvalue()


def _form(data: bytes = b"", **fields: str) -> aiohttp.FormData:
    form = aiohttp.FormData({"model": "sim"} | fields)
    if data:
        form.add_field("file", data, filename="sound.wav", content_type="audio/wav")
    return form


async def _transcribe(session, data: bytes, **fields: str) -> tuple[int, dict]:
    async with session.post(PATH, data=_form(data, **fields)) as response:
        return response.status, await response.json()


@given(st.integers(0, 4000), st.sampled_from([8000, 16_000, 44_100]))
def test_a_wav_is_as_long_as_its_frames(frames, rate):
    assert sound_seconds(_wav(frames / rate, rate)) == frames / rate


@pytest.mark.parametrize("rate", [8000, 44_100])
def test_a_flac_is_as_long_as_its_samples(rate):
    file = io.BytesIO()
    soundfile.write(file, [0.0] * 12_345, rate, format="FLAC")
    assert sound_seconds(file.getvalue()) == 12_345 / rate


def test_another_sound_is_as_long_as_its_size_says_at_128_kilobits_a_second():
    assert sound_seconds(b"OggS" + bytes(15_996)) == 1


@pytest.mark.parametrize("data", [b"", b"hello", b"RIFF", b"RIFF\0\0\0\0WAVE", b"fLaC", b"fLaC" + bytes(40)])
def test_what_is_no_sound_is_refused(data):
    with pytest.raises(ValueError, match="audio"):
        sound_seconds(data)


@pytest.mark.anyio
async def test_a_longer_sound_has_a_longer_text():
    async with serving() as (_, session):
        answers = [(await _transcribe(session, _wav(seconds)))[1] for seconds in (2, 8, 8)]
    # 2.5 tokens a second.
    assert [tokenizer.count(answer["text"]) for answer in answers] == [5, 20, 20]
    assert [answer["usage"] for answer in answers] == [{"type": "duration", "seconds": n} for n in (2, 8, 8)]
    assert answers[1] == answers[2]


@pytest.mark.anyio
async def test_another_sound_of_the_same_length_has_another_text():
    async with serving() as (_, session):
        texts = {(await _transcribe(session, _wav(4, fill=fill)))[1]["text"] for fill in (b"\0\0", b"\0\1", b"\1\1")}
    assert len(texts) == 3


@pytest.mark.anyio
async def test_the_text_format_is_answered_with_json_too_as_vllm_does():
    async with serving() as (_, session):
        answers = [await _transcribe(session, _wav(2), response_format=name) for name in ("text", "json")]
    assert answers[0] == answers[1]


@pytest.mark.anyio
async def test_a_stream_says_the_same_and_its_usage_when_asked_for():
    fields = {"stream": "true", "stream_include_usage": "true"}
    async with serving() as (_, session):
        _, whole = await _transcribe(session, _wav(2))
        async with session.post(PATH, data=_form(_wav(2), **fields)) as response:
            *events, end, _ = (await response.text()).split("\n\n")
    *chunks, usage = [json.loads(event.removeprefix("data: ")) for event in events]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert end == "data: [DONE]"
    assert "".join(choice["delta"]["content"] for choice in choices) == whole["text"]
    assert [choice.get("finish_reason") for choice in choices] == [None] * 4 + ["stop"]
    assert {chunk["object"] for chunk in chunks} == {"transcription.chunk"}
    # 2 s of 25 tokens each.
    assert usage["usage"] == {"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 55}
    assert usage["choices"] == []


@pytest.mark.anyio
async def test_an_output_may_be_limited_and_then_ends_by_its_length():
    form = _form(_wav(8), stream="1", max_completion_tokens="3")
    async with serving() as (_, session), session.post(PATH, data=form) as response:
        text = await response.text()
    assert text.count('"content"') == 3
    assert '"finish_reason":"length"' in text


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("data", "fields", "status", "words"),
    [
        (_wav(1), {"model": "other"}, 404, "does not exist"),
        (b"", {}, 400, "file"),
        (b"no sound", {}, 400, "Invalid or corrupted audio data."),
        (_wav(1), {"response_format": "srt"}, 400, "response_format"),
        (_wav(1), {"stream_include_usage": "true"}, 400, "stream=True"),
        (_wav(1), {"max_completion_tokens": "x"}, 400, "max_completion_tokens"),
        (_wav(60), {}, 400, "leaves no room"),  # 60 * 25 tokens are more than 1,024
    ],
)
async def test_what_makes_no_sense_is_refused_in_vllms_shape(data, fields, status, words):
    async with serving() as (_, session):
        answered, answer = await _transcribe(session, data, **fields)
    assert (answered, answer["error"]["code"]) == (status, status)
    assert words in answer["error"]["message"]


@pytest.mark.anyio
async def test_a_transcription_fails_by_the_faults_asked_for():
    async with serving(faults=SimFaults(error_rate=1.0)) as (_, session):
        assert (await _transcribe(session, _wav(1)))[0] == 503
