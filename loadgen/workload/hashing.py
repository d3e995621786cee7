"""Random numbers by index: the same in every process, in any order, without a state."""

from enum import IntEnum
from typing import Final

_64_BITS: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15


class Purpose(IntEnum):
    """What a random number is for; numbers for different purposes are independent."""

    PROMPT_LENGTH = 1
    OUTPUT_LENGTH = 2
    HEAD = 3
    PLACE = 4
    CORPUS = 5
    IMAGE = 6
    PICTURE = 7
    SOUND = 8
    NOISE = 9
    ROWS = 10


def hash_key(*parts: int) -> int:
    """A key for `hash64`, a 64-bit hash of whole numbers in order; of each its lowest 64 bits count."""
    key = 0
    for part in parts:
        key = _finalise(((key ^ part) + _GAMMA) & _64_BITS)
    return key


def hash64(key: int, index: int) -> int:
    """64 random bits: output `index` of the generator SplitMix64 with the seed `key`, at one step.

    Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014. Its state only counts up
    by a constant, so any output is at hand, in any order and process.
    """
    return _finalise((key + (index + 1) * _GAMMA) & _64_BITS)


def fraction(key: int, index: int) -> float:
    """A random number in [0, 1): the upper 53 of the 64 bits."""
    return (hash64(key, index) >> 11) * 2.0**-53


def _finalise(bits: int) -> int:
    """The finaliser of SplitMix64 (Stafford's variant 13), a bijection of 64 bits."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return bits ^ (bits >> 31)
