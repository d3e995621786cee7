"""Synthetic images and sounds: random, different in every request and run, and cheap to make.

A server keeps what it made of an image or a sound under a hash of its content, so a repeated one would cost it nothing.
Each item therefore spells a 64-bit hash of (seed, nonce, number) in what a decoder gives: in pixels and in samples.
They mean nothing: a model's speed does not depend on that, but for how long its answers are where it ends them by
itself.
"""

import io
import re
import struct
from typing import Any, Final

import msgspec
import numpy as np

from loadgen import profile
from loadgen.errors import LoadgenError
from loadgen.workload.hashing import Purpose, hash64, hash_key
from loadgen.workload.request import Audio, Image

_BANDS: Final = 16
"""Bands of an image, and choices for each: 16^16 is 2^64."""
_BLOCK: Final = 16
"""Width and height in pixels of what JPEG codes at once where colours have half the resolution."""
_QUALITY: Final = 75
_COARSE: Final = 8
_FINE: Final = 4
"""A picture is a smooth field from 8 x 8 random colours, and over it a fainter one with a colour every 4 pixels."""
_FAINT: Final = 0.25
_START_OF_SCAN: Final = b"\xff\xda"
_END_OF_IMAGE: Final = b"\xff\xd9"
_RESTART: Final = re.compile(rb"(\xff[\xd0-\xd7])")

_NOISE_SAMPLES: Final = 1 << 18
"""Samples that sounds are cut from: 16 s at 16 kHz."""
_SAMPLE_BYTES: Final = 2
_SYLLABLES_PER_SECOND: Final = 4.0
_BANDWIDTH_HZ: Final = 2000
_LOUDNESS: Final = 6000
"""Standard deviation of the loudest noise, of at most 32,767."""


class SyntheticMedia:
    """The images and sounds of each chat: a pure function of (seed, nonce, index), given the versions of the libraries.

    Made in a worker's event loop, ahead of each request. Measured on one core of a server: a 512 x 512 image takes
    about 15 us (to encode it anew 700 us), one of 4096 x 4096, 2.5 MB, 4 ms, and 5 s of sound at 16 kHz 7 us.
    """

    def __init__(self, workload: profile.Workload, nonce: int) -> None:
        """Raises LoadgenError where images are wanted and there is no Pillow."""
        images, audio = workload.images, workload.audio
        self._images = 0 if images is None else images.count
        self._sounds = 0 if audio is None else audio.count
        self._image = None if images is None else _Images(images, workload.seed, nonce).image
        self._sound = None if audio is None else _Sounds(audio, workload.seed, nonce).sound

    def parts(self, index: int) -> tuple[Image | Audio, ...]:
        """What request `index` carries beside its text: its images, then its sounds."""
        parts: list[Image | Audio] = []
        if self._image is not None:
            parts += [Image(self._image(index * self._images + item)) for item in range(self._images)]
        if self._sound is not None:
            parts += [Audio(self._sound(index * self._sounds + item)) for item in range(self._sounds)]
        return tuple(parts)


# --- images -----------------------------------------------------------------------------------------------------------


