"""Images and sound on real engines in process: what is handed over is what vLLM handles right.

Each model says by the prompt tokens that it counts how many items it saw.
"""

import io
import wave
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from conftest import ENGINE_ARGS
from PIL import Image as Pillow

from loadgen.clock import MonotonicClock
from loadgen.measure.outcome import Exchange
from loadgen.profile import Audio as AudioTable
from loadgen.profile import EngineTarget, Images, Workload
from loadgen.targets.engine.opening import open_engine
from loadgen.targets.engine.session import EngineSession
from loadgen.workload.request import Audio, Image, Message, Part, Request, Text, Tokenization
from loadgen.workload.sources import make_workload

# The first test of each model waits for its engine.
pytestmark = pytest.mark.timeout(300)

IMAGE_TOKENS = 4
"""Of the tiny image model, each image, whatever its size."""
AUDIO_TOKENS_PER_SECOND = 25
SAMPLE_RATE = 16_000


class Opened:
    """A session on a running engine, in the loop that it belongs to."""

    def __init__(self, portal: BlockingPortal, session: EngineSession) -> None:
        self.portal = portal
        self.session = session

    def answer(self, *messages: Message) -> Exchange:
        exchange = Exchange(texts=[])

        async def send() -> None:
            await self.session.send(self.session.prepare(Request(0, messages=messages, output_tokens=4)), exchange)

        self.portal.call(send)
        return exchange

    def say(self, text: str, *, images: Sequence[Any] = (), audio: Sequence[Any] = ()) -> Exchange:
        """Images, sounds and a text, in the order in which the synthetic source has them."""
        parts: tuple[Part, ...] = (*map(Image, images), *map(Audio, audio), Text(text))
        return self.answer(Message("user", parts if len(parts) > 1 else text))


@contextmanager
def opened(model: Path, workload: Workload, **target: Any) -> Iterator[Opened]:
    """An engine opened as a worker does, its trial request included."""
    target = EngineTarget(model=str(model), engine_args=ENGINE_ARGS | target.pop("engine_args", {}), **target)
    trial = Request(0, messages=(Message("user", "hello"),), output_tokens=2)
    with start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
        context = open_engine(target, workload, (workload, trial), None, MonotonicClock())
        with portal.wrap_async_context_manager(context) as session:
            yield Opened(portal, session)


GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def images(tiny_image_model) -> Iterator[Opened]:
    several = {"limit_mm_per_prompt": {"image": 3}}
    with opened(tiny_image_model, Workload(body=GREEDY), engine_args=several) as session:
        yield session


@pytest.fixture(scope="module")
def plain_audio(tiny_audio_model) -> Iterator[Opened]:
    several = {"limit_mm_per_prompt": {"audio": 3}}
    marker = "<|audio_bos|><|AUDIO|><|audio_eos|>"
    with opened(tiny_audio_model, Workload(body=GREEDY), engine_args=several, audio_placeholder=marker) as session:
        yield session


def picture(colour: str, size: tuple[int, int] = (40, 30)) -> Pillow.Image:
    return Pillow.new("RGB", size, colour)


def png(colour: str) -> bytes:
    buffer = io.BytesIO()
    picture(colour).save(buffer, "PNG")
    return buffer.getvalue()


def wav(seconds: float, hertz: float, rate: int = SAMPLE_RATE) -> bytes:
    samples = (np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate) * 10_000).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return buffer.getvalue()


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_image_adds_its_tokens(images, count):
    without = images.say("what is it?")
    exchange = images.say("what is it?", images=[picture("red")] * count)
    assert exchange.failure is None, exchange.message
    # The template writes one marker for an image, which becomes its tokens; all else of the prompt is as without.
    assert exchange.prompt_tokens == without.prompt_tokens + count * IMAGE_TOKENS
    assert exchange.output_tokens == 4


def test_an_image_is_seen_whatever_it_comes_as(images, tmp_path):
    path = tmp_path / "red.png"
    path.write_bytes(png("red"))
    answers = ["".join(images.say("what?", images=[one]).texts) for one in (picture("red"), png("red"), str(path))]
    assert len(set(answers)) == 1


