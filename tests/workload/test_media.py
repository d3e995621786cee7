"""Images and sound from every kind of source, decoded and encoded; and what is said of those that cannot be read."""

import base64
import io
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from loadgen.errors import LoadgenError
from loadgen.workload.media import decode_audio, decode_image, encoded_audio, encoded_image
from loadgen.workload.prompt import PromptError

RED = (200, 30, 30)
ITEM = "image 2 of 3"
RATE = 8000


def image_file(form: str = "PNG", mode: str = "RGB", **options) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 4), RED).convert(mode).save(file, form, **options)
    return file.getvalue()


def audio_file(form: str = "WAV", channels: int = 1, subtype: str | None = None) -> bytes:
    """A tenth of a second: +0.5 in the first channel, 0 in the second."""
    frames = np.zeros((RATE // 10, channels), dtype=np.float32)
    frames[:, 0] = 0.5
    file = io.BytesIO()
    soundfile.write(file, frames, RATE, format=form, subtype=subtype)
    return file.getvalue()


def sources(data: bytes, file: Path) -> dict[str, object]:
    """The same bytes in every form that is taken."""
    file.write_bytes(data)
    text = base64.b64encode(data).decode()
    lines = "\n".join(text[i : i + 76] for i in range(0, len(text), 76))
    percent = "".join(f"%{byte:02x}" for byte in data)
    return {
        "bytes": data,
        "bytearray": bytearray(data),
        "memoryview": memoryview(data),
        "base64": text,
        "base64 in lines": lines,
        "data URI": f"data:application/octet-stream;base64,{text}",
        "data URI in capitals": f"DATA:;BASE64,{text}",
        "data URI without base64": f"data:,{percent}",
        "path": file,
        "path as text": str(file),
    }


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sources(b"", Path("/dev/null")))
def test_an_image_is_decoded_from_every_kind_of_source(name, tmp_path: Path):
    image = decode_image(sources(image_file(), tmp_path / "red.png")[name], ITEM)
    assert (image.mode, image.size, image.getpixel((5, 3))) == ("RGB", (6, 4), RED)


def test_an_image_of_pillow_s_is_taken_as_it_is():
    image = Image.new("RGB", (6, 4), RED)
    assert decode_image(image, ITEM).tobytes() == image.tobytes()
    assert decode_image(Image.new("L", (6, 4), 9), ITEM).mode == "RGB"


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_every_usual_format_is_decoded(form):
    image = decode_image(image_file(form), ITEM)
    assert (image.mode, image.size) == ("RGB", (6, 4))
    # Lossy ones change the colour a little.
    assert np.allclose(image.getpixel((3, 2)), RED, atol=8)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_rgb(mode):
    form = "TIFF" if mode == "CMYK" else "PNG"
    file = io.BytesIO()
    Image.new(mode, (6, 4)).save(file, form)
    assert decode_image(file.getvalue(), ITEM).mode == "RGB"


def test_what_is_transparent_is_white():
    file = io.BytesIO()
    image = Image.new("RGBA", (2, 1), (*RED, 255))
    image.putpixel((0, 0), (*RED, 0))
    image.save(file, "PNG")
    decoded = decode_image(file.getvalue(), ITEM)
    assert [decoded.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), RED]


def test_an_image_is_turned_as_its_exif_data_say():
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: turned by a quarter
    assert decode_image(image_file("JPEG", exif=exif), ITEM).size == (4, 6)


def test_broken_exif_data_do_no_harm():
    assert decode_image(image_file("JPEG", exif=b"Exif\0\0nonsense"), ITEM).size == (6, 4)


def fault_of(decode, source, item: str = ITEM) -> str:
    with pytest.raises(PromptError) as fault:
        decode(source, item)
    words = str(fault.value)
    assert "\n" not in words
    assert words.startswith(f"{item}: ")
    return words.removeprefix(f"{item}: ")


@pytest.mark.parametrize("decode", [decode_image, encoded_image, decode_audio, encoded_audio])
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("cat.png", "there is no file 'cat.png', nor is that base64: "),
        ("x" * 5000 + "!", "nor is that base64: "),
        ("\ud800", "nor is that base64: "),
        ("a\0b", "nor is that base64: "),
        ("https://host/cat.png", "'https://host/cat.png' is an address, and nothing is fetched from it"),
        ("data:image/png;base64", "is a data URI without data"),
        ("data:image/png;base64,???", "the data URI holds no base64: "),
        ("data:image/png;base64,", "the data URI is empty"),
        (b"", "the given file is empty"),
        (Path("no/such/cat.png"), "there is no file no/such/cat.png"),
        (Path("."), "there is no file ."),
        (Path("/dev/zero"), "there is no file /dev/zero"),  # it has no end
        (7, "int is not taken: must be bytes, base64, a data URI or a path"),
    ],
)
def test_a_source_that_leads_to_no_bytes_is_named_with_the_reason(decode, source, words):
    assert words in fault_of(decode, source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"no image", "the given file is no image that can be read"),
        (audio_file(), "the given file is no image that can be read"),
        (image_file()[:50], "the given file cannot be decoded: "),
        (image_file("JPEG")[:-200], "the given file cannot be decoded: "),
        # Twelve letters that might be a path, and are base64 of nine bytes.
        ("photos/cat12", "what the base64 holds (there is no file 'photos/cat12') is no image that can be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "is no image that can be read"),
    ],
    ids=["text", "sound", "half a PNG", "half a JPEG", "base64 of no image", "PostScript"],
)
def test_an_image_that_cannot_be_decoded_is_named_with_the_reason(source, words):
    assert words in fault_of(decode_image, source)