class _Images:
    """JPEG files, most of them made of the bands of one picture.

    JPEG can restart its coding after every so many blocks; what lies between two restarts then means the same in any
    place. So one picture is encoded once, in 16 bands, and an image is made of bands that the 16 hexadecimal digits of
    its hash choose: nothing is drawn or encoded. An image of fewer than 16 blocks (below 64 x 64) is a picture of its
    own, which at that size takes about 0.3 ms.
    """

    def __init__(self, images: profile.Images, seed: int, nonce: int) -> None:
        self._key = hash_key(seed, nonce, Purpose.IMAGE)
        self._size = images.width, images.height
        blocks = -(-images.width // _BLOCK) * -(-images.height // _BLOCK)
        self._cut: _Cut | None = None
        if blocks >= _BANDS:
            self._cut = _cut(_encoded(_picture(hash_key(seed, Purpose.PICTURE), self._size), blocks // _BANDS))
        else:
            _pillow()  # is it there?

    def image(self, number: int) -> bytes:
        """The JPEG file of this number."""
        bits = hash64(self._key, number)
        cut = self._cut
        if cut is None:
            return _encoded(_picture(bits, self._size))
        pieces = [cut.header]
        for marker in cut.markers:
            bits, digit = divmod(bits, _BANDS)
            pieces += (cut.bands[digit], marker)
        pieces.append(cut.rest)
        return b"".join(pieces)


class _Cut(msgspec.Struct, frozen=True):
    """A JPEG file of 16 bands: what stands before them, after each of them, and after them all."""

    header: bytes
    bands: list[bytes]
    markers: list[bytes]
    """Numbered modulo 8 by their place. The last is empty where no more blocks come."""
    rest: bytes


def _picture(key: int, size: tuple[int, int]) -> Any:
    """A random picture of Pillow's, with about as much detail as a photograph: 0.15 bytes a pixel as JPEG."""
    pillow, random = _pillow(), np.random.default_rng(key)

    def field(width: int, height: int) -> Any:
        colours = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        return pillow.fromarray(colours).resize(size, pillow.Resampling.BICUBIC)

    width, height = size
    coarse = field(_COARSE, _COARSE)
    return pillow.blend(coarse, field(-(-width // _FINE), -(-height // _FINE)), _FAINT)


def _encoded(picture: Any, restart_blocks: int = 0) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_QUALITY, subsampling="4:2:0", restart_marker_blocks=restart_blocks)
    return file.getvalue()


def _cut(jpeg: bytes) -> _Cut:
    start = jpeg.index(_START_OF_SCAN) + len(_START_OF_SCAN)
    start += int.from_bytes(jpeg[start : start + 2], "big")
    # Bands and markers in turn, and then the rest, if there is any. Data bytes 0xFF are followed by 0: no marker.
    pieces = _RESTART.split(jpeg[start : -len(_END_OF_IMAGE)], maxsplit=_BANDS)
    bands, markers = pieces[: 2 * _BANDS : 2], pieces[1 : 2 * _BANDS : 2]
    if len(bands) < _BANDS:  # earlier versions pass over the option
        raise LoadgenError("workload.images needs Pillow 10.2 or later: pip install --upgrade 'loadgen[media]'")
    rest = b"".join(pieces[2 * _BANDS :]) + _END_OF_IMAGE
    return _Cut(jpeg[:start], bands, [*markers, b""][:_BANDS], rest)


def _pillow() -> Any:
    try:
        from PIL import Image as pillow
    except ImportError:
        raise LoadgenError("workload.images needs the library Pillow: pip install 'loadgen[media]'") from None
    return pillow


# --- sounds -----------------------------------------------------------------------------------------------------------


class _Sounds:
    """WAV files: four samples that spell a hash, then a cut from a hashed place of a long noise, endlessly repeated.

    A sound shorter than four samples carries as much of its hash as fits.
    """

    def __init__(self, audio: profile.Audio, seed: int, nonce: int) -> None:
        self._key = hash_key(seed, nonce, Purpose.SOUND)
        self._size = max(1, round(audio.seconds * audio.sample_rate)) * _SAMPLE_BYTES
        self._header = _wav_header(self._size, audio.sample_rate)
        self._noise = memoryview(_noise(hash_key(seed, Purpose.NOISE), audio.sample_rate))

    def sound(self, number: int) -> bytes:
        """The WAV file of this number."""
        bits = hash64(self._key, number)
        head = bits.to_bytes(8, "little")[: self._size]
        start = bits % _NOISE_SAMPLES * _SAMPLE_BYTES
        turns, stop = divmod(start + self._size - len(head), len(self._noise))
        if not turns:
            return b"".join((self._header, head, self._noise[start:stop]))
        return b"".join((self._header, head, self._noise[start:], *[self._noise] * (turns - 1), self._noise[:stop]))


def _noise(key: int, sample_rate: int) -> bytes:
    """Noise below about 2 kHz that swells and fades as syllables do."""
    white = np.random.default_rng(key).standard_normal(_NOISE_SAMPLES)
    window = max(1, sample_rate // (2 * _BANDWIDTH_HZ))
    low = np.convolve(white, np.full(window, window**-0.5), "same")
    seconds = np.arange(_NOISE_SAMPLES) / sample_rate
    loudness = _LOUDNESS * np.abs(np.sin(np.pi * _SYLLABLES_PER_SECOND * seconds))
    noise: bytes = np.clip(low * loudness, -32_767, 32_767).astype("<i2").tobytes()
    return noise


def _wav_header(size: int, sample_rate: int) -> bytes:
    """What stands before so many bytes of samples: PCM, one channel, 16 bits."""
    layout = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, sample_rate * _SAMPLE_BYTES, _SAMPLE_BYTES, 16)
    return struct.pack("<4sI4s", b"RIFF", 36 + size, b"WAVE") + layout + struct.pack("<4sI", b"data", size)
