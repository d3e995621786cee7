"""What an engine is given to write down; real engines write in tests/real."""

import io

import numpy as np
import pytest
import soundfile

from loadgen.targets.engine.transcribe import Hearing, transcription_prompt
from loadgen.workload.prompt import PromptError
from loadgen.workload.request import Audio, Message, Request

RATE = 16_000


def request(seconds: float, rate: int = RATE) -> Request:
    file = io.BytesIO()
    soundfile.write(file, np.linspace(-0.5, 0.5, round(seconds * rate)), rate, format="WAV")
    return Request(0, (Message("user", (Audio(file.getvalue()),)),))


def hearing(most_seconds: float | None = 30) -> Hearing:
    return Hearing(RATE, most_seconds, lambda samples: {"audio": samples})


@pytest.mark.parametrize("most_seconds", [2, None])
def test_the_model_makes_its_prompt_of_the_samples(most_seconds):
    samples = transcription_prompt(request(2), hearing(most_seconds))["audio"]
    assert samples.dtype == np.float32
    assert samples == pytest.approx(np.linspace(-0.5, 0.5, 2 * RATE), abs=1e-4)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (request(1, 8000), r"a sound of 8000 Hz, .* 16000: set workload\.audio\.sample_rate = 16000"),
        (request(2.5), r"a sound of 2\.5 s, .* hears 2 s at once.*set workload\.audio\.seconds to 2 or less"),
        (Request(0, (Message("user", (Audio(b"junk"),)),)), "^audio 1 of 1:"),
    ],
    ids=["rate", "length", "no sound"],
)
def test_a_sound_that_the_model_does_not_hear_as_it_is_is_refused_with_what_to_set(asked, words):
    with pytest.raises(PromptError, match=words):
        transcription_prompt(asked, hearing(2))


def test_a_model_that_wants_to_know_the_language_says_so():
    def prompt_of(samples):
        raise ValueError("which language?")

    with pytest.raises(PromptError, match=r"which language\? \(see workload\.body\.language\)"):
        transcription_prompt(request(1), Hearing(RATE, None, prompt_of))
