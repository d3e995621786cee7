"""Images and sound as a workload names them: decoded for an engine, or encoded for the body of an HTTP request.

`item` is how a message names the one it is about, such as `image 2 of 3`. Pillow and soundfile (extra `media`) are
imported when the first is asked for; files in the usual formats need neither of them to be encoded.
"""

import base64
import binascii
import os
import warnings
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from loadgen.errors import LoadgenError
from loadgen.workload.prompt import PromptError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image as PillowImage

_LONGEST_PATH: Final = 4096
"""Longer texts are not looked up as a file."""
_SHOWN: Final = 40
"""Characters of a source that a message shows."""
_IMAGE_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "ICO", "JPEG2000", "AVIF")
"""What Pillow may read, where its version can: some of its other formats start programs, and those are not for files
of unknown origin."""
_TRANSPARENT_MODES: Final = ("RGBA", "LA", "PA", "La", "RGBa")
_WHITE: Final = (255, 255, 255)


class _Found(msgspec.Struct, frozen=True):
    """The bytes of a source, and in words where they came from."""

    data: bytes
    origin: str


# --- decoded ----------------------------------------------------------------------------------------------------------


def decode_image(source: Any, item: str) -> "PillowImage":
    """The image of a source, whole in memory, in RGB: turned as its EXIF data say, what is transparent on white.

    Raises:
        PromptError: the source is none that is taken, is no image, or has more pixels than Pillow holds to be safe.
        LoadgenError: Pillow is not installed.
    """
    image_module = _pillow(item)
    if isinstance(source, image_module.Image):
        return _pixels(source, item, "the image")
    found = _read(source, item)
    image_module.init()  # makes all formats known, once
    formats = [form for form in _IMAGE_FORMATS if form in image_module.OPEN]
    with warnings.catch_warnings():
        # Pillow only warns of what is suspiciously large, and refuses what is twice that.
        warnings.simplefilter("error", image_module.DecompressionBombWarning)
        try:
            opened = image_module.open(BytesIO(found.data), formats=formats)
        except (image_module.DecompressionBombWarning, image_module.DecompressionBombError) as fault:
            raise PromptError(f"{item}: {found.origin} is too large an image: {_reason(fault)}") from None
        except image_module.UnidentifiedImageError:
            raise PromptError(f"{item}: {found.origin} is no image that can be read") from None
        except Exception as fault:  # whatever a broken file can do to its reader
            raise PromptError(f"{item}: {found.origin} cannot be decoded: {_reason(fault)}") from None
    return _pixels(opened, item, found.origin)


def _pixels(image: "PillowImage", item: str, origin: str) -> "PillowImage":
    from PIL import Image, ImageOps

    try:
        image.load()
        upright = image
        with suppress(Exception):  # what is broken in its EXIF data alone leaves the image as it is
            upright = ImageOps.exif_transpose(image)
        if upright.mode == "RGB":
            return upright
        if upright.mode not in _TRANSPARENT_MODES and "transparency" not in upright.info:
            return upright.convert("RGB")
        layer = upright.convert("RGBA")
        ground = Image.new("RGB", layer.size, _WHITE)
        ground.paste(layer, mask=layer.getchannel("A"))
        return ground
    except Exception as fault:
        raise PromptError(f"{item}: {origin} cannot be decoded: {_reason(fault)}") from None


def decode_audio(source: Any, item: str) -> "tuple[NDArray[np.float32], int]":
    """The samples of a source, from -1 to 1, the mean of its channels, and its sample rate in Hz.

    Raises:
        PromptError: the source is none that is taken, or holds no sound that can be read.
        LoadgenError: soundfile is not installed.
    """
    soundfile = _soundfile(item)
    found = _read(source, item)
    try:
        frames, rate = soundfile.read(BytesIO(found.data), dtype="float32", always_2d=True)
    except Exception as fault:  # the library's own, and whatever a broken file can do to it
        raise PromptError(f"{item}: {found.origin} is no sound that can be read: {_reason(fault)}") from None
    if not len(frames):
        raise PromptError(f"{item}: {found.origin} holds no sound: it has no samples")
    samples: NDArray[np.float32] = frames[:, 0] if frames.shape[1] == 1 else frames.mean(axis=1)
    return samples, int(rate)


# --- encoded ----------------------------------------------------------------------------------------------------------


def encoded_image(source: Any, item: str) -> tuple[str, str]:
    """The media type of an image, such as `image/png`, and its file in base64.

    PNG, JPEG, WebP, GIF and BMP are passed on as they are, their pixels unseen; all else becomes a PNG.

    Raises:
        PromptError, LoadgenError: as `decode_image`.
    """
    if isinstance(source, str | bytes | bytearray | memoryview | os.PathLike):
        data = _read(source, item).data
        kind = _image_kind(data)
        if kind is not None:
            return f"image/{kind}", base64.b64encode(data).decode()
    file = BytesIO()
    decode_image(source, item).save(file, "PNG")
    return "image/png", base64.b64encode(file.getvalue()).decode()


