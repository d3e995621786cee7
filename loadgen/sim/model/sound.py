"""How long a sound is, from its file; nothing is decoded."""

import io
import wave
from typing import Final

_FLAC_INFO: Final = 8  # the marker `fLaC` and the header of the first block, which is always the stream's information
_COMPRESSED_BYTES_PER_SECOND: Final = 16_000  # 128 kbit/s
_MARKERS: Final = (b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"\x1a\x45\xdf\xa3")
_MP4_MARKER: Final = b"ftyp"
_NO_SOUND: Final = (
    "Invalid or corrupted audio data. "
    "Ensure the input is a valid audio or video file (e.g. a complete WAV, MP3, or MP4)."
)


def sound_seconds(data: bytes) -> float:
    """The duration of a sound in seconds: exact of WAV and FLAC, by the file's size of other formats.

    Raises:
        ValueError: that is no sound.
    """
    if data.startswith(b"RIFF"):
        return _wav_seconds(data)
    if data.startswith(b"fLaC"):
        return _flac_seconds(data)
    if data.startswith(_MARKERS) or data[4:8] == _MP4_MARKER:
        return len(data) / _COMPRESSED_BYTES_PER_SECOND
    raise ValueError(_NO_SOUND)


def _wav_seconds(data: bytes) -> float:
    try:
        with wave.open(io.BytesIO(data)) as file:
            return float(file.getnframes() / file.getframerate())
    except (wave.Error, EOFError, ZeroDivisionError):
        raise ValueError(_NO_SOUND) from None


def _flac_seconds(data: bytes) -> float:
    # Ten bytes in: 20 bits of rate, 3 of channels, 5 of sample size, 36 of the number of samples.
    packed = int.from_bytes(data[_FLAC_INFO + 10 : _FLAC_INFO + 18])
    rate, samples = packed >> 44, packed & (1 << 36) - 1
    if not rate:
        raise ValueError(_NO_SOUND)
    return samples / rate
