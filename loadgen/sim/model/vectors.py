"""Vectors of texts: a pure function of their tokens and the seed. Texts that share words are alike."""

import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

from loadgen.sim.model import tokenizer

EMBEDDING_SIZE: Final = 256
"""Components of a whole vector."""
_TOUCHED: Final = 4  # components that a token adds to or takes from


def embed(ids: Iterable[int], seed: int, dimensions: int = EMBEDDING_SIZE) -> list[float]:
    """A text's vector, of length 1: the first `dimensions` of its components, scaled anew."""
    sums = [0.0] * EMBEDDING_SIZE
    for token in ids:
        state = zlib.crc32(tokenizer.token_bytes(token).lstrip(b" "), seed & 0xFFFFFFFF)
        for turn in range(_TOUCHED):
            # A byte of the state says which component, a bit of the next one its sign.
            state = state * 2_654_435_761 + turn & 0xFFFFFFFF
            sums[state >> 24] += 1.0 if state & 1 << 23 else -1.0
    # Every component has a little of its own, so that no vector is zero, and none has many zeroes.
    base = zlib.crc32(repr(sums).encode(), seed & 0xFFFFFFFF)
    vector = [total + 0.1 * _small(base + place) for place, total in enumerate(sums[:dimensions])]
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]


def similarity(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine of the angle between two vectors of length 1."""
    return sum(map(float.__mul__, one, other))


def _small(number: int) -> float:
    """Between -1 and 1, never 0, and scrambled."""
    return ((number * 2_654_435_761 & 0xFFFFFFFF) - 2**31 + 0.5) / 2**31