def encoded_audio(source: Any, item: str) -> tuple[str, str]:
    """The format of a sound, such as `wav`, and its file in base64.

    WAV, FLAC, MP3 and Ogg are passed on as they are, their samples unseen; all else becomes a WAV of 16 bits.

    Raises:
        PromptError, LoadgenError: as `decode_audio`.
    """
    data = _read(source, item).data
    kind = _audio_kind(data)
    if kind is not None:
        return kind, base64.b64encode(data).decode()
    samples, rate = decode_audio(data, item)
    file = BytesIO()
    _soundfile(item).write(file, samples, rate, format="WAV", subtype="PCM_16")
    return "wav", base64.b64encode(file.getvalue()).decode()


def _image_kind(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "webp"
    return "bmp" if data.startswith(b"BM") else None


def _audio_kind(data: bytes) -> str | None:
    if data.startswith((b"RIFF", b"RF64")) and data[8:12] == b"WAVE":
        return "wav"
    if data.startswith(b"fLaC"):
        return "flac"
    if data.startswith(b"OggS"):
        return "ogg"
    # An MP3 begins with its tags, or with a frame: eleven bits set, and a layer, which AAC's frames do not name.
    frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0 and data[1] & 0x06 != 0
    return "mp3" if frame or data.startswith(b"ID3") else None


# --- where the bytes are ----------------------------------------------------------------------------------------------


def _read(source: Any, item: str) -> _Found:
    if isinstance(source, bytes | bytearray | memoryview):
        found = _Found(bytes(source), "the given file")
    elif isinstance(source, os.PathLike):
        found = _read_file(os.fspath(source), item)
    elif not isinstance(source, str):
        raise PromptError(f"{item}: {type(source).__name__} is not taken: must be bytes, base64, a data URI or a path")
    elif source[:5].lower() == "data:":
        found = _read_data_uri(source, item)
    elif len(source) <= _LONGEST_PATH and os.path.isfile(source):  # a file wins over what might be base64
        found = _read_file(source, item)
    else:
        found = _read_base64(source, item)
    if not found.data:
        raise PromptError(f"{item}: {found.origin} is empty")
    return found


def _read_file(path: Any, item: str) -> _Found:
    try:
        if not os.path.isfile(path):  # nor a pipe or a device, which may have no end
            raise PromptError(f"{item}: there is no file {path}")
        with open(path, "rb") as file:
            return _Found(file.read(), f"the file {path}")
    except OSError as fault:
        raise PromptError(f"{item}: the file {path} cannot be read: {fault.strerror}") from None


def _read_data_uri(source: str, item: str) -> _Found:
    head, comma, body = source.partition(",")
    if not comma:
        raise PromptError(f"{item}: {_shown(source)} is a data URI without data")
    raw = unquote_to_bytes(body) if "%" in body else body.encode(errors="replace")
    if not head.lower().endswith(";base64"):
        return _Found(raw, "the data URI")
    try:
        return _Found(_from_base64(raw), "the data URI")
    except ValueError as fault:
        raise PromptError(f"{item}: the data URI holds no base64: {_reason(fault)}") from None


def _read_base64(source: str, item: str) -> _Found:
    if source.lower().startswith(("http://", "https://")):
        raise PromptError(f"{item}: {_shown(source)} is an address, and nothing is fetched from it")
    why = f"there is no file {_shown(source)}"
    try:
        data = _from_base64(source.encode(errors="replace"))
    except ValueError as fault:
        raise PromptError(f"{item}: {why}, nor is that base64: {_reason(fault)}") from None
    return _Found(data, f"what the base64 holds ({why})" if len(source) <= _LONGEST_PATH else "what the base64 holds")


def _from_base64(text: bytes) -> bytes:
    """Raises ValueError where it is none; line ends and spaces are passed over."""
    return binascii.a2b_base64(b"".join(text.split()), strict_mode=True)


def _shown(source: str) -> str:
    return repr(source if len(source) <= _SHOWN else f"{source[: _SHOWN - 3]}...")


def _reason(fault: BaseException) -> str:
    return " ".join(str(fault).split()) or type(fault).__name__


# --- libraries --------------------------------------------------------------------------------------------------------


def _pillow(item: str) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise LoadgenError(f"{item}: images need the library Pillow: pip install 'loadgen[media]'") from None
    return Image


def _soundfile(item: str) -> Any:
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: the package is there, and the C library under it is not
        raise LoadgenError(f"{item}: sound needs the library soundfile: pip install 'loadgen[media]'") from None
    return soundfile
