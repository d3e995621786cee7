"""The simulated tokenizer: a pure, reversible rule on text that looks like byte-level BPE.

A word is cut into pieces of at most six bytes, and its first piece carries the space before it (`Ġthe`); any other
white space is a piece of its own. A token id packs its piece, so no vocabulary is kept; ids stay below 2**53.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

_PIECE: Final = re.compile(rb" ?\S{1,6}|\s")
_MASKS: Final = tuple((1 << 8 * length) - 1 for length in range(7))  # of the bytes of a piece, at most six
_SPECIAL_BITS: Final = 7  # no piece has this length
_SPECIALS: Final = ("<|im_start|>", "<|im_end|>", "<|image|>", "<|audio|>")
BEGIN: Final = _SPECIAL_BITS
"""The id of the token that begins a message in the chat template."""
END: Final = 8 + _SPECIAL_BITS
"""The id of the token that ends one."""
IMAGE: Final = 2 * 8 + _SPECIAL_BITS
AUDIO: Final = 3 * 8 + _SPECIAL_BITS
"""The id of each token of an image, and of a sound."""
IMAGE_TOKENS: Final = 576
"""What any image is, as to LLaVA 1.5: 24 x 24 patches, whatever its size."""
AUDIO_TOKENS: Final = 125
"""What any sound is: 5 s as Qwen2-Audio hears them, 25 tokens a second."""


def count(text: str) -> int:
    """How many tokens the text is."""
    return len(_PIECE.findall(text.encode()))


def encode(text: str) -> list[int]:
    """The text's token ids; `decode` gives the same text back."""
    return [_pack(piece) for piece in _PIECE.findall(text.encode())]


def decode(ids: Iterable[int]) -> str:
    """The text of the ids. Any id is taken; what is no UTF-8 is replaced, as a real detokenizer does."""
    return b"".join(token_bytes(token) for token in ids).decode(errors="replace")


def token_strings(ids: Iterable[int]) -> list[str]:
    """How a byte-level vocabulary writes each token: the space before a word as `Ġ`."""
    return [token_bytes(token).decode("latin-1").translate(_SHOWN) for token in ids]


def encode_chat(
    messages: Sequence[tuple[str, str]], *, images: int = 0, audio: int = 0, generation_prompt: bool = True
) -> list[int]:
    """The chat template: each (role, text) costs three tokens, its role and its text.

    The tokens of the conversation's images and sounds come before its text.
    """
    newline = _pack(b"\n")
    ids = [IMAGE] * (IMAGE_TOKENS * images) + [AUDIO] * (AUDIO_TOKENS * audio)
    for role, text in messages:
        ids += (BEGIN, *encode(role), newline, *encode(text), END)
    if generation_prompt:
        ids += (BEGIN, *encode("assistant"), newline)
    return ids


def count_chat(
    messages: Sequence[tuple[str, str]], *, images: int = 0, audio: int = 0, generation_prompt: bool = True
) -> int:
    """The length of `encode_chat`, without the ids."""
    length = sum(3 + count(role) + count(text) for role, text in messages)
    length += IMAGE_TOKENS * images + AUDIO_TOKENS * audio
    return length + (2 + count("assistant") if generation_prompt else 0)


def render_chat(
    messages: Sequence[tuple[str, str]], *, images: int = 0, audio: int = 0, generation_prompt: bool = True
) -> str:
    """The text that `encode_chat` is the tokens of."""
    begin, end, image, sound = _SPECIALS
    parts = [image * (IMAGE_TOKENS * images), sound * (AUDIO_TOKENS * audio)]
    parts += (f"{begin}{role}\n{text}{end}" for role, text in messages)
    if generation_prompt:
        parts.append(f"{begin}assistant\n")
    return "".join(parts)


def _pack(piece: bytes) -> int:
    # Lowest three bits the number of bytes, then one for a space before a word, then the bytes.
    spaced = len(piece) > 1 and piece.startswith(b" ")
    word = piece[1:] if spaced else piece
    return int.from_bytes(word) << 4 | spaced << 3 | len(word)


def token_bytes(token: int) -> bytes:
    """What one token stands for; part of a character where a character was cut."""
    length = token & 7
    if length == _SPECIAL_BITS:
        return _SPECIALS[token >> 3].encode() if token >> 3 < len(_SPECIALS) else b""
    word = (token >> 4 & _MASKS[length]).to_bytes(length)
    return b" " + word if token & 8 else word


def _byte_level_alphabet() -> dict[int, str]:
    # Byte-level BPE shows a printable byte as itself and the n-th other byte as the character 256 + n.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(256 + position) for position, byte in enumerate(others)}


_SHOWN: Final = _byte_level_alphabet()