def test_another_image_has_another_answer(images):
    rng = np.random.default_rng(1)
    noise = [Pillow.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)) for _ in range(6)]
    # Six images of noise: a model of random weights may say the same of some, but not of all.
    assert len({"".join(images.say("what?", images=[image]).texts) for image in noise}) > 1


def test_more_images_than_the_engine_takes_fail_and_it_goes_on(images):
    exchange = images.say("what?", images=[picture("red")] * 4)
    assert exchange.failure == "request"
    assert "3 image" in exchange.message
    assert images.say("what?").failure is None


def test_an_image_that_cannot_be_decoded_fails_naming_it(images):
    exchange = images.say("what?", images=[picture("red"), b"junk"])
    assert exchange.failure == "request"
    assert exchange.message.startswith("image 2 of 2:")


def test_a_model_of_images_says_that_it_takes_no_audio(images):
    with pytest.raises(ValueError, match="takes no audio"):
        images.say("what?", audio=[wav(1, 440)])


# --- sound ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(1,), (2,), (1, 2), (1, 1, 1)], ids=str)
def test_each_sound_adds_tokens_by_its_length(plain_audio, lengths):
    without = plain_audio.say("what is it?")
    exchange = plain_audio.say("what is it?", audio=[wav(seconds, 440) for seconds in lengths])
    assert exchange.failure is None, exchange.message
    # A begin and an end stand around each, beside its own tokens.
    added = sum(AUDIO_TOKENS_PER_SECOND * seconds + 2 for seconds in lengths)
    assert exchange.prompt_tokens == without.prompt_tokens + added


def test_another_sample_rate_is_the_same_length_of_sound(plain_audio):
    counts = {plain_audio.say("what?", audio=[wav(2, 440, rate)]).prompt_tokens for rate in (8000, 16_000, 44_100)}
    assert len(counts) == 1


def test_sound_that_cannot_be_decoded_fails_naming_it(plain_audio):
    exchange = plain_audio.say("what?", audio=[b"junk"])
    assert exchange.failure == "request"
    assert exchange.message.startswith("audio 1 of 1:")


# --- synthetic media --------------------------------------------------------------------------------------------------


def synthetic(tokenization: Tokenization, **asked: Any) -> tuple[Message, ...]:
    workload = make_workload(Workload(**{"prompt_tokens": 32, "output_tokens": 4} | asked), tokenization, 1)
    messages = workload.request(7).messages
    assert messages is not None
    return messages


def test_a_synthetic_image_comes_on_top_of_the_text(images):
    tokenization = images.session.opening.tokenization
    exchange = images.answer(*synthetic(tokenization, images=Images(count=2, width=64, height=48)))
    assert exchange.failure is None, exchange.message
    assert exchange.prompt_tokens == 32 + 2 * IMAGE_TOKENS


def test_a_synthetic_sound_comes_on_top_of_the_text(plain_audio):
    tokenization = plain_audio.session.opening.tokenization
    exchange = plain_audio.answer(*synthetic(tokenization, audio=AudioTable(seconds=2)))
    assert exchange.failure is None, exchange.message
    assert exchange.prompt_tokens == 32 + 2 * AUDIO_TOKENS_PER_SECOND + 2


def test_synthetic_images_alone_are_a_prompt_of_markers(images):
    tokenization = images.session.opening.tokenization
    exchange = images.answer(*synthetic(tokenization, prompt_tokens=None, images=Images(count=2, width=64, height=48)))
    assert exchange.failure is None, exchange.message
    # Each marker with its line end, which is a token of its own.
    assert exchange.prompt_tokens == 2 * (IMAGE_TOKENS + 1)


def test_synthetic_sounds_alone_are_a_prompt_of_placeholders(plain_audio):
    tokenization = plain_audio.session.opening.tokenization
    exchange = plain_audio.answer(*synthetic(tokenization, prompt_tokens=None, audio=AudioTable(seconds=1)))
    assert exchange.failure is None, exchange.message
    # The placeholder's begin and end, and its line end.
    assert exchange.prompt_tokens == AUDIO_TOKENS_PER_SECOND + 3
