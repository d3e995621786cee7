"""Transcriptions of an engine: a prompt that the model's own code makes of a sound, as vLLM's server has it made."""

from collections.abc import Callable
from typing import Any

import msgspec

from loadgen.targets.http.endpoints.transcribe import sound_of
from loadgen.workload.media import decode_audio
from loadgen.workload.prompt import PromptError
from loadgen.workload.request import Request


class Hearing(msgspec.Struct, frozen=True):
    """How a model that writes sound down is given it."""

    sample_rate: int
    """Hz."""
    most_seconds: float | None
    """The longest sound that it hears at once; None where it has no limit."""
    prompt_of: Callable[[Any], dict[str, Any]]
    """Makes a prompt of samples. Raises ValueError where the model wants to know more, such as the language."""


def transcription_prompt(request: Request, hearing: Hearing) -> dict[str, Any]:
    """The prompt of a request, decoded: milliseconds.

    Raises:
        PromptError: the sound cannot be decoded, or is none that the model hears as it is, at once.
        LoadgenError: soundfile is not installed.
    """
    samples, rate = decode_audio(sound_of(request), "audio 1 of 1")
    if rate != hearing.sample_rate:
        wanted = f"set workload.audio.sample_rate = {hearing.sample_rate}"
        raise PromptError(f"a sound of {rate} Hz, and the model hears {hearing.sample_rate}: {wanted}")
    seconds = len(samples) / rate
    if hearing.most_seconds is not None and seconds > hearing.most_seconds:
        most = f"{hearing.most_seconds:g}"
        raise PromptError(
            f"a sound of {seconds:g} s, and the model hears {most} s at once, which a server cuts it into: "
            f"set workload.audio.seconds to {most} or less"
        )
    try:
        return hearing.prompt_of(samples)
    except ValueError as fault:
        raise PromptError(f"the model makes no prompt of a sound: {fault} (see workload.body.language)") from fault