def test_a_file_that_is_no_image_is_named_by_its_path(tmp_path: Path):
    file = tmp_path / "cat.png"
    file.write_bytes(b"no image")
    assert fault_of(decode_image, str(file)) == f"the file {file} is no image that can be read"


@pytest.mark.parametrize("limit", [20, 10])
def test_an_image_of_too_many_pixels_is_refused(limit, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)  # of 24: Pillow warns of the first, and refuses the second
    assert "the given file is too large an image: Image size (24 pixels) exceeds limit" in fault_of(
        decode_image, image_file()
    )


# --- sound ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sources(b"", Path("/dev/null")))
def test_sound_is_decoded_from_every_kind_of_source(name, tmp_path: Path):
    samples, rate = decode_audio(sources(audio_file(), tmp_path / "beep.wav")[name], "audio 1 of 1")
    assert (samples.dtype, samples.shape, rate) == (np.float32, (800,), 8000)
    assert np.all(samples == 0.5)


def test_channels_become_their_mean():
    samples, _ = decode_audio(audio_file(channels=2), "audio 1 of 1")
    assert samples.dtype == np.float32
    assert samples.shape == (800,)
    assert np.all(samples == 0.25)  # of 0.5 and 0


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3", "AIFF"])
def test_every_usual_format_of_sound_is_decoded(form):
    samples, rate = decode_audio(audio_file(form), "audio 1 of 1")
    assert rate == RATE
    assert np.median(samples) == pytest.approx(0.5, abs=0.1)  # lossy ones ring


@pytest.mark.parametrize(
    "source", [b"no sound", image_file(), audio_file()[:20], "music/beep12"], ids=["text", "image", "head", "base64"]
)
def test_sound_that_cannot_be_decoded_is_named_with_the_reason(source):
    assert "is no sound that can be read: " in fault_of(decode_audio, source, "audio 1 of 2")


def test_sound_without_samples_is_refused():
    file = io.BytesIO()
    soundfile.write(file, np.zeros(0, dtype=np.float32), RATE, format="WAV")
    assert "holds no sound" in fault_of(decode_audio, file.getvalue(), "audio 1 of 2")


# --- encoded ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_usual_image_files_are_passed_on_as_they_are_without_pillow(form, monkeypatch: pytest.MonkeyPatch):
    data = image_file(form)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert encoded_image(data, ITEM) == (f"image/{form.lower()}", base64.b64encode(data).decode())


@pytest.mark.parametrize(
    ("form", "subtype"), [("WAV", None), ("RF64", None), ("FLAC", None), ("OGG", None), ("MP3", None)]
)
def test_usual_sound_files_are_passed_on_as_they_are_without_soundfile(form, subtype, monkeypatch):
    data = audio_file(form, subtype=subtype)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    kind = "wav" if form == "RF64" else form.lower()
    assert encoded_audio(data, "audio 1 of 1") == (kind, base64.b64encode(data).decode())


@pytest.mark.parametrize("name", sources(b"", Path("/dev/null")))
def test_the_same_is_encoded_whatever_the_source(name, tmp_path: Path):
    data = image_file()
    assert encoded_image(sources(data, tmp_path / "red.png")[name], ITEM)[1] == base64.b64encode(data).decode()


@pytest.mark.parametrize("source", [image_file("TIFF"), Image.new("RGB", (6, 4), RED)], ids=["TIFF", "Pillow"])
def test_other_images_become_png(source):
    media_type, data = encoded_image(source, ITEM)
    image = decode_image(data, ITEM)
    assert (media_type, image.size, image.getpixel((0, 0))) == ("image/png", (6, 4), RED)


def test_other_sound_becomes_wav():
    form, data = encoded_audio(audio_file("AIFF"), "audio 1 of 1")
    samples, rate = decode_audio(data, "audio 1 of 1")
    assert (form, rate, len(samples)) == ("wav", RATE, 800)
    assert np.all(samples == 0.5)


def test_mp3_with_tags_and_bare_frames_are_told_from_aac():
    assert encoded_audio(b"ID3\x04" + b"\0" * 9, "a")[0] == "mp3"
    assert encoded_audio(b"\xff\xfb\x90\0", "a")[0] == "mp3"
    assert "is no sound that can be read" in fault_of(encoded_audio, b"\xff\xf1\x50\x80", "a")  # AAC in ADTS


# --- libraries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decode", "source", "module"), [(decode_image, image_file(), "PIL"), (decode_audio, audio_file(), "soundfile")]
)
def test_a_missing_library_names_the_extra(decode, source, module, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(LoadgenError, match=r"pip install 'loadgen\[media\]'"):
        decode(source, ITEM)
