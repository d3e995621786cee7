"""Synthetic images and sounds: files that decoders read, of a content of their own, and a nonce repeats them."""

import io
import re
import subprocess
import sys
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from loadgen import profile
from loadgen.errors import LoadgenError
from loadgen.profile import Audio, Images, Workload
from loadgen.workload.synthetic_media import SyntheticMedia

SMALL, BANDED = Images(width=24, height=40), Images(width=256, height=256)
SHORT = Audio(seconds=0.25, sample_rate=8000)


def media(images: Images | None = None, audio: Audio | None = None, nonce: int = 1, seed: int = 1) -> SyntheticMedia:
    return SyntheticMedia(Workload(images=images, audio=audio, seed=seed), nonce)


def files(source: SyntheticMedia, index: int) -> list[bytes]:
    return [part.source for part in source.parts(index)]


def only(source: SyntheticMedia, index: int) -> bytes:
    (file,) = files(source, index)
    return file


def pixels(jpeg: bytes) -> bytes:
    """What a server sees: its cache knows an image by its pixels, not by its file."""
    return Image.open(io.BytesIO(jpeg)).convert("RGB").tobytes()


def luminance(jpeg: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(jpeg))
    image.draft("L", None)  # as coded: colours are not looked at
    return np.asarray(image)


def samples(wav: bytes) -> bytes:
    with wave.open(io.BytesIO(wav)) as sound:
        return sound.readframes(sound.getnframes())


# --- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [{"images": SMALL}, {"images": BANDED}, {"audio": SHORT}], ids=str)
def test_a_fresh_workload_repeats_each_file_byte_for_byte(seen: dict[str, profile.Images | profile.Audio]) -> None:
    one, other = media(**seen), media(**seen)  # type: ignore[arg-type]
    only(other, 7)  # what was asked before does not matter
    assert [only(one, i) for i in (0, 5, 2**60)] == [only(other, i) for i in (0, 5, 2**60)]


def test_another_process_makes_the_same_files() -> None:
    code = (
        "import sys; from loadgen.profile import *; from loadgen.workload.synthetic_media import SyntheticMedia;"
        "media = SyntheticMedia(Workload(images=Images(width=256, height=256), audio=Audio(seconds=0.25)), 9);"
        "sys.stdout.buffer.write(b''.join(part.source for part in media.parts(11)))"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert made == b"".join(files(media(BANDED, Audio(seconds=0.25), nonce=9), 11))


@pytest.mark.parametrize("images", [Images(width=8, height=8), SMALL, BANDED], ids=str)
def test_the_pixels_of_two_requests_or_runs_are_never_the_same(images: Images) -> None:
    seen = [pixels(only(source, i)) for source in (media(images), media(images, nonce=2)) for i in range(200)]
    assert len(set(seen)) == 400


@pytest.mark.parametrize("audio", [SHORT, Audio(seconds=0.004, sample_rate=1000)], ids=str)
def test_the_samples_of_two_requests_or_runs_are_never_the_same(audio: Audio) -> None:
    seen = [
        samples(only(source, i)) for source in (media(audio=audio), media(audio=audio, nonce=2)) for i in range(200)
    ]
    assert len(set(seen)) == 400


def test_the_items_of_one_request_differ_and_none_is_in_the_next() -> None:
    source = media(Images(count=3, width=64, height=64), Audio(count=2, seconds=0.1))
    seen = [file for index in range(50) for file in files(source, index)]
    assert len(set(seen)) == 50 * (3 + 2)


def test_images_come_before_sounds() -> None:
    made = files(media(Images(count=2, width=8, height=8), Audio(count=1, seconds=0.1)), 0)
    assert [file[:4] for file in made] == [b"\xff\xd8\xff\xe0", b"\xff\xd8\xff\xe0", b"RIFF"]


# --- images -----------------------------------------------------------------------------------------------------------


# Fewer than 16 blocks of 16 x 16 pixels (one, then 15), exactly 16, 17 (one beyond the bands), 31 (15 beyond), 441
# (bands of 27 and 9 beyond), one row, one column, and no multiple of 16.
@pytest.mark.parametrize(
    ("width", "height"),
    [(8, 8), (48, 80), (64, 64), (272, 16), (496, 16), (336, 336), (4000, 8), (8, 4000), (517, 123)],
)
def test_an_image_of_any_size_is_a_whole_jpeg_of_that_size(width: int, height: int) -> None:
    jpeg = only(media(Images(width=width, height=height)), 3)
    image = Image.open(io.BytesIO(jpeg))
    image.load()
    assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (width, height))
    assert jpeg.endswith(b"\xff\xd9")


@given(st.integers(8, 160), st.integers(8, 160), st.integers(0, 2**40))
def test_restart_markers_count_up_from_0_modulo_8(width: int, height: int, index: int) -> None:
    jpeg = only(media(Images(width=width, height=height)), index)
    scan = jpeg[jpeg.index(b"\xff\xda") :]
    markers = [marker[1] - 0xD0 for marker in re.findall(rb"\xff[\xd0-\xd7]", scan)]
    assert markers == [place % 8 for place in range(len(markers))]


def test_every_band_of_an_image_is_one_of_sixteen_as_they_were_encoded() -> None:
    # 256 x 256 is 16 x 16 blocks: a band is a row of blocks, 16 pixels high.
    source = media(BANDED)
    bands = {luminance(only(source, i))[top : top + 16].tobytes() for i in range(100) for top in range(0, 256, 16)}
    # Any of the 16 is missing among 1,600 drawn with probability 16 (15/16)^1600 = 2e-44.
    assert len(bands) == 16


def test_an_image_is_about_as_large_as_a_photograph_of_this_quality() -> None:
    size = len(only(media(Images(width=512, height=512)), 0))
    assert 0.1 < size / 512**2 < 0.25  # bytes a pixel


def test_without_pillow_images_are_refused_before_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)  # as where it is not installed
    for images in (SMALL, BANDED):
        with pytest.raises(LoadgenError, match=r"needs the library Pillow: pip install 'loadgen\[media\]'$"):
            media(images)


def test_without_pillow_there_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert len(samples(only(media(audio=SHORT), 0))) == 2 * 2000


# --- sounds -----------------------------------------------------------------------------------------------------------


# One sample; the default; one that is longer than the noise it is cut from, 262,144 samples, several times over.
@pytest.mark.parametrize(
    ("seconds", "sample_rate", "count"), [(0.0001, 1000, 1), (5, 16_000, 80_000), (20, 48_000, 960_000)]
)
def test_a_sound_has_one_channel_16_bits_and_its_length(seconds: float, sample_rate: int, count: int) -> None:
    wav = only(media(audio=Audio(seconds=seconds, sample_rate=sample_rate)), 4)
    with wave.open(io.BytesIO(wav)) as sound:
        assert (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) == (1, 2, sample_rate)
        assert sound.getnframes() == count
    assert len(samples(wav)) == 2 * count
    assert len(wav) == 44 + 2 * count  # nothing behind the samples


def test_sound_is_neither_silent_nor_cut_off_by_its_loudest_sample() -> None:
    values = np.frombuffer(samples(only(media(audio=Audio()), 0)), "<i2").astype(float)
    # Noise of standard deviation 6,000 under |sin|, whose mean square is one half; 80,000 samples of it, of which
    # some 40,000 are independent: four standard errors are 1 %, and swelling cut at an end adds about as much.
    assert values.std() == pytest.approx(6000 * 0.5**0.5, rel=0.03)
    assert np.mean(np.abs(values) >= 32_767) < 1e-4
