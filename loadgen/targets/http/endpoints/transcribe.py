"""Transcribe: a sound is uploaded as a form, and its words come back."""

import json
import secrets
from typing import Any, Final

import msgspec

from loadgen import profile
from loadgen.measure.outcome import Exchange
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.chunks import decode_answer, read_other
from loadgen.targets.http.endpoints.endpoint import Endpoint, Written
from loadgen.targets.http.texts import keep_text
from loadgen.workload.request import Audio, Request

_BOUNDARY_BYTES: Final = 16
_FILE: Final = b'Content-Disposition: form-data; name="file"; filename="sound.wav"\r\nContent-Type: audio/wav'


class _Answer(msgspec.Struct):
    text: str


_DECODER: Final = msgspec.json.Decoder(_Answer)


def transcribe_endpoint(workload: profile.Workload, info: TargetInfo) -> Endpoint:
    """Sounds to be written down. A streamed answer is in chunks as a chat's is."""
    return Endpoint(
        path="audio/transcriptions",
        streams=True,
        stream_fields={"stream": True, "stream_include_usage": True},
        write=write_form,
        reader=lambda request: read_transcript,
    )


def write_form(fields: dict[str, Any], request: Request) -> Written:
    """A form of the fields and the request's sound."""
    boundary = secrets.token_hex(_BOUNDARY_BYTES)
    parts = [
        b'Content-Disposition: form-data; name="%s"\r\n\r\n%s' % (name.encode(), _text(value).encode())
        for name, value in fields.items()
    ]
    parts.append(_FILE + b"\r\n\r\n" + sound_of(request))
    line = b"--" + boundary.encode()
    body = b"".join(line + b"\r\n" + part + b"\r\n" for part in parts) + line + b"--\r\n"
    return Written(body, f"multipart/form-data; boundary={boundary}")


def read_transcript(body: bytes, exchange: Exchange) -> None:
    """Read a transcript that was not streamed; of its tokens, and of why it ended, it tells nothing."""
    read_other(body, exchange)
    answer = decode_answer(body, _DECODER, exchange) if exchange.failure is None else None
    if answer is not None:
        keep_text(exchange, answer.text)


def sound_of(request: Request) -> bytes:
    """The file of the one sound of a request. Raises ValueError where there is none."""
    for message in request.messages or ():
        for part in message.content:
            if isinstance(part, Audio) and isinstance(part.source, bytes):
                return part.source
    raise ValueError("the request has no sound")


def _text(value: Any) -> str:
    """A field of a form: text as it is, the rest as JSON writes it."""
    return value if isinstance(value, str) else json.dumps(value)
