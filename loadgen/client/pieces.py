"""The text of each token, from the strings by which a vocabulary writes its tokens. Pure: no I/O.

A server tells of tokens the vocabulary's own strings: byte-level BPE writes a space as `Ġ` and each byte as one
character, sentencepiece writes a space as `▁`. A reading is taken only where all pieces together are the text they came
from; where neither is, the strings stay as they are.
"""

from collections.abc import Sequence
from typing import Final

_PRINTABLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def texts_of(strings: Sequence[str], text: str) -> tuple[str, ...]:
    """What each token of `text` stands for. Special tokens before the text, and a space put before it, are allowed.

    A token that is part of a character has `�` for what it has of it.
    """
    for pieces in (_from_bytes(strings), [_spaced(string).encode() for string in strings]):
        if pieces is not None and b"".join(pieces).endswith(text.encode(errors="replace")):
            return tuple(piece.decode(errors="replace") for piece in pieces)
    return tuple(strings)


def _from_bytes(strings: Sequence[str]) -> list[bytes] | None:
    """The bytes behind byte-level strings; None where they hold other characters."""
    alphabet = _byte_of_character()
    try:
        return [bytes(alphabet[character] for character in string) for string in strings]
    except KeyError:
        return None


def _byte_of_character() -> dict[str, int]:
    # Byte-level BPE writes a printable byte as itself, and the n-th of the others as the character 256 + n.
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    return {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _spaced(string: str) -> str:
    """A string of sentencepiece, which spells out rare bytes as `<0x0A>`; only that of ASCII is a text by itself."""
    if len(string) == len("<0x0A>") and string.startswith("<0x") and string.endswith(">"):
        try:
            byte = int(string[3:5], 16)
        except ValueError:
            return string
        return chr(byte) if byte < 128 else string
    return string.replace("▁", " ")
